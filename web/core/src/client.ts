/** Everything a page needs of a livetables server, over one socket. */
import { LiveTableAdapter } from "./adapter.js";
import type { AdapterOptions, RowsCallback } from "./adapter.js";
import type { ClockDifference } from "./clock.js";
import { Connection } from "./connection.js";
import type { ConnectionState } from "./connection-state.js";
import { LivetablesError } from "./errors.js";
import type { Problem } from "./errors.js";
import { TableHandle } from "./handle.js";
import { health, mayAppear } from "./health.js";
import type { Health } from "./health.js";
import { UnansweredError, answer, json, messageId, request } from "./http.js";
import type { ControlReceipt, SqlAnswer } from "./http.js";
import { TableHub } from "./hub.js";
import type { Comparisons } from "./hub.js";
import type { Latency } from "./latency.js";
import type { Role, ServerFrame, Status, ViewOptions } from "./protocol.js";
import { follow, streamTableWithRebind } from "./stream.js";
import type { RebindingStream, RowsListener } from "./stream.js";
import { LiveValue, streamOf } from "./observable.js";
import type { Observer, Stream, Unsubscribable } from "./observable.js";
import { surroundings } from "./surroundings.js";
import type { SocketConstructor, Surroundings } from "./surroundings.js";
import type { Row, Window } from "./window.js";

export interface ClientOptions {
  /** The server's address, like https://host:8080/; in a browser, where the page is from unless given. */
  readonly url?: string | undefined;
  /** The key. It may be given later, by `login`. */
  readonly token?: string | undefined;
  /** Needed where there is none, as in Node 20. */
  readonly WebSocket?: SocketConstructor | undefined;
  readonly fetch?: typeof globalThis.fetch | undefined;
  /** Called with what the page's own callbacks throw; without it, the console has it. */
  readonly onError?: ((error: unknown) => void) | undefined;
  /** For tests. */
  readonly surroundings?: Surroundings | undefined;
}

/** Call it, or its method of the same name, to end a subscription. */
export interface Unsubscribe {
  (): void;
  readonly unsubscribe: () => void;
}

export interface SubscribeOptions extends ViewOptions {
  /** Called with the reason when rows cannot come. */
  readonly onProblem?: ((problem: Problem) => void) | undefined;
}

export class LiveTablesClient {
  /** Who looks at what. */
  readonly hub: TableHub;
  /**
   * How long records take from Kafka to this client, in the last minute, by the server's clock: once a second, if it is
   * another figure. Null while no records come.
   */
  readonly latency$: Stream<Latency | null>;
  readonly #base: URL;
  readonly #fetch: typeof globalThis.fetch;
  readonly #surroundings: Surroundings;
  readonly #connection: Connection;
  readonly #state: LiveValue<ConnectionState>;
  readonly #status: LiveValue<Status | null>;
  readonly #health: LiveValue<Health>;
  readonly #role: LiveValue<Role | null>;
  #token: string;

  constructor(options: ClientOptions = {}) {
    this.#base = baseOf(options.url);
    this.#token = options.token ?? "";
    this.#fetch = options.fetch ?? ((...given) => globalThis.fetch(...given));
    this.#surroundings = options.surroundings ?? surroundings(options.WebSocket);
    const url = new URL("ws", this.#base);
    url.protocol = this.#base.protocol === "https:" ? "wss:" : "ws:";
    this.#connection = new Connection(url.href, this.#token, this.#surroundings, {
      restore: () => {
        this.hub.restore();
      },
      resync: () => {
        this.hub.resync();
      },
      frame: (frame) => {
        this.#take(frame);
      },
      state: (state) => {
        this.#changed(state);
      },
    });
    this.hub = new TableHub(this.#connection, options.onError);
    this.#state = new LiveValue(this.#connection.state, options.onError);
    this.#status = new LiveValue<Status | null>(null, options.onError);
    this.#health = new LiveValue(health(this.#connection.state, null), options.onError);
    this.#role = new LiveValue<Role | null>(null, options.onError);
    this.latency$ = streamOf((observer) => this.#tick(observer));
  }

  // The connection

  /**
   * Resolves when the server has taken the login; rejects if it does not, or if `close` comes first. A server that is
   * not there is waited for. What is subscribed to before is served then.
   */
  connect(): Promise<void> {
    this.#connection.connect();
    return new Promise((resolve, reject) => {
      this.#until((state) => {
        if (state.name === "open") resolve();
        else if (state.name === "refused") reject(new LivetablesError(state.problem));
        else if (state.name === "closed") reject(new LivetablesError(CLOSED));
        else return false;
        return true;
      });
    });
  }

  /** Connect with another key. */
  login(token: string): Promise<void> {
    this.#token = token;
    this.#connection.useKey(token);
    return this.connect();
  }

  /** Subscriptions stay, and are served again after the next `connect`. */
  close(): void {
    this.#connection.close();
  }

  get isReady(): boolean {
    return this.#connection.state.name === "open";
  }

  /** How current the rows in view are, and why they are not. */
  get health(): Health {
    return this.#health.value;
  }

  get health$(): Stream<Health> {
    return this.#health.stream;
  }

  /** The server's last report about its pipeline and topics; null before the first. */
  get status$(): Stream<Status | null> {
    return this.#status.stream;
  }

  /** How far the server's clock is ahead; null until it was measured. */
  get clockDifference(): ClockDifference | null {
    return this.#connection.clockDifference;
  }

  /** How many windows were compared with the server's checksum, and how many of them were others, which is to stay 0. */
  get comparisons(): Comparisons {
    return this.hub.comparisons;
  }

  /** What the key may do; null while not connected. A server that does not report it lets everybody send control messages. */
  get role(): Role | null {
    return roleOf(this.#connection.state);
  }

  get role$(): Stream<Role | null> {
    return this.#role.stream;
  }

  /** The tables that were there at login. */
  get tables(): readonly string[] {
    const { state } = this.#connection;
    return state.name === "open" ? state.welcome.tables : [];
  }

  // Tables

  /**
   * A table by its name, once its columns are known. A table that is not there is waited for while nothing serves yet,
   * and is a LivetablesError otherwise.
   */
  getTableHandle(name: string): Promise<TableHandle> {
    return new Promise((resolve, reject) => {
      const settle = (act: () => void): void => {
        looking.unsubscribe();
        watching.unsubscribe();
        act();
      };
      const fail = (problem: Problem): void => {
        settle(() => {
          reject(new LivetablesError(problem));
        });
      };
      const looking = this.hub.subscribe(
        name,
        { size: 0 },
        {
          rows: ({ columns }) => {
            settle(() => {
              resolve(new TableHandle(this.hub, name, columns));
            });
          },
          problem: (problem) => {
            if (problem.code !== "unknown_table" || !mayAppear(this.#status.value)) fail(problem);
          },
        },
      );
      const watching = this.#until((state) => {
        if (state.name === "refused") fail(state.problem);
        return state.name === "refused";
      });
    });
  }

  /** Rows of a table, now and whenever they change: the first 300, or those of the options. */
  subscribe<T extends object = Row>(
    name: string,
    onRows: RowsCallback<T>,
    options: SubscribeOptions = {},
  ): Unsubscribe {
    const { onProblem, ...view } = options;
    const { unsubscribe } = this.hub.subscribe(name, view, {
      rows: (window) => {
        onRows([...window.rows] as unknown as T[], window);
      },
      problem: (problem) => onProblem?.(problem),
    });
    return Object.assign(
      () => {
        unsubscribe();
      },
      { unsubscribe },
    );
  }

  /** Windows of a table as a stream; it is looked at while somebody takes them. */
  watch(name: string, view: ViewOptions = {}): Stream<Window> {
    return streamOf((observer) => {
      const { unsubscribe } = this.hub.subscribe(name, view, {
        rows: (window) => {
          observer.next(window);
        },
      });
      return unsubscribe;
    });
  }

  createLiveAdapter(options: AdapterOptions = {}): LiveTableAdapter {
    return new LiveTableAdapter((name) => this.getTableHandle(name), this.#surroundings.later, options);
  }

  streamTableWithRebind<T extends object = Row>(name: string, maxRows: number): RebindingStream<T> {
    return streamTableWithRebind(this.hub, this.#surroundings.later, name, maxRows);
  }

  /** What `streamTableWithRebind` looks at, with problems and state too; the function that is returned ends it. */
  follow(name: string, maxRows: number, listener: RowsListener): () => void {
    return follow(this.hub, this.#surroundings.later, name, maxRows, listener);
  }

  // HTTP

  /**
   * Publish a control message, like { usersTopic: "users_2", orders_by_cityJoin: "left" } or { rollback: true }.
   *
   * It has an id of its own: when the answer got lost it is sent again, and published once.
   */
  async sendControl(fields: Readonly<Record<string, string | true>>): Promise<ControlReceipt> {
    const id = messageId(() => this.#surroundings.random());
    const init = json(fields, { "Idempotency-Key": id });
    for (let left = CONTROL_TRIES; ; left--) {
      try {
        const receipt = await answer<Omit<ControlReceipt, "messageId">>(await this.request("api/control", init));
        return { ...receipt, messageId: id };
      } catch (error) {
        if (!(error instanceof UnansweredError) || left <= 1) throw error;
        await new Promise<void>((resolve) => {
          this.#surroundings.later(resolve, CONTROL_RETRY_MS);
        });
      }
    }
  }

  async sql(text: string): Promise<SqlAnswer> {
    return await answer<SqlAnswer>(await this.request("api/sql", json({ sql: text })));
  }

  /** Any other HTTP request, like "api/tables/final_ui/rows?sort=age" with an Accept header for CSV. */
  request(path: string, init: RequestInit = {}): Promise<Response> {
    return request(this.#fetch, this.#base, this.#token, path, init);
  }

  #take(frame: ServerFrame): void {
    switch (frame.type) {
      case "hello": // the connection's own affair, as is that the server was heard
        break;
      case "heartbeat":
        this.hub.compare();
        break;
      case "status": {
        const mightAppear = mayAppear(this.#status.value);
        this.#status.set(frame);
        this.#reportHealth();
        if (mightAppear && !mayAppear(frame)) this.hub.askForMissing();
        break;
      }
      case "schema":
      case "snapshot":
      case "patch":
      case "rebound":
        this.hub.take(frame);
        break;
      case "error":
        if (frame.sub === undefined) this.hub.refused({ code: frame.code, problem: frame.problem, cure: frame.cure });
        else this.hub.take({ ...frame, sub: frame.sub });
        break;
    }
  }

  #changed(state: ConnectionState): void {
    if (state.name !== "open" && this.#status.value) this.#status.set(null); // it may be wrong by now
    this.#state.set(state);
    if (roleOf(state) !== this.#role.value) this.#role.set(roleOf(state));
    this.#reportHealth();
  }

  #reportHealth(): void {
    const now = health(this.#connection.state, this.#status.value);
    if (now.state === this.health.state && now.why === this.health.why) return;
    this.#health.set(now);
    this.hub.setHealth(now);
  }

  /** Report the latency every second, if it has changed. */
  #tick(observer: Observer<Latency | null>): () => void {
    let reported = "";
    let cancel: () => void = () => undefined;
    const report = (): void => {
      cancel = this.#surroundings.later(report, LATENCY_MS);
      const latency = this.hub.latency();
      const text = JSON.stringify(latency);
      if (text === reported) return;
      reported = text;
      observer.next(latency);
    };
    report();
    return () => {
      cancel();
    };
  }

  /** Ask about the connection's state, soon and whenever it changes, until `isSettled` says so. */
  #until(isSettled: (state: ConnectionState) => boolean): Unsubscribable {
    const watching = this.#state.stream.subscribe(() => {
      queueMicrotask(() => {
        if (isSettled(this.#connection.state)) watching.unsubscribe();
      });
    });
    return watching;
  }
}

function roleOf(state: ConnectionState): Role | null {
  return state.name === "open" ? (state.welcome.role ?? "operator") : null;
}

const LATENCY_MS = 1_000;
const CONTROL_TRIES = 3;
const CONTROL_RETRY_MS = 500;
const CLOSED: Problem = { code: "closed", problem: "the client was closed", cure: "call connect() again" };

/** The directory that paths are relative to: of the address that was given, or of the page. */
function baseOf(url: string | undefined): URL {
  const page = (globalThis as { document?: { baseURI: string } }).document?.baseURI;
  if (url === undefined && page === undefined) {
    throw new LivetablesError({
      code: "unavailable",
      problem: "there is no address of a server",
      cure: 'give one: new LiveTablesClient({ url: "http://127.0.0.1:8080" })',
    });
  }
  const given = url === undefined ? undefined : new URL(url, page);
  if (given) given.pathname = given.pathname.replace(/\/*$/, "/");
  const base = new URL(".", given ?? page);
  base.protocol = base.protocol.replace(/^ws/, "http");
  return base;
}
