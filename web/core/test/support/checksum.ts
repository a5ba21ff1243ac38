/** The checksum of docs/PROTOCOL.md by Node's own CRC-32: nothing of it is shared with src/checksum.ts. */
import { crc32 } from "node:zlib";
import type { Value } from "../../src/protocol.js";

export type IdentifiedRow = readonly [id: number, values: readonly Value[]];

export function nodeChecksum(total: number, rows: readonly IdentifiedRow[]): string {
  const whole = Buffer.concat([
    float64(total),
    ...rows.map(([id, values]) => uint32(crc32(Buffer.concat([float64(id), ...values.map(bytesOf)])))),
  ]);
  return crc32(whole).toString(16).padStart(8, "0");
}

function bytesOf(value: Value): Buffer {
  if (value === null) return Buffer.of(0);
  if (value === false) return Buffer.of(1);
  if (value === true) return Buffer.of(2);
  if (typeof value === "number") return Buffer.concat([Buffer.of(3), float64(value)]);
  const text = Buffer.from(value, "utf8");
  return Buffer.concat([Buffer.of(4), uint32(text.length), text]);
}

function float64(value: number): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeDoubleLE(value);
  return bytes;
}

function uint32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
}
