/** AG Grid's sort and filters, in the server's form. Pure. */
import type { Filter, Sort, ViewOptions } from "@livetables/client";
import type { SortModelItem } from "ag-grid-community";

/** One column's filter, of the kinds that `columnDefinitions` offers. */
interface ColumnFilter {
  readonly filterType?: string;
  readonly type?: string | null;
  readonly filter?: string | number | null;
  readonly filterTo?: string | number | null;
  readonly dateFrom?: string | null;
  readonly dateTo?: string | null;
  /** Several conditions, all of which must pass. */
  readonly conditions?: readonly ColumnFilter[];
}

export function sortOf(model: readonly SortModelItem[]): Sort[] {
  return model.map(({ colId, sort }) => ({ column: colId, descending: sort === "desc" }));
}

export function filtersOf(model: Readonly<Record<string, unknown>> | null | undefined): Filter[] {
  return Object.entries(model ?? {}).flatMap(([column, given]) => {
    const filter = given as ColumnFilter;
    return (filter.conditions ?? [filter]).flatMap((each) => filterOf(column, each) ?? []);
  });
}

/** Whether the rows are the same ones, in the same order, wherever one looks. */
export function isSameSelection(view: ViewOptions, other: ViewOptions): boolean {
  const of = ({ sort, filters, quick }: ViewOptions): string => JSON.stringify([sort, filters, quick]);
  return of(view) === of(other);
}

function filterOf(column: string, filter: ColumnFilter): Filter | null {
  const value = filter.filterType === "date" ? moment(filter.dateFrom) : filter.filter;
  const end = filter.filterType === "date" ? moment(filter.dateTo) : filter.filterTo;
  if (filter.type === "blank") return { column, op: "is_null" };
  if (filter.type === "true" || filter.type === "false") return { column, op: "equals", value: filter.type === "true" };
  if (value === null || value === undefined || value === "") return null;
  switch (filter.type) {
    case "equals":
      return { column, op: "equals", value };
    case "contains":
      return { column, op: "contains", value: String(value) };
    case "startsWith":
      return { column, op: "starts_with", value: String(value) };
    case "<":
    case "lessThan":
      return { column, op: "<", value };
    case ">":
    case "greaterThan":
      return { column, op: ">", value };
    case "between":
    case "inRange":
      return end === null || end === undefined || end === "" ? null : { column, op: "between", value: [value, end] };
    case null:
    case undefined:
    default: // what `columnDefinitions` does not offer
      return null;
  }
}

/** AG Grid's dates are text in the reader's time zone; the server's are in UTC. */
function moment(text: string | null | undefined): string | null {
  return text ? new Date(text.replace(" ", "T")).toISOString() : null;
}
