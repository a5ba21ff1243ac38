import { describe, expect, it } from "vitest";
import { columnDefinitions } from "../ag-grid/src/columns";
import { filtersOf, sortOf } from "../ag-grid/src/view";

describe("AG Grid's filters", () => {
  it.each([
    [
      { filterType: "text", type: "contains", filter: "ann" },
      { op: "contains", value: "ann" },
    ],
    [
      { filterType: "text", type: "equals", filter: "Ann" },
      { op: "equals", value: "Ann" },
    ],
    [
      { filterType: "text", type: "startsWith", filter: "A" },
      { op: "starts_with", value: "A" },
    ],
    [
      { filterType: "number", type: "lessThan", filter: 30 },
      { op: "<", value: 30 },
    ],
    [
      { filterType: "number", type: "greaterThan", filter: 0 },
      { op: ">", value: 0 },
    ],
    [
      { filterType: "number", type: "inRange", filter: 1, filterTo: 2 },
      { op: "between", value: [1, 2] },
    ],
    [{ filterType: "text", type: "blank" }, { op: "is_null" }],
    [
      { filterType: "text", type: "true" },
      { op: "equals", value: true },
    ],
    [
      { filterType: "text", type: "false" },
      { op: "equals", value: false },
    ],
    [
      { filterType: "text", type: "<", filter: "-9007199254740993" },
      { op: "<", value: "-9007199254740993" },
    ],
    [
      { filterType: "text", type: ">", filter: "30" },
      { op: ">", value: "30" },
    ],
    [
      { filterType: "text", type: "between", filter: "1", filterTo: "9007199254740993" },
      { op: "between", value: ["1", "9007199254740993"] },
    ],
  ])("%j is the server's %j", (model, filter) => {
    expect(filtersOf({ age: model })).toEqual([{ column: "age", ...filter }]);
  });

  it("has times in the reader's zone, which the server takes in UTC", () => {
    const model = { ts: { filterType: "date", type: "greaterThan", dateFrom: "2026-01-31 12:00:00", dateTo: null } };
    const value = new Date(2026, 0, 31, 12).toISOString();
    expect(filtersOf(model)).toEqual([{ column: "ts", op: ">", value }]);
  });

  it("counts only once its value is given", () => {
    expect(filtersOf({ age: { filterType: "number", type: "inRange", filter: 1, filterTo: null } })).toEqual([]);
    expect(filtersOf({ age: { filterType: "text", type: "contains", filter: "" } })).toEqual([]);
    expect(filtersOf(null)).toEqual([]);
  });

  it("may have several conditions, all of which must pass", () => {
    const conditions = [
      { filterType: "number", type: "greaterThan", filter: 1 },
      { filterType: "number", type: "lessThan", filter: 9 },
    ];
    expect(filtersOf({ age: { filterType: "number", operator: "AND", conditions } })).toEqual([
      { column: "age", op: ">", value: 1 },
      { column: "age", op: "<", value: 9 },
    ]);
  });
});

it("a sort by several columns keeps their order", () => {
  const model = [
    { colId: "age", sort: "desc" as const },
    { colId: "name", sort: "asc" as const },
  ];
  expect(sortOf(model)).toEqual([
    { column: "age", descending: true },
    { column: "name", descending: false },
  ]);
});

it("whole numbers are filtered by their digits, as some are none of JavaScript's numbers", () => {
  const [count, share] = columnDefinitions([
    { name: "count", type: "int64" },
    { name: "share", type: "double" },
  ]);
  expect([count?.filter, share?.filter]).toEqual(["agTextColumnFilter", "agNumberColumnFilter"]);
  expect([count?.type, share?.type]).toEqual(["rightAligned", "rightAligned"]);
});
