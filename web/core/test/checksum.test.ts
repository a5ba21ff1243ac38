import { readFileSync } from "node:fs";
import fc from "fast-check";
import { expect, it } from "vitest";
import { checksum } from "../src/checksum.js";
import type { Column, Patch, Snapshot, Value } from "../src/protocol.js";
import { patched, shown } from "../src/window.js";
import { nodeChecksum } from "./support/checksum.js";
import type { IdentifiedRow } from "./support/checksum.js";
import { snapshot } from "./support/frames.js";

function columns(count: number): Column[] {
  return Array.from({ length: count }, (_, index) => ({ name: `c${index}`, type: "string" }));
}

function checksumOf(total: number, rows: readonly IdentifiedRow[], width: number): string {
  const frame: Snapshot = { ...snapshot(rows.map(([, values]) => values)), ids: rows.map(([id]) => id), total };
  return checksum(shown(frame, columns(width)));
}

const value: fc.Arbitrary<Value> = fc.oneof(
  fc.constant(null),
  fc.boolean(),
  fc.double({ noNaN: true, noDefaultInfinity: true }),
  fc.integer(),
  fc.constantFrom(0, -0, Number.MAX_SAFE_INTEGER, 5e-324),
  fc.string({ unit: "grapheme" }),
  fc.constantFrom("", "9007199254740993", "é", "𝄞", "NaN", "x".repeat(1000)),
);

it("is what Node's CRC-32 makes of the protocol's words, for any window", () => {
  const rows = fc.nat(40).chain((width) =>
    fc.tuple(
      fc.constant(width),
      fc.array(fc.tuple(fc.maxSafeNat(), fc.array(value, { minLength: width, maxLength: width })), {
        maxLength: 300,
        size: "max",
      }),
    ),
  );
  fc.assert(
    fc.property(fc.maxSafeNat(), rows, (total, [width, rows]) => {
      expect(checksumOf(total, rows, width)).toBe(nodeChecksum(total, rows));
    }),
  );
});

it("is that of the contract's example", () => {
  const rows: IdentifiedRow[] = [
    [0, ["Ann", 30, 1.5]],
    [1, [null, true, "é"]],
  ];
  expect(checksumOf(3, rows, 3)).toBe("6034ab5b"); // by Python's zlib and struct
});

it("is another one for any value that looks alike", () => {
  const alike: Value[] = [null, "", 0, -0, false, true, "true", "null", "0", 1, "1"];
  const all = alike.map((each) => checksumOf(1, [[0, [each]]], 1));
  expect(new Set(all).size).toBe(alike.length);
});

it("is another one when rows or values change places, or the total changes", () => {
  const rows: IdentifiedRow[] = [
    [0, ["a", "b"]],
    [1, ["a", "b"]],
  ];
  const swapped = rows.toReversed();
  const moved: IdentifiedRow[] = [
    [0, ["ab", ""]],
    [1, ["a", "b"]],
  ];
  const all = [checksumOf(2, rows, 2), checksumOf(2, swapped, 2), checksumOf(2, moved, 2), checksumOf(3, rows, 2)];
  expect(new Set(all).size).toBe(4);
});

it("of the golden frames is that of the windows that they make", () => {
  const golden = (name: string): unknown =>
    JSON.parse(readFileSync(new URL(`../../../tests/golden/server-${name}.json`, import.meta.url), "utf8"));
  const before = golden("snapshot") as Snapshot;
  const change = golden("patch") as Patch;
  const window = shown({ ...before, sequence: change.sequence - 1 }, columns(3));
  expect(checksum(window)).toBe(before.checksum);
  const after = patched(window, change);
  expect(after && checksum(after)).toBe(change.checksum);
});
