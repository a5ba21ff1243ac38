/** The Kafka records behind a row, from the ids that it carries. Pure. */
import type { Row, SourceStatus, Value } from "@livetables/angular";

/** An id packs partition and offset: so many bits are the offset. */
const OFFSET_BITS = 44n;

export interface BehindRecord {
  /** The table as views and control messages call it, or as readers do. */
  readonly table: string;
  readonly topic: string | null;
  /** None: the row has no record on this side. */
  readonly position: { readonly partition: string; readonly offset: string } | null;
  readonly time: string | null;
}

export function recordsBehind(
  table: string,
  row: Row,
  sources: readonly SourceStatus[],
  pointed: Row | undefined,
): BehindRecord[] {
  if ("_id" in row && "ts" in row) {
    const topic = sources.find((source) => source.table === table)?.topic ?? null;
    return [{ table, topic, position: positionOf(row["_id"]), time: timeOf(row["ts"]) }];
  }
  if (!("_left_id" in row && "_right_id" in row)) return [];
  // A view ends with the times of both its records, each called after its table; internal ones begin with an underscore.
  const times = Object.keys(row).filter((name) => name.endsWith("_ts"));
  return [row["_left_id"], row["_right_id"]].map((id, side) => {
    const time = times.at(side - 2) ?? "";
    const name = time.slice(0, -"_ts".length).replace(/^_/, "");
    const topic = pointed?.[`${name}Topic`];
    return {
      table: name,
      topic: typeof topic === "string" ? topic : null,
      position: positionOf(id),
      time: timeOf(row[time]),
    };
  });
}

function positionOf(id: Value | undefined): BehindRecord["position"] {
  if (typeof id !== "number" && typeof id !== "string") return null;
  const whole = BigInt(id);
  return { partition: String(whole >> OFFSET_BITS), offset: String(whole & ((1n << OFFSET_BITS) - 1n)) };
}

function timeOf(value: Value | undefined): string | null {
  return typeof value === "string" ? value : null;
}
