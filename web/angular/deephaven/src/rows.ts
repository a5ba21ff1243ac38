/** Columns and rows in the forms that pages written for Deephaven know. Pure. */
import type { Column, ColumnType, Row, Value } from "@livetables/client";

/** Whether it is livetables' own, like the ids and times of the records of a row: no column of the page's. */
const isInternal = (name: string): boolean => name.startsWith("_");

const TYPES = {
  string: "java.lang.String",
  int64: "long",
  double: "double",
  bool: "java.lang.Boolean",
  timestamp: "java.time.Instant",
} satisfies Record<ColumnType, string>;

export interface DhColumn {
  readonly name: string;
  /** As Deephaven names it: `java.lang.String`, `long`, `double`, `java.lang.Boolean`, `java.time.Instant`. */
  readonly type: string;
  /** Its place among the table's columns. */
  readonly index: number;
}

/** A row by column names. */
export type NamedRow = Readonly<Record<string, Value>>;

/** Takes rows, of the type that the page declares. */
export type OnRows<T> = (rows: T[]) => void;

/** The page's columns; the same objects for the same columns. */
export function columnsOf(columns: readonly Column[]): readonly DhColumn[] {
  const known = SHOWN_COLUMNS.get(columns);
  if (known) return known;
  const shown = columns
    .filter(({ name }) => !isInternal(name))
    .map(({ name, type }, index) => ({ name, type: TYPES[type], index }));
  SHOWN_COLUMNS.set(columns, shown);
  return shown;
}

/** A row's values in the order of the columns. */
export function cellsOf(row: Row, columns: readonly DhColumn[]): Value[] {
  return columns.map(({ name }) => row[name] ?? null);
}

/** A row with the page's columns only; the same object for the same row. */
export function namedRow(row: Row): NamedRow {
  const known = NAMED_ROWS.get(row);
  if (known) return known;
  const named = Object.fromEntries(Object.entries(row).filter(([name]) => !isInternal(name)));
  NAMED_ROWS.set(row, named);
  return named;
}

const SHOWN_COLUMNS = new WeakMap<readonly Column[], readonly DhColumn[]>();
const NAMED_ROWS = new WeakMap<Row, NamedRow>();
