/** Frames as the server makes them. */
import type { Column, Patch, Rebound, Schema, Snapshot, Status, Value, Welcome } from "../../src/protocol.js";

export const WELCOME: Welcome = {
  type: "hello",
  protocol: 1,
  server: "0.1.0",
  role: "operator",
  time: "1970-01-01T00:16:40.000Z", // when the clock of FakeSurroundings starts
  tables: ["users_ui"],
  heartbeat_seconds: 10,
  idle_seconds: 180,
  limits: {
    frame_bytes: 65_536,
    subscriptions: 64,
    window_rows: 10_001,
    text_characters: 1_000,
    filters: 32,
    in_values: 1_000,
    sorts: 8,
  },
};

export const COLUMNS: readonly Column[] = [
  { name: "name", type: "string" },
  { name: "age", type: "int64" },
];

export function status(state: Status["state"], message = state as string): Status {
  return { type: "status", state, message, pipeline_seen: null, sources: [] };
}

interface About {
  readonly sub?: number;
  readonly revision?: number;
  readonly generation?: string;
  readonly sequence?: number;
}

function heading({ sub = 0, revision = 0, generation = "g1", sequence = 1 }: About) {
  return { sub, revision, table: "users_ui", generation, sequence, newest: null };
}

export function schema(about: About = {}, columns = COLUMNS): Schema {
  return { type: "schema", ...heading(about), columns };
}

export function snapshot(rows: readonly (readonly Value[])[], about: About = {}): Snapshot {
  const ids = rows.map((_, index) => index);
  return { type: "snapshot", ...heading(about), offset: 0, total: rows.length, ids, rows };
}

export function patch(change: Partial<Omit<Patch, "type">>, about: About): Patch {
  return { type: "patch", ...heading(about), total: 0, removed: [], inserted: [], updated: [], ...change };
}

export function rebound(before: string, about: About): Rebound {
  return { type: "rebound", ...heading(about), before };
}

export function error(code: string, sub?: number): Record<string, unknown> {
  return { ...(sub === undefined ? {} : { sub }), type: "error", code, problem: `problem: ${code}`, cure: "fix it" };
}
