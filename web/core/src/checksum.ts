/**
 * The checksum of a window, as docs/PROTOCOL.md defines it: CRC-32 of its total and of the CRC-32 of each row. Pure.
 *
 * Every value is looked at, so it is compared now and then, not with each frame: see `isDue` in viewport.ts.
 */
import type { Value } from "./protocol.js";
import type { Row, Window } from "./window.js";

/** What stands before a value, so that no two lists of values are the same bytes. */
const TAG = { null: 0, false: 1, true: 2, number: 3, text: 4 } as const;

/** 8 lower-case hex digits. */
export function checksum({ total, rows, columns }: Pick<Window, "total" | "rows" | "columns">): string {
  const names = columns.map(({ name }) => name);
  const bytes = new Bytes();
  const scratch = new Bytes();
  bytes.float64(total);
  for (const row of rows) bytes.uint32(rowChecksum(row, names, scratch));
  return bytes.crc32().toString(16).padStart(8, "0");
}

function rowChecksum(row: Row, names: readonly string[], scratch: Bytes): number {
  scratch.clear();
  scratch.float64(row._row);
  for (const name of names) put(scratch, row[name] ?? null);
  return scratch.crc32();
}

function put(bytes: Bytes, value: Value): void {
  if (value === null) bytes.byte(TAG.null);
  else if (typeof value === "boolean") bytes.byte(value ? TAG.true : TAG.false);
  else if (typeof value === "number") {
    bytes.byte(TAG.number);
    bytes.float64(value);
  } else {
    bytes.byte(TAG.text);
    bytes.text(value);
  }
}

const UTF8 = new TextEncoder();
const UTF8_BYTES_MAX = 3; // of one of a text's 16-bit units

/** Bytes in a row, in memory that grows as needed. */
class Bytes {
  #array = new Uint8Array(256);
  #view = new DataView(this.#array.buffer);
  #length = 0;

  clear(): void {
    this.#length = 0;
  }

  byte(value: number): void {
    const start = this.#next(1);
    this.#view.setUint8(start, value);
  }

  uint32(value: number): void {
    const start = this.#next(4);
    this.#view.setUint32(start, value, true);
  }

  float64(value: number): void {
    const start = this.#next(8);
    this.#view.setFloat64(start, value, true);
  }

  /** Its length in bytes, and its bytes. */
  text(value: string): void {
    const start = this.#next(4 + value.length * UTF8_BYTES_MAX);
    const { written } = UTF8.encodeInto(value, this.#array.subarray(start + 4));
    this.#view.setUint32(start, written, true);
    this.#length = start + 4 + written;
  }

  crc32(): number {
    let crc = ~0;
    for (let at = 0; at < this.#length; at++) {
      crc = (CRC[(crc ^ (this.#array[at] ?? 0)) & 0xff] ?? 0) ^ (crc >>> 8);
    }
    return ~crc >>> 0;
  }

  /** Where the next bytes go; the memory may be another afterwards. */
  #next(count: number): number {
    const start = this.#length;
    this.#length += count;
    if (this.#length > this.#array.length) {
      const larger = new Uint8Array(2 * this.#length);
      larger.set(this.#array.subarray(0, start));
      this.#array = larger;
      this.#view = new DataView(larger.buffer);
    }
    return start;
  }
}

/** What each byte does to a CRC-32 of the polynomial of IEEE 802.3, lowest bit first, as zlib has it. */
const CRC = Uint32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
  return crc;
});
