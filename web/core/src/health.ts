/** How current the rows in view are, and why they are not: what a page shows beside its tables. Pure. */
import type { ConnectionState } from "./connection-state.js";
import type { FreshnessState, Status } from "./protocol.js";

export interface Health {
  /**
   * live: rows are current. stale: they come, but are old. reconnecting: there is no connection, and there will be.
   * refused: the server does not take this client or its key. closed: the page wants no connection.
   */
  readonly state: "live" | "stale" | "reconnecting" | "refused" | "closed";
  /** A sentence for people. */
  readonly why: string;
}

const IS_CURRENT = {
  live: true,
  idle: true,
  starting: false,
  catching_up: false,
  failed: false,
  pipeline_down: false,
} satisfies Record<FreshnessState, boolean>;

/** `status` is the server's last report since the connection is open. */
export function health(connection: ConnectionState, status: Status | null): Health {
  switch (connection.name) {
    case "idle":
    case "closed":
      return { state: "closed", why: "not connected" };
    case "refused":
      return { state: "refused", why: connection.problem.problem };
    case "connecting":
    case "authenticating":
    case "waiting":
      return { state: "reconnecting", why: connection.why };
    case "open":
      if (!status) return { state: "reconnecting", why: "waiting for the server's first status" };
      return { state: IS_CURRENT[status.state] ? "live" : "stale", why: status.message };
  }
}

/** Whether a table that is not there may come by itself: nothing serves yet. */
export function mayAppear(status: Status | null): boolean {
  return status === null || status.state === "starting" || status.state === "pipeline_down";
}
