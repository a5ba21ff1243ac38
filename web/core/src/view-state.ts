/** How it is with one view of a table, for whoever looks at it: what a grid shows of itself. Pure. */
import type { Problem } from "./errors.js";
import type { Health } from "./health.js";
import type { Window } from "./window.js";

export interface ViewState {
  /**
   * live: rows are current. limited: they are, as far as the server lets them. stale: they come, but are old.
   * connecting: there is no connection yet. loading: there is one, rows are still to come. reconnecting: rows are shown,
   * and the connection they came by is lost. refused: the server does not take this client or its key.
   * failed: the server cannot show this view, like one of a table that is not there. closed: the page wants no connection.
   */
  readonly name:
    "live" | "limited" | "stale" | "connecting" | "loading" | "reconnecting" | "refused" | "failed" | "closed";
  /** A sentence for people; empty when live. */
  readonly why: string;
  /** Whether there are rows to show, current or not; also those of an empty table. */
  readonly hasWindow: boolean;
}

/** `window` is what is shown, `problem` why nothing newer is. */
export function viewState(health: Health, problem: Problem | null, window: Window | null): ViewState {
  const hasWindow = window !== null;
  switch (health.state) {
    case "refused":
    case "closed":
      return { name: health.state, why: health.why, hasWindow };
    case "reconnecting":
      return { name: hasWindow ? "reconnecting" : "connecting", why: health.why, hasWindow };
    case "stale":
    case "live":
      if (problem) return { name: "failed", why: `${problem.problem}: ${problem.cure}`, hasWindow };
      if (health.state === "stale") return { name: "stale", why: health.why, hasWindow };
      if (!window) return { name: "loading", why: "waiting for the first rows", hasWindow };
      return window.hint === null
        ? { name: "live", why: "", hasWindow }
        : { name: "limited", why: window.hint, hasWindow };
  }
}

export function isSameState(state: ViewState, other: ViewState): boolean {
  return state.name === other.name && state.why === other.why && state.hasWindow === other.hasWindow;
}
