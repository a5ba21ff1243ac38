/** What somebody looks at, with nothing left out: two views are one viewport if all of it is the same. Pure. */
import type { Problem } from "./errors.js";
import type { Filter, Limits, ViewOptions } from "./protocol.js";

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

/** Return why a server with these limits does not take this view; null if it does. */
export function viewProblem(view: View, limits: Limits): Problem | null {
  const { offset, size, interval_ms: interval, quick, sort, filters } = view;
  const isInterval = interval === null || (isWhole(interval) && interval >= 10 && interval <= 10_000);
  if (!isWhole(offset) || !isWhole(size))
    return invalid(`offset ${offset} and size ${size}`, "whole numbers from 0 on");
  if (!isInterval) return invalid(`interval_ms ${interval}`, "a whole number from 10 to 10,000");
  const { window_rows, text_characters, sorts } = limits;
  if (size > window_rows) {
    return over(
      `${count(size)} rows are too many: the server gives ${count(window_rows)} at once`,
      "ask for fewer rows, or for a page of them by offset and size",
    );
  }
  if (characters(quick) > text_characters) {
    return over("the text to be found is too long", `give at most ${count(text_characters)} characters`);
  }
  if (sort.length > sorts) return over("too many columns are sorted by", `sort by at most ${sorts}`);
  if (filters.length > limits.filters) return over("there are too many filters", `give at most ${limits.filters}`);
  return null;
}

function isWhole(value: number): boolean {
  return Number.isSafeInteger(value) && value >= 0;
}

/** As the server counts them. */
function characters(text: string): number {
  return Array.from(text).length;
}

function count(value: number): string {
  return value.toLocaleString("en");
}

function invalid(what: string, wanted: string): Problem {
  return { code: "bad_frame", problem: `${what} cannot be had`, cure: `give ${wanted}` };
}

function over(problem: string, cure: string): Problem {
  return { code: "limit", problem, cure };
}

/** The same text for the same table and view. */
export function viewKey(table: string, view: View): string {
  const { columns, sort, filters, quick, offset, size, interval_ms } = view;
  return JSON.stringify([table, columns, sort, filters, quick, offset, size, interval_ms]);
}
