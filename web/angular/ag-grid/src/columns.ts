/** Columns of a table as AG Grid takes them, with the filters that the server has. */
import type { Column, ColumnType } from "@livetables/client";
import type { ColDef } from "ag-grid-community";

/** The columns to show: those that begin with `_` are for programs. */
export function columnDefinitions(columns: readonly Column[]): ColDef[] {
  return columns
    .filter(({ name }) => !name.startsWith("_"))
    .map(({ name, type }) => ({
      ...OF_TYPE[type],
      colId: name,
      headerName: name,
      valueGetter: ({ data }) => (data as Record<string, unknown> | undefined)?.[name], // a name may have dots
    }));
}

const NUMBER: ColDef = {
  type: "rightAligned",
  filter: "agNumberColumnFilter",
  filterParams: { filterOptions: ["equals", "lessThan", "greaterThan", "inRange", "blank"], maxNumConditions: 1 },
};

const OF_TYPE: Readonly<Record<ColumnType, ColDef>> = {
  string: {
    filter: "agTextColumnFilter",
    filterParams: { filterOptions: ["contains", "equals", "startsWith", "blank"], maxNumConditions: 1 },
  },
  int64: NUMBER,
  double: NUMBER,
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
  timestamp: {
    filter: "agDateColumnFilter",
    filterParams: {
      filterOptions: ["lessThan", "greaterThan", "inRange", "blank"],
      maxNumConditions: 1,
      includeTime: true,
    },
  },
};
