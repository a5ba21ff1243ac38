/** The types of columns: everything that differs between them in a browser is described here once. Pure. */

export interface ColumnKind {
  readonly values: "text" | "number" | "bool" | "time"; // how cells are aligned, written and filtered
  readonly isWhole?: true; // numbers of 64 bits, of which JavaScript has some as digits only
  readonly width: number; // px that a grid gives its cells at least
  readonly grow: number; // its share of the space that is left
}

const KINDS = {
  string: { values: "text", width: 80, grow: 3 },
  int64: { values: "number", isWhole: true, width: 56, grow: 1 },
  double: { values: "number", width: 84, grow: 2 },
  bool: { values: "bool", width: 64, grow: 1 },
  timestamp: { values: "time", width: 114, grow: 3 },
} as const satisfies Readonly<Record<string, ColumnKind>>;

export type ColumnType = keyof typeof KINDS;

/** What a type is like. A type that this client does not know yet, from a newer server, is shown as text. */
export function columnKind(type: ColumnType): ColumnKind {
  return Object.hasOwn(KINDS, type) ? KINDS[type] : KINDS.string;
}
