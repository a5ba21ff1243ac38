/** A window of a table as a page shows it, and how snapshots and patches change it. Pure: every change is a new value. */
import type { Column, Patch, Snapshot, Value } from "./protocol.js";

/** A row by column names. `_row` identifies a row for as long as its generation lives. */
export interface Row {
  readonly _row: number;
  readonly [column: string]: Value;
}

export interface Window {
  readonly table: string;
  readonly generation: string;
  readonly sequence: number;
  /** The latest event time in the table. */
  readonly newest: string | null;
  /** The same array until the columns change. */
  readonly columns: readonly Column[];
  readonly offset: number;
  /** How many rows pass the filters in the whole table. */
  readonly total: number;
  /** A sentence for people while the server limits this view: there may be fewer rows than asked for, or older ones. */
  readonly hint: string | null;
  /** A row that a patch did not touch is the same object as before. */
  readonly rows: readonly Row[];
}

/** Whether columns are the same ones, in the same order. */
export function areSame(columns: readonly Column[], others: readonly Column[]): boolean {
  return (
    columns.length === others.length &&
    columns.every(({ name, type }, index) => name === others[index]?.name && type === others[index].type)
  );
}

export function shown(frame: Snapshot, columns: readonly Column[]): Window {
  return {
    table: frame.table,
    generation: frame.generation,
    sequence: frame.sequence,
    newest: frame.newest,
    columns,
    offset: frame.offset,
    total: frame.total,
    hint: frame.hint ?? null,
    rows: frame.ids.map((id, index) => row(id, frame.rows[index] ?? [], columns)),
  };
}

/** The window after a patch; undefined if the patch does not follow it, and the whole window must be asked for. */
export function patched(window: Window, frame: Patch): Window | undefined {
  if (frame.generation !== window.generation || frame.sequence !== window.sequence + 1) return undefined;
  const rows = merged(window, frame);
  if (!rows) return undefined;
  for (const [position, column, value] of frame.updated) {
    const before = rows[position];
    const name = window.columns[column]?.name;
    if (!before || name === undefined) return undefined;
    rows[position] = { ...before, [name]: value };
  }
  const { sequence, newest, total, hint = null } = frame;
  return { ...window, sequence, newest, total, hint, rows };
}

/** The rows that stay, in their order, with the inserted ones between them: in one pass, however many there are. */
function merged(window: Window, { removed, inserted }: Patch): Row[] | undefined {
  const gone = new Set(removed);
  if (removed.some((position) => !(position in window.rows))) return undefined;
  const staying = gone.size === 0 ? window.rows : window.rows.filter((_, position) => !gone.has(position));
  if (inserted.length === 0) return [...staying];
  const rows: Row[] = [];
  let next = 0; // of those that stay
  for (const [position, id, values] of inserted) {
    const until = next + position - rows.length;
    if (until < next || until > staying.length) return undefined;
    for (const kept of staying.slice(next, until)) rows.push(kept);
    next = until;
    rows.push(row(id, values, window.columns));
  }
  for (const kept of staying.slice(next)) rows.push(kept);
  return rows;
}

function row(id: number, values: readonly Value[], columns: readonly Column[]): Row {
  const made: Record<string, Value> & { _row: number } = { _row: id };
  columns.forEach(({ name }, index) => {
    made[name] = values[index] ?? null;
  });
  return made;
}
