/** Columns of a table as AG Grid takes them, with the filters that the server has. */
import { columnKind } from "@livetables/client";
import type { Column, ColumnKind } from "@livetables/client";
import type { ColDef } from "ag-grid-community";

/** The columns to show: those that begin with `_` are for programs. */
export function columnDefinitions(columns: readonly Column[]): ColDef[] {
  return columns
    .filter(({ name }) => !name.startsWith("_"))
    .map(({ name, type }) => ({
      ...OF_VALUES[columnKind(type).values],
      ...(columnKind(type).isWhole && OF_WHOLE_NUMBERS),
      colId: name,
      headerName: name,
      valueGetter: ({ data }) => (data as Record<string, unknown> | undefined)?.[name], // a name may have dots
    }));
}

const OF_VALUES: Readonly<Record<ColumnKind["values"], ColDef>> = {
  text: {
    filter: "agTextColumnFilter",
    filterParams: { filterOptions: ["contains", "equals", "startsWith", "blank"], maxNumConditions: 1 },
  },
  number: {
    type: "rightAligned",
    filter: "agNumberColumnFilter",
    filterParams: { filterOptions: ["equals", "lessThan", "greaterThan", "inRange", "blank"], maxNumConditions: 1 },
  },
  bool: {
    filter: "agTextColumnFilter",
    filterParams: {
      filterOptions: [
        { displayKey: "true", displayName: "True", numberOfInputs: 0, predicate: () => true },
        { displayKey: "false", displayName: "False", numberOfInputs: 0, predicate: () => true },
        "blank",
      ],
      maxNumConditions: 1,
    },
  },
  time: {
    filter: "agDateColumnFilter",
    filterParams: {
      filterOptions: ["lessThan", "greaterThan", "inRange", "blank"],
      maxNumConditions: 1,
      includeTime: true,
    },
  },
};

/** The grid's filter of numbers would make other ones of those that JavaScript does not have: these are taken as text. */
const OF_WHOLE_NUMBERS: ColDef = {
  filter: "agTextColumnFilter",
  filterParams: {
    filterOptions: [
      "equals",
      { displayKey: "<", displayName: "Less than", predicate: () => true },
      { displayKey: ">", displayName: "Greater than", predicate: () => true },
      { displayKey: "between", displayName: "Between", numberOfInputs: 2, predicate: () => true },
      "blank",
    ],
    maxNumConditions: 1,
    trimInput: true,
  },
};
