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
