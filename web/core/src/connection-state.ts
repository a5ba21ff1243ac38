/**
 * A connection's life: immutable states × events in a table that the compiler checks. Pure.
 *
 * idle ─► connecting ─► authenticating ─► open        closed: by the page, at any time
 *             ▲ └──────────────┴───────────┘ │        refused: the server does not take this client or its key;
 *             └──────────── waiting ◄────────┘                 only another key helps
 */
import type { Problem } from "./errors.js";
import type { Welcome } from "./protocol.js";

export const ANSWER_MS = 10_000; // for a connection, and for the answer to a login
export const SILENT_MS = 30_000; // a server that was not heard for so long is gone
export const PROBE_MS = 5_000; // after a sleep it is asked, and given less time
export const FIRST_DELAY_MS = 500;
export const DELAY_MS_MAX = 10_000;

const CLOSE_BAD_LOGIN = 4400;
const CLOSE_WRONG_KEY = 4401;
const CLOSE_WRONG_ROLE = 4403;

export type ConnectionState =
  | { readonly name: "idle" }
  | { readonly name: "connecting"; readonly attempt: number; readonly why: string }
  | { readonly name: "authenticating"; readonly attempt: number; readonly why: string }
  /** `attempt` is 0 once it has lasted: a server that takes everybody and drops them is not to be stormed. */
  | { readonly name: "open"; readonly attempt: number; readonly welcome: Welcome; readonly isProbing: boolean }
  | { readonly name: "waiting"; readonly attempt: number; readonly why: string; readonly delayMs: number }
  | { readonly name: "refused"; readonly problem: Problem }
  | { readonly name: "closed" };

export type ConnectionEvent =
  /** The page wants a connection. */
  | { readonly name: "connect" }
  /** The page wants none. */
  | { readonly name: "close" }
  /** There is another key. */
  | { readonly name: "key" }
  /** The socket is open. */
  | { readonly name: "opened" }
  /** The server has taken the login. */
  | { readonly name: "welcome"; readonly welcome: Welcome }
  /** The server has not taken it. */
  | { readonly name: "refused"; readonly problem: Problem }
  /** The socket is closed, or of no use. */
  | { readonly name: "lost"; readonly code: number; readonly why: string; readonly random: number }
  /** The state's time is over. */
  | { readonly name: "due"; readonly silentMs: number; readonly random: number }
  /** The tab is seen again, or the network is back. */
  | { readonly name: "woke"; readonly asleepMs: number };

/** What is to be done on the way into a state: at most one thing. */
export type Effect = "none" | "open" | "login" | "restore" | "heartbeat" | "resync" | "drop";

export interface Transition {
  readonly state: ConnectionState;
  readonly effect: Effect;
}

export const IDLE: ConnectionState = { name: "idle" };

export function next(state: ConnectionState, event: ConnectionEvent): Transition {
  const react = TABLE[state.name][event.name] as (state: ConnectionState, event: ConnectionEvent) => Transition;
  return react(state, event);
}

/** After how long a state is due; null if it lasts. */
export function dueMs(state: ConnectionState): number | null {
  switch (state.name) {
    case "connecting":
    case "authenticating":
      return ANSWER_MS;
    case "open":
      return state.isProbing ? PROBE_MS : heartbeatMs(state.welcome);
    case "waiting":
      return state.delayMs;
    case "idle":
    case "refused":
    case "closed":
      return null;
  }
}

type StateName = ConnectionState["name"];
type EventName = ConnectionEvent["name"];
type StateOf<S extends StateName> = Extract<ConnectionState, { name: S }>;
type EventOf<E extends EventName> = Extract<ConnectionEvent, { name: E }>;
type Table = {
  readonly [S in StateName]: {
    readonly [E in EventName]: (state: StateOf<S>, event: EventOf<E>) => Transition;
  };
};

const TABLE = {
  idle: {
    connect: begin,
    close: end,
    key: stay,
    opened: stay,
    welcome: stay,
    refused: stay,
    lost: stay,
    due: stay,
    woke: stay,
  },
  connecting: {
    connect: stay,
    close: end,
    key: begin,
    opened: ({ attempt, why }) => ({ state: { name: "authenticating", attempt, why }, effect: "login" }),
    welcome: stay,
    refused: refuse,
    lost: (state, { why, random }) => waiting(state.attempt, why || "the server cannot be reached", random),
    due: (state, { random }) => waiting(state.attempt, "the server does not answer", random),
    woke: stay,
  },
  authenticating: {
    connect: stay,
    close: end,
    key: begin,
    opened: stay,
    welcome: ({ attempt }, { welcome }) => ({
      state: { name: "open", attempt, welcome, isProbing: false },
      effect: "restore",
    }),
    refused: refuse,
    lost: (state, event) => (event.code === CLOSE_BAD_LOGIN ? sendAway(state, event) : waitOrRefuse(state, event)),
    due: (state, { random }) => waiting(state.attempt, "the server does not answer the login", random),
    woke: stay,
  },
  open: {
    connect: stay,
    close: end,
    key: begin,
    opened: stay,
    welcome: stay,
    refused: refuse,
    lost: waitOrRefuse, // a key that is no longer valid would be refused again
    due: (state, { silentMs, random }) =>
      silentMs >= (state.isProbing ? PROBE_MS : SILENT_MS)
        ? waiting(state.attempt, "the server is silent", random)
        : { state: { ...state, attempt: 0, isProbing: false }, effect: "heartbeat" },
    woke: (state, { asleepMs }) =>
      asleepMs >= heartbeatMs(state.welcome)
        ? { state: { ...state, isProbing: true }, effect: "resync" }
        : { state, effect: "none" },
  },
  waiting: {
    connect: stay, // it comes by itself: a page that asks again and again is no reason to hurry
    close: end,
    key: begin,
    opened: stay,
    welcome: stay,
    refused: stay,
    lost: stay,
    due: again,
    woke: again,
  },
  refused: {
    connect: stay,
    close: end,
    key: begin,
    opened: stay,
    welcome: stay,
    refused: stay,
    lost: stay,
    due: stay,
    woke: stay,
  },
  closed: {
    connect: begin,
    close: stay,
    key: stay,
    opened: stay,
    welcome: stay,
    refused: stay,
    lost: stay,
    due: stay,
    woke: stay,
  },
} satisfies Table;

function stay(state: ConnectionState): Transition {
  return { state, effect: "none" };
}

function begin(): Transition {
  return { state: { name: "connecting", attempt: 0, why: "connecting to the server" }, effect: "open" };
}

function again({ attempt, why }: StateOf<"waiting">): Transition {
  return { state: { name: "connecting", attempt, why }, effect: "open" };
}

function end(): Transition {
  return { state: { name: "closed" }, effect: "drop" };
}

function refuse(_: ConnectionState, { problem }: EventOf<"refused">): Transition {
  return { state: { name: "refused", problem }, effect: "drop" };
}

function sendAway(state: ConnectionState, { code, why }: EventOf<"lost">): Transition {
  return refuse(state, { name: "refused", problem: refusal(code, why) });
}

function waitOrRefuse(state: StateOf<"authenticating" | "open">, event: EventOf<"lost">): Transition {
  return event.code === CLOSE_WRONG_KEY || event.code === CLOSE_WRONG_ROLE
    ? sendAway(state, event)
    : wait(state, event);
}

function wait({ attempt }: { readonly attempt: number }, { why, random }: EventOf<"lost">): Transition {
  return waiting(attempt, why || "the connection to the server is lost", random);
}

/** Wait longer after each attempt, and never all clients alike. */
function waiting(attempt: number, why: string, random: number): Transition {
  const delayMs = Math.min(DELAY_MS_MAX, FIRST_DELAY_MS * 2 ** attempt) * (0.5 + random / 2);
  return { state: { name: "waiting", attempt: attempt + 1, why, delayMs }, effect: "drop" };
}

/** For a server that closes without a reason; others have sent one before. */
function refusal(closeCode: number, why: string): Problem {
  if (closeCode === CLOSE_WRONG_ROLE) {
    return {
      code: "forbidden",
      problem: why || "the key's role may not read tables",
      cure: "log in with a viewer's or an operator's key",
    };
  }
  return closeCode === CLOSE_WRONG_KEY
    ? {
        code: "unauthorized",
        problem: why || "the key is wrong",
        cure: "log in with the key that the server was started with",
      }
    : {
        code: "unsupported_protocol",
        problem: why || "the server does not understand this client",
        cure: "reload the page, or install the client of the server's version",
      };
}

function heartbeatMs(welcome: Welcome): number {
  return welcome.heartbeat_seconds * 1000;
}
