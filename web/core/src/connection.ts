/** The shell around connection-state.ts: a socket, a timer, and the frames that come and go. */
import { best, measured } from "./clock.js";
import type { ClockDifference } from "./clock.js";
import { dueMs, IDLE, next } from "./connection-state.js";
import type { ConnectionEvent, ConnectionState, Effect } from "./connection-state.js";
import { LivetablesError } from "./errors.js";
import { decode, encode, PROTOCOL } from "./protocol.js";
import type { ErrorFrame, Limits, ServerFrame } from "./protocol.js";
import type { Socket, SocketEvent, Surroundings } from "./surroundings.js";

const CLOSE_ABNORMAL = 1006;
const UNPROMPTED_MS = 10_000; // after so long a silence a server sends a heartbeat that is no answer

/** The events of a connection. */
export interface ConnectionListener {
  /** The server takes frames, and knows nothing of this client yet. */
  restore(): void;
  /** The page was asleep. */
  resync(): void;
  frame(frame: ServerFrame): void;
  state(state: ConnectionState): void;
}

export class Connection {
  readonly #url: string;
  readonly #surroundings: Surroundings;
  readonly #listener: ConnectionListener;
  #token: string;
  #state = IDLE;
  #socket: Socket | null = null;
  #heardAt = 0;
  /** When the server was asked something that it answers with its time; null once it has. */
  #askedAt: number | null = null;
  #measurements: readonly ClockDifference[] = [];
  #cancelTimer: (() => void) | null = null;
  #stopWatching: (() => void) | null = null;
  readonly #events: ConnectionEvent[] = [];
  #isStepping = false;

  constructor(url: string, token: string, surroundings: Surroundings, listener: ConnectionListener) {
    this.#url = url;
    this.#token = token;
    this.#surroundings = surroundings;
    this.#listener = listener;
  }

  get state(): ConnectionState {
    return this.#state;
  }

  /** The server's; null while it takes no frames. */
  get limits(): Limits | null {
    return this.#state.name === "open" ? this.#state.welcome.limits : null;
  }

  /** A server that sends its time with the hello. */
  get hasChecksums(): boolean {
    return this.#state.name === "open" && this.#state.welcome.time !== undefined;
  }

  /** Null until the server has sent its time. */
  get clockDifference(): ClockDifference | null {
    return best(this.#measurements);
  }

  /** The time by the server's clock. */
  now(): number {
    return this.#surroundings.now() + (this.clockDifference?.aheadMs ?? 0);
  }

  connect(): void {
    this.#happened({ name: "connect" });
  }

  close(): void {
    this.#happened({ name: "close" });
  }

  useKey(token: string): void {
    this.#token = token;
    this.#happened({ name: "key" });
  }

  /** Only while it is open: what has to outlast it is sent again by `restore`. */
  send(text: string): void {
    if (this.#state.name === "open") this.#socket?.send(text);
  }

  /** Events that happen on the way of another come after it. */
  #happened(event: ConnectionEvent): void {
    this.#events.push(event);
    if (this.#isStepping) return;
    this.#isStepping = true;
    try {
      for (let each = this.#events.shift(); each; each = this.#events.shift()) this.#step(each);
    } finally {
      this.#isStepping = false;
    }
  }

  #step(event: ConnectionEvent): void {
    const before = this.#state;
    const { state, effect } = next(before, event);
    this.#state = state;
    if (state !== before) {
      this.#setTimer();
      this.#watch();
    }
    this.#take(effect);
    if (state !== before) this.#listener.state(state);
  }

  #take(effect: Effect): void {
    switch (effect) {
      case "none":
        break;
      case "open":
        this.#drop();
        this.#open();
        break;
      case "login":
        this.#measurements = []; // it may be another server
        this.#askedAt = this.#surroundings.now();
        this.#socket?.send(encode({ type: "hello", protocol: PROTOCOL, token: this.#token }));
        break;
      case "restore":
        this.#listener.restore();
        break;
      case "heartbeat": {
        const now = this.#surroundings.now();
        this.#askedAt = now - this.#heardAt < UNPROMPTED_MS / 2 ? now : null;
        this.send(encode({ type: "heartbeat" }));
        break;
      }
      case "resync":
        this.#heardAt = this.#surroundings.now(); // what counts is an answer from now on
        this.#askedAt = null;
        this.send(encode({ type: "heartbeat" }));
        this.#listener.resync();
        break;
      case "drop":
        this.#drop();
        break;
    }
  }

  #measure(time: string): void {
    if (this.#askedAt === null) return;
    this.#measurements = measured(this.#measurements, this.#askedAt, this.#heardAt, time);
    this.#askedAt = null;
  }

  #open(): void {
    let socket: Socket;
    try {
      socket = this.#surroundings.connect(this.#url);
    } catch (error) {
      this.#lost(CLOSE_ABNORMAL, error instanceof Error ? error.message : String(error));
      return;
    }
    this.#socket = socket;
    // A socket that was dropped may still have events, which are ignored.
    const whileInUse = (handle: (event: SocketEvent) => void) => (event: SocketEvent) => {
      if (socket === this.#socket) handle(event);
    };
    socket.addEventListener(
      "open",
      whileInUse(() => {
        this.#happened({ name: "opened" });
      }),
    );
    socket.addEventListener(
      "message",
      whileInUse(({ data }) => {
        this.#received(data);
      }),
    );
    socket.addEventListener(
      "close",
      whileInUse(({ code, reason }) => {
        this.#lost(code ?? CLOSE_ABNORMAL, reason ?? "");
      }),
    );
    socket.addEventListener("error", () => undefined); // a close follows; `ws` wants to have it heard
  }

  #drop(): void {
    const socket = this.#socket;
    this.#socket = null;
    try {
      socket?.close(1000);
    } catch {
      // It is gone either way.
    }
  }

  #lost(code: number, why: string): void {
    this.#happened({ name: "lost", code, why, random: this.#surroundings.random() });
  }

  #received(data: unknown): void {
    this.#heardAt = this.#surroundings.now();
    let frame: ServerFrame | undefined;
    try {
      frame = decode(data);
    } catch (error) {
      this.#lost(CLOSE_ABNORMAL, error instanceof LivetablesError ? error.problem : String(error));
      return;
    }
    if (!frame) return;
    if ((frame.type === "hello" || frame.type === "heartbeat") && frame.time !== undefined) this.#measure(frame.time);
    if (frame.type === "hello") this.#happened({ name: "welcome", welcome: frame });
    else if (frame.type === "error" && isRefusal(frame)) this.#happened({ name: "refused", problem: problemOf(frame) });
    else if (this.#state.name === "open") this.#listener.frame(frame);
  }

  #setTimer(): void {
    this.#cancelTimer?.();
    const ms = dueMs(this.#state);
    this.#cancelTimer =
      ms === null
        ? null
        : this.#surroundings.later(() => {
            const silentMs = this.#surroundings.now() - this.#heardAt;
            this.#happened({ name: "due", silentMs, random: this.#surroundings.random() });
          }, ms);
  }

  /** A page that wants no connection does not want to be woken for one. */
  #watch(): void {
    const isWanted = !["idle", "refused", "closed"].includes(this.#state.name);
    if (isWanted) {
      this.#stopWatching ??= this.#surroundings.onWake((asleepMs) => {
        this.#happened({ name: "woke", asleepMs });
      });
    } else {
      this.#stopWatching?.();
      this.#stopWatching = null;
    }
  }
}

function isRefusal({ code, sub }: ErrorFrame): boolean {
  return sub === undefined && ["unauthorized", "forbidden", "unsupported_protocol"].includes(code);
}

function problemOf({ code, problem, cure }: ErrorFrame): { code: string; problem: string; cure: string } {
  return { code, problem, cure };
}
