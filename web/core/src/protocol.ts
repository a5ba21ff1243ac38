/**
 * What goes over the WebSocket, as values and text, version 1. Pure.
 *
 * docs/PROTOCOL.md describes it for people, and tests/golden has an example of every frame, which the tests of this
 * client and of the server read alike. Fields keep the wire's names.
 */
import type { ColumnType } from "./columns.js";
import { LivetablesError } from "./errors.js";
import type { Problem } from "./errors.js";

export const PROTOCOL = 1;

/** A cell. An int64 beyond ±(2^53-1) is its digits as text; a double may be the text NaN, Infinity or -Infinity. */
export type Value = string | number | boolean | null;

export interface Column {
  readonly name: string;
  readonly type: ColumnType;
}

export interface Sort {
  readonly column: string;
  readonly descending?: boolean | undefined;
}

/** Keeps the rows whose column passes. A missing value passes `is_null` and nothing else. */
export type Filter =
  | { readonly column: string; readonly op: "is_null" }
  | {
      readonly column: string;
      readonly op: "equals" | "contains" | "starts_with" | "<" | ">";
      readonly value: string | number | boolean;
    }
  | {
      readonly column: string;
      readonly op: "between" | "in";
      readonly value: readonly (string | number | boolean)[];
    };

/** What of a table to look at. All of it may be left out: all columns, arrival order, no filter, the first 300 rows. */
export interface ViewOptions {
  readonly columns?: readonly string[] | null | undefined;
  readonly sort?: readonly Sort[] | undefined;
  readonly filters?: readonly Filter[] | undefined;
  /** Text to be found in any column. */
  readonly quick?: string | undefined;
  readonly offset?: number | undefined;
  readonly size?: number | undefined;
  /** The least time between two frames, 10 or more; 50 unless given. It stays when the view looks elsewhere. */
  readonly interval_ms?: number | null | undefined;
}

// From the client

export interface Hello {
  readonly type: "hello";
  readonly protocol: number;
  readonly token: string;
}

export interface Subscribe {
  readonly type: "subscribe";
  readonly sub: number;
  readonly table: string;
  readonly view: ViewOptions;
  readonly revision: number;
  readonly format: "json";
  /** Whether data frames are to have a checksum; a server that sends no `time` does not know the field. */
  readonly checksum?: true;
}

export interface SetView extends Omit<ViewOptions, "interval_ms"> {
  readonly type: "set";
  readonly sub: number;
  readonly revision: number;
}

/** Why a whole window is asked for: a patch did not follow, or its checksum is another one. */
export type ResyncReason = "gap" | "checksum";

export interface Resync {
  readonly type: "resync";
  readonly sub: number;
  readonly reason?: ResyncReason;
}

export interface Unsubscribe {
  readonly type: "unsubscribe";
  readonly sub: number;
}

export interface Heartbeat {
  readonly type: "heartbeat";
}

export type ClientFrame = Hello | Subscribe | SetView | Resync | Unsubscribe | Heartbeat;

// From the server

export interface Limits {
  readonly frame_bytes: number;
  readonly subscriptions: number;
  readonly window_rows: number;
  readonly text_characters: number;
  readonly filters: number;
  readonly in_values: number;
  readonly sorts: number;
}

/** What a key may do: a viewer reads, an operator also sends control messages. */
export type Role = "viewer" | "operator";

export interface Welcome {
  readonly type: "hello";
  readonly protocol: number;
  readonly server: string;
  /** Of the key that logged in; an older server does not send it, and lets everybody do everything. */
  readonly role?: Role;
  /** The server's clock when it answered; an older server does not send it, and has no checksums. */
  readonly time?: string;
  readonly tables: readonly string[];
  readonly heartbeat_seconds: number;
  readonly idle_seconds: number;
  readonly limits: Limits;
}

export type FreshnessState = "starting" | "live" | "idle" | "catching_up" | "failed" | "pipeline_down";

export interface SourceStatus {
  readonly table: string;
  readonly topic: string;
  readonly lag_records: number;
  readonly newest: string | null;
}

/** Why data is old, or that it is not. */
export interface Status {
  readonly type: "status";
  readonly state: FreshnessState;
  readonly message: string;
  readonly pipeline_seen: string | null;
  /** Where Spark's own pages are, if the pipeline has them on; an older server does not send it. */
  readonly spark_ui?: string | null;
  readonly sources: readonly SourceStatus[];
}

interface DataFrame {
  readonly sub: number;
  readonly revision: number;
  readonly table: string;
  readonly generation: string;
  readonly sequence: number;
  /** The latest event time in the table. */
  readonly newest: string | null;
}

/** When the newest record of a frame was where, in ms since 1970 by the clocks of those who measured. */
export interface Receipt {
  /** In Kafka. */
  readonly kafka: number;
  /** Out of Spark. */
  readonly spark: number;
  /** Applied by the server. */
  readonly applied: number;
  /** In this frame. */
  readonly sent: number;
}

/** What a frame has beside its rows. An older server sends none of it. */
interface RowsFrame extends DataFrame {
  /** Null if no record caused the frame: a first window, a resync, another range, a swap. */
  readonly receipt?: Receipt | null;
  /** A sentence for people, while the server limits this view. */
  readonly hint?: string;
  /** Of the window after the frame, see checksum.ts. */
  readonly checksum?: string;
}

export interface Schema extends DataFrame {
  readonly type: "schema";
  readonly columns: readonly Column[];
}

export interface Snapshot extends RowsFrame {
  readonly type: "snapshot";
  readonly offset: number;
  readonly total: number;
  readonly ids: readonly number[];
  readonly rows: readonly (readonly Value[])[];
}

export interface Patch extends RowsFrame {
  readonly type: "patch";
  readonly total: number;
  readonly removed: readonly number[];
  readonly inserted: readonly (readonly [position: number, id: number, values: readonly Value[]])[];
  readonly updated: readonly (readonly [position: number, column: number, value: Value])[];
}

export interface Rebound extends DataFrame {
  readonly type: "rebound";
  readonly before: string;
}

export interface ServerHeartbeat {
  readonly type: "heartbeat";
  readonly time: string;
}

export interface ErrorFrame extends Problem {
  readonly type: "error";
  readonly sub?: number;
}

/** Frames about one subscription. */
export type SubscriptionFrame = Schema | Snapshot | Patch | Rebound | (ErrorFrame & { readonly sub: number });
export type ServerFrame = Welcome | Status | Schema | Snapshot | Patch | Rebound | ServerHeartbeat | ErrorFrame;

export function encode(frame: ClientFrame): string {
  return JSON.stringify(frame);
}

/**
 * A frame from the server. Undefined for a kind that this client does not know: a newer server may have more kinds.
 * What is no frame at all, or lacks a field, is a LivetablesError.
 */
export function decode(text: unknown): ServerFrame | undefined {
  const frame = parsed(text);
  const type = frame["type"];
  if (typeof type !== "string") throw notAFrame("it has no type");
  if (!isKnown(type)) return undefined;
  for (const [field, fits] of Object.entries(FIELDS[type])) {
    if (!fits(frame[field])) throw notAFrame(`${type} has no fitting ${field}`);
  }
  if (type === "snapshot" && (frame["ids"] as unknown[]).length !== (frame["rows"] as unknown[]).length) {
    throw notAFrame("snapshot has not one id for each row");
  }
  return frame as unknown as ServerFrame;
}

type Check = (value: unknown) => boolean;

const isText: Check = (value) => typeof value === "string";
const isTextOrNull: Check = (value) => value === null || typeof value === "string";
const isNumber: Check = (value) => typeof value === "number";
const isList: Check = (value) => Array.isArray(value);
const isObject: Check = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isTextIfGiven: Check = (value) => value === undefined || typeof value === "string";
const isTextOrNullIfGiven: Check = (value) => value === undefined || isTextOrNull(value);
const isNumberIfGiven: Check = (value) => value === undefined || typeof value === "number";

const isReceiptIfGiven: Check = (value) =>
  value === undefined ||
  value === null ||
  RECEIPT.every((phase) => Number.isFinite((value as Partial<Receipt>)[phase]));
const RECEIPT = ["kafka", "spark", "applied", "sent"] as const satisfies (keyof Receipt)[];

const HEADING = {
  sub: isNumber,
  revision: isNumber,
  table: isText,
  generation: isText,
  sequence: isNumber,
  newest: isTextOrNull,
};

const ROWS_HEADING = {
  ...HEADING,
  receipt: isReceiptIfGiven,
  hint: isTextIfGiven,
  checksum: isTextIfGiven,
};

// Cells are not looked at: ten thousand rows are to be shown, not inspected.
const FIELDS = {
  hello: {
    protocol: isNumber,
    server: isText,
    role: isTextIfGiven,
    time: isTextIfGiven,
    tables: isList,
    heartbeat_seconds: isNumber,
    limits: isObject,
  },
  status: {
    state: isText,
    message: isText,
    pipeline_seen: isTextOrNull,
    spark_ui: isTextOrNullIfGiven,
    sources: isList,
  },
  schema: { ...HEADING, columns: isList },
  snapshot: { ...ROWS_HEADING, offset: isNumber, total: isNumber, ids: isList, rows: isList },
  patch: { ...ROWS_HEADING, total: isNumber, removed: isList, inserted: isList, updated: isList },
  rebound: { ...HEADING, before: isText },
  heartbeat: { time: isText },
  error: { sub: isNumberIfGiven, code: isText, problem: isText, cure: isText },
} satisfies Record<ServerFrame["type"], Record<string, Check>>;

function isKnown(type: string): type is ServerFrame["type"] {
  return Object.hasOwn(FIELDS, type);
}

function parsed(text: unknown): Record<string, unknown> {
  if (typeof text !== "string") throw notAFrame("it is not text");
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw notAFrame("it is not JSON");
  }
  if (!isObject(value)) throw notAFrame("it is not an object");
  return value as Record<string, unknown>;
}

function notAFrame(why: string): LivetablesError {
  return new LivetablesError({
    code: "bad_frame",
    problem: `the server sent what is no frame: ${why}`,
    cure: "check that the address is that of a livetables server, and reload the page if the server is newer than it",
  });
}
