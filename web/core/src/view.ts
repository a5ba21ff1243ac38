/** What somebody looks at, with nothing left out: two views are one viewport if all of it is the same. Pure. */
import type { Problem } from "./errors.js";
import type { Filter, ViewOptions } from "./protocol.js";

export const PAGE_ROWS = 300;

export interface View {
  /** Null means all. */
  readonly columns: readonly string[] | null;
  readonly sort: readonly { readonly column: string; readonly descending: boolean }[];
  readonly filters: readonly Filter[];
  readonly quick: string;
  readonly offset: number;
  readonly size: number;
  /** Null: as the server has it. */
  readonly interval_ms: number | null;
}

export function viewOf(options: ViewOptions): View {
  return {
    columns: options.columns ? [...options.columns] : null,
    sort: (options.sort ?? []).map(({ column, descending }) => ({ column, descending: descending ?? false })),
    filters: (options.filters ?? []).map((filter) =>
      filter.op === "is_null"
        ? { column: filter.column, op: filter.op }
        : ({ column: filter.column, op: filter.op, value: filter.value } as Filter),
    ),
    quick: options.quick ?? "",
    offset: options.offset ?? 0,
    size: options.size ?? PAGE_ROWS,
    interval_ms: options.interval_ms ?? null,
  };
}

/** Return why a server that gives so many rows at once does not give this view; null if it does. */
export function sizeProblem({ size }: View, rowsMax: number | null): Problem | null {
  if (rowsMax === null || size <= rowsMax) return null;
  return {
    code: "limit",
    problem: `${size.toLocaleString("en")} rows are too many: the server gives ${rowsMax.toLocaleString("en")} at once`,
    cure: "ask for fewer rows, or for a page of them by offset and size",
  };
}

/** The same text for the same table and view. */
export function viewKey(table: string, view: View): string {
  const { columns, sort, filters, quick, offset, size, interval_ms } = view;
  return JSON.stringify([table, columns, sort, filters, quick, offset, size, interval_ms]);
}
