import fc from "fast-check";
import { describe, expect, it } from "vitest";
import type { Patch, Value } from "../src/protocol.js";
import { patched, shown } from "../src/window.js";
import type { Row, Window } from "../src/window.js";
import { COLUMNS, patch, snapshot } from "./support/frames.js";

const NAMES = ["Ann", "Bob", "Cid"];

function window(rows: readonly (readonly Value[])[] = NAMES.map((name) => [name, 30])): Window {
  return shown(snapshot(rows), COLUMNS);
}

function cells({ rows }: Window): Value[][] {
  return rows.map((row) => COLUMNS.map(({ name }) => row[name] ?? null));
}

it("a snapshot shows rows by column names, and their ids", () => {
  expect(window().rows[1]).toEqual({ _row: 1, name: "Bob", age: 30 });
});

it("an int64 beyond JavaScript's numbers stays exact, as text", () => {
  expect(window([["Ann", "9007199254740993"]]).rows[0]?.["age"]).toBe("9007199254740993");
});

it("a patch removes in the old window, inserts in the new one, then changes cells", () => {
  const after = patched(
    window(),
    patch(
      { removed: [1], inserted: [[0, 3, ["Dee", "9007199254740993"]]], updated: [[1, 1, 31]], total: 9 },
      { sequence: 2 },
    ),
  );
  expect(after && cells(after)).toEqual([
    ["Dee", "9007199254740993"],
    ["Ann", 31],
    ["Cid", 30],
  ]);
  expect(after).toMatchObject({ total: 9, sequence: 2, rows: [{ _row: 3 }, { _row: 0 }, { _row: 2 }] });
});

it("what a patch does not touch stays the same object, and what it touches does not change under others", () => {
  const before = window();
  const after = patched(before, patch({ updated: [[1, 1, 31]] }, { sequence: 2 }));
  expect(after?.rows[0]).toBe(before.rows[0]);
  expect(after?.columns).toBe(before.columns);
  expect(before.rows[1]).toEqual({ _row: 1, name: "Bob", age: 30 });
});

it("a window has the hint of its last frame, and none if that has none", () => {
  const limited = shown({ ...snapshot([["Ann", 30]]), hint: "only 20 rows" }, COLUMNS);
  const still = patched(limited, patch({ hint: "only 30 rows" }, { sequence: 2 }));
  const free = still && patched(still, patch({}, { sequence: 3 }));
  expect([limited.hint, still?.hint, free?.hint, window().hint]).toEqual(["only 20 rows", "only 30 rows", null, null]);
});

describe("a patch does not follow", () => {
  const misfits: Record<string, Patch> = {
    "after a gap": patch({}, { sequence: 3 }),
    "when it comes twice": patch({}, { sequence: 1 }),
    "from another generation": patch({}, { sequence: 2, generation: "g2" }),
    "that removes what is not there": patch({ removed: [3] }, { sequence: 2 }),
    "that inserts beyond the end": patch({ inserted: [[4, 9, ["Eve", 1]]] }, { sequence: 2 }),
    "that inserts out of order": patch({ inserted: [[1, 9, ["Eve", 1]], [0, 8, ["Fay", 1]]] }, { sequence: 2 }), // prettier-ignore
    "that changes a row that is not there": patch({ updated: [[3, 0, "Eve"]] }, { sequence: 2 }),
    "that changes a column that is not there": patch({ updated: [[0, 2, "Eve"]] }, { sequence: 2 }),
  };
  it.each(Object.entries(misfits))("%s", (_, frame) => {
    expect(patched(window(), frame)).toBeUndefined();
  });
});

/** The protocol's words, step by step, however slow. */
function patchedByTheBook(rows: readonly Row[], { removed, inserted, updated }: Patch): Row[] {
  const after = rows.filter((_, position) => !removed.includes(position));
  for (const [position, id, [name = null, age = null]] of inserted) after.splice(position, 0, { _row: id, name, age });
  for (const [position, column, value] of updated) {
    const name = COLUMNS[column]?.name ?? "";
    const row = after[position];
    if (row) after[position] = { ...row, [name]: value };
  }
  return after;
}

it("any patch does what the protocol describes", () => {
  const choice = fc.array(fc.record({ goes: fc.boolean(), comes: fc.nat(2), changes: fc.option(fc.nat(99)) }), {
    maxLength: 20,
  });
  fc.assert(
    fc.property(choice, (choices) => {
      const before = window(choices.map((_, index) => [`old ${index}`, 0]));
      const removed = choices.flatMap(({ goes }, index) => (goes ? [index] : []));
      const inserted: [number, number, Value[]][] = [];
      const updated: [number, number, Value][] = [];
      let position = 0;
      for (const [index, { goes, comes, changes }] of choices.entries()) {
        for (let each = 0; each < comes; each++)
          inserted.push([position++, 100 + index * 10 + each, [`new ${index}`, each]]);
        if (goes) continue;
        if (changes !== null) updated.push([position, changes % 2, changes]);
        position++;
      }
      const frame = patch({ removed, inserted, updated }, { sequence: 2 });
      expect(patched(before, frame)?.rows).toEqual(patchedByTheBook(before.rows, frame));
    }),
  );
});
