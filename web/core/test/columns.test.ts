import { expect, test } from "vitest";
import { columnKind } from "../src/columns.js";
import type { ColumnType } from "../src/columns.js";

test("numbers and times are told apart from text", () => {
  expect(columnKind("int64").values).toBe("number");
  expect(columnKind("double").values).toBe("number");
  expect(columnKind("timestamp").values).toBe("time");
  expect(columnKind("string").values).toBe("text");
});

test.each(["decimal", "toString", "__proto__"])("a type of a newer server, %s, is shown as text", (type) => {
  expect(columnKind(type as ColumnType)).toEqual(columnKind("string"));
});
