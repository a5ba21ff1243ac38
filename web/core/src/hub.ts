/**
 * Who looks at what: one viewport for each distinct table and view, however many look at it.
 *
 * The first one to look opens it, all others share its rows, and the last one to leave closes it. `viewport.ts` decides
 * what a frame means; this is the shell around it.
 */
import type { Problem } from "./errors.js";
import type { Health } from "./health.js";
import { LatencyMeter } from "./latency.js";
import type { Latency } from "./latency.js";
import { encode } from "./protocol.js";
import type { ClientFrame, Column, Limits, Receipt, ResyncReason, SubscriptionFrame, ViewOptions } from "./protocol.js";
import { tableNameProblem } from "./table-name.js";
import { viewKey, viewOf, viewProblem } from "./view.js";
import type { View } from "./view.js";
import { isSameState, viewState } from "./view-state.js";
import type { ViewState } from "./view-state.js";
import {
  asked,
  compared,
  doubted,
  lost,
  moved,
  rejected,
  setFrame,
  step,
  subscribeFrame,
  viewport,
} from "./viewport.js";
import type { News, Step, Viewport } from "./viewport.js";
import { areSame } from "./window.js";
import type { Window } from "./window.js";

/** What the hub needs of a connection. */
export interface Wire {
  /** The server's, while frames can be sent; null while they cannot. */
  readonly limits: Limits | null;
  /** Whether the server knows of checksums and of reasons for a resync. */
  readonly hasChecksums: boolean;
  /** The time by the server's clock. */
  now(): number;
  send(text: string): void;
}

/** Somebody who looks at a view. Rows come first at once if the hub has them, and then whenever they change. */
export interface ViewListener {
  rows(window: Window): void;
  /** The columns of the rows that follow: the first time, and when they change. */
  schema?(columns: readonly Column[]): void;
  /** Another generation has taken over the table; its rows follow. */
  rebound?(before: string, generation: string): void;
  /** Why no rows come. They come by themselves when it is fixed. */
  problem?(problem: Problem): void;
  /** How it is with this view, soon and whenever that changes; after the rows that changed it. */
  state?(state: ViewState): void;
}

/** Windows that were compared with the server's checksum, and how many of them were others, which is to stay 0. */
export interface Comparisons {
  readonly compared: number;
  readonly different: number;
}

export interface Subscription {
  readonly unsubscribe: () => void;
  /** Look elsewhere in the same table: what is shown stays until the rows are here. What is left out stays. */
  readonly look: (options: ViewOptions) => void;
  /** Ask for the whole window again. */
  readonly resync: () => void;
  /** How long records took to this view in the last minute; null if none came. */
  readonly latency: () => Latency | null;
}

export class TableHub {
  readonly #wire: Wire;
  readonly #report: (error: unknown) => void;
  readonly #byKey = new Map<string, Shared>();
  readonly #bySub = new Map<number, Shared>();
  readonly #meter = new LatencyMeter();
  #subs = 0;
  #health: Health = { state: "closed", why: "not connected" };
  #comparisons: Comparisons = { compared: 0, different: 0 };

  /** `report` gets what listeners throw. */
  constructor(wire: Wire, report: (error: unknown) => void = console.error) {
    this.#wire = wire;
    this.#report = report;
  }

  /** How many viewports are open. */
  get viewports(): number {
    return this.#byKey.size;
  }

  get comparisons(): Comparisons {
    return this.#comparisons;
  }

  /** How long records took to all views in the last minute; null if none came. */
  latency(): Latency | null {
    return this.#meter.summary(this.#wire.now());
  }

  subscribe(table: string, options: ViewOptions, listener: ViewListener): Subscription {
    let isLooking = true;
    const looker: Looker = { listener, isServed: false, columns: null, window: null, state: null };
    let shared = this.#join(table, viewOf(options), looker);
    return {
      unsubscribe: () => {
        if (!isLooking) return;
        isLooking = false;
        this.#leave(shared, looker);
      },
      look: (changes) => {
        if (isLooking) shared = this.#move(shared, looker, movedTo(shared.viewport.view, changes));
      },
      resync: () => {
        if (isLooking) this.#resync(shared);
      },
      latency: () => shared.meter.summary(this.#wire.now()),
    };
  }

  /** The connection, or the server's status, has changed. */
  setHealth(health: Health): void {
    this.#health = health;
    for (const shared of [...this.#byKey.values()]) this.#notifyStates(shared);
  }

  /** There is a new connection, and the server knows nothing yet. */
  restore(): void {
    for (const shared of this.#byKey.values()) this.#open(shared);
  }

  /** Ask for all windows again. */
  resync(): void {
    for (const shared of this.#byKey.values()) this.#resync(shared);
  }

  /** Tables that are not there now do not come by themselves any more: ask again, so that this is reported. */
  askForMissing(): void {
    for (const shared of this.#byKey.values()) {
      if (shared.viewport.problem?.code === "unknown_table") this.#reopen(shared);
    }
  }

  take(frame: SubscriptionFrame): void {
    const shared = this.#bySub.get(frame.sub);
    if (!shared) return;
    const after = step(shared.viewport, frame, this.#wire.now());
    this.#advance(shared, after);
    const isShown = after.news.some(({ kind }) => kind === "window");
    if (isShown && "receipt" in frame && frame.receipt) this.#record(shared, frame.receipt);
  }

  /** Nothing else is to be done just now: compare the checksums that were left. */
  compare(): void {
    for (const shared of [...this.#byKey.values()]) {
      this.#advance(shared, compared(shared.viewport, this.#wire.now()));
    }
  }

  /** The server refused a frame, without naming it, as an older one does. */
  refused(problem: Problem): void {
    for (const shared of [...this.#byKey.values()]) this.#advance(shared, doubted(shared.viewport, problem));
  }

  #join(table: string, view: View, looker: Looker): Shared {
    const key = viewKey(table, view);
    let shared = this.#byKey.get(key);
    if (!shared) {
      shared = { viewport: viewport(table, view, this.#subs++), key, lookers: new Set(), meter: new LatencyMeter() };
      this.#byKey.set(key, shared);
      this.#bySub.set(shared.viewport.sub, shared);
      this.#open(shared);
    }
    shared.lookers.add(looker);
    this.#serveSoon(shared, looker);
    return shared;
  }

  #leave(shared: Shared, looker: Looker): void {
    shared.lookers.delete(looker);
    if (shared.lookers.size > 0) return;
    this.#byKey.delete(shared.key);
    this.#bySub.delete(shared.viewport.sub);
    const { phase, sub } = shared.viewport;
    if (phase === "unsent" || phase === "rejected") return;
    this.#send({ type: "unsubscribe", sub });
    for (const other of this.#byKey.values()) if (other.viewport.phase === "refused") this.#reopen(other);
  }

  #move(shared: Shared, looker: Looker, view: View): Shared {
    const key = viewKey(shared.viewport.table, view);
    if (key === shared.key) return shared;
    if (shared.lookers.size > 1 || this.#byKey.has(key)) {
      looker.isServed = false;
      const next = this.#join(shared.viewport.table, view, looker);
      this.#leave(shared, looker);
      return next;
    }
    this.#byKey.delete(shared.key);
    this.#byKey.set(key, shared);
    shared.key = key;
    shared.viewport = moved(shared.viewport, view);
    const { phase } = shared.viewport;
    if (phase === "rejected") this.#open(shared);
    else if (phase === "refused" || (phase !== "unsent" && this.#objection(shared.viewport))) this.#reopen(shared);
    else if (phase !== "unsent") this.#ask(shared, setFrame(shared.viewport));
    this.#notifyStates(shared);
    return shared;
  }

  /** Why the server would not take a view's frame. */
  #objection({ table, view }: Viewport): Problem | null {
    const { limits } = this.#wire;
    return tableNameProblem(table) ?? (limits && viewProblem(view, limits));
  }

  #open(shared: Shared): void {
    if (this.#wire.limits === null) return;
    const problem = this.#objection(shared.viewport);
    if (problem) {
      const refusal = rejected(shared.viewport, problem);
      shared.viewport = refusal.viewport;
      queueMicrotask(() => {
        if (shared.viewport === refusal.viewport) this.#advance(shared, refusal);
      });
    } else this.#ask(shared, subscribeFrame(shared.viewport, this.#wire.hasChecksums));
  }

  /** Send a frame that is answered with a window. */
  #ask(shared: Shared, frame: ClientFrame): void {
    shared.viewport = asked(shared.viewport);
    const refusal = this.#send(frame);
    if (!refusal) return;
    queueMicrotask(() => {
      this.#advance(shared, doubted(shared.viewport, refusal));
    });
  }

  #resync(shared: Shared): void {
    if (shared.viewport.phase !== "current") return; // its window is under way, or cannot be
    shared.viewport = lost(shared.viewport);
    this.#send({ type: "resync", sub: shared.viewport.sub });
  }

  #resyncFor(reason: ResyncReason, sub: number): void {
    this.#send({ type: "resync", sub, ...(this.#wire.hasChecksums && { reason }) });
  }

  #advance(shared: Shared, { viewport, news, ask, isCompared }: Step): void {
    shared.viewport = viewport;
    if (isCompared) {
      const { compared: times, different } = this.#comparisons;
      this.#comparisons = { compared: times + 1, different: different + (ask === "checksum" ? 1 : 0) };
    }
    if (ask === "gap" || ask === "checksum") this.#resyncFor(ask, viewport.sub);
    if (ask === "subscribe") this.#renumber(shared);
    for (const each of news) {
      if (shared.viewport.revision !== viewport.revision) return; // a listener looks elsewhere now
      for (const looker of [...shared.lookers]) this.#notify(shared, looker, each);
    }
    if (news.length > 0) this.#notifyStates(shared);
  }

  /** When those who look have it. */
  #record(shared: Shared, receipt: Receipt): void {
    const hereMs = this.#wire.now();
    shared.meter.record(receipt, hereMs);
    this.#meter.record(receipt, hereMs);
  }

  /** Ask for it anew, whether the server has it or not. */
  #reopen(shared: Shared): void {
    this.#send({ type: "unsubscribe", sub: shared.viewport.sub });
    this.#renumber(shared);
  }

  /** Open it under another number: the server does not know this one, or may have something to say about it. */
  #renumber(shared: Shared): void {
    this.#bySub.delete(shared.viewport.sub);
    shared.viewport = { ...shared.viewport, sub: this.#subs++ };
    this.#bySub.set(shared.viewport.sub, shared);
    this.#open(shared);
  }

  /** A late looker gets what is here at once, but not before `subscribe` has returned. */
  #serveSoon(shared: Shared, looker: Looker): void {
    queueMicrotask(() => {
      if (!shared.lookers.has(looker)) return;
      const { window, problem } = shared.viewport;
      const isServed = looker.isServed;
      if (!isServed && window) this.#notify(shared, looker, { kind: "window", window });
      if (!isServed && problem) this.#notify(shared, looker, { kind: "problem", problem });
      this.#notifyState(shared, looker);
    });
  }

  #notifyStates(shared: Shared): void {
    for (const looker of [...shared.lookers]) this.#notifyState(shared, looker);
  }

  #notifyState(shared: Shared, looker: Looker): void {
    const state = viewState(this.#health, shared.viewport.problem, looker.window);
    if (!shared.lookers.has(looker) || (looker.state && isSameState(looker.state, state))) return;
    looker.state = state;
    try {
      looker.listener.state?.(state);
    } catch (error) {
      this.#report(error);
    }
  }

  #notify(shared: Shared, looker: Looker, news: News): void {
    if (!shared.lookers.has(looker)) return; // an earlier listener made it leave
    try {
      notify(looker, news);
    } catch (error) {
      this.#report(error); // the others get it all the same
    }
  }

  /** Send a frame, or report why the server would refuse it: one that is too long would close the connection. */
  #send(frame: ClientFrame): Problem | null {
    const bytesMax = this.#wire.limits?.frame_bytes;
    if (bytesMax === undefined) return null;
    const text = encode(frame);
    if (text.length * 3 > bytesMax && new TextEncoder().encode(text).length > bytesMax) {
      return { code: "limit", problem: "what is asked for is too long", cure: "give fewer or shorter filter values" };
    }
    this.#wire.send(text);
    return null;
  }
}

interface Looker {
  readonly listener: ViewListener;
  isServed: boolean;
  /** Those that it has heard of. */
  columns: readonly Column[] | null;
  /** What it shows: that of where it looked before, until the next one is here. */
  window: Window | null;
  state: ViewState | null;
}

interface Shared {
  viewport: Viewport;
  key: string;
  readonly lookers: Set<Looker>;
  readonly meter: LatencyMeter;
}

function notify(looker: Looker, news: News): void {
  const { listener } = looker;
  switch (news.kind) {
    case "rebound":
      listener.rebound?.(news.before, news.generation);
      break;
    case "window":
      looker.isServed = true;
      looker.window = news.window;
      if (!looker.columns || !areSame(looker.columns, news.window.columns)) {
        looker.columns = news.window.columns;
        listener.schema?.(news.window.columns);
      }
      listener.rows(news.window);
      break;
    case "problem":
      looker.isServed = true;
      listener.problem?.(news.problem);
      break;
  }
}

/** The view with its changes, but for its interval. What is undefined counts as left out. */
function movedTo(view: View, changes: ViewOptions): View {
  const given: ViewOptions = Object.fromEntries(Object.entries(changes).filter(([, value]) => value !== undefined));
  return viewOf({ ...view, ...given, interval_ms: view.interval_ms });
}
