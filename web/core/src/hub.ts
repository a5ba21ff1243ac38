/**
 * Who looks at what: one viewport for each distinct table and view, however many look at it.
 *
 * The first one to look opens it, all others share its rows, and the last one to leave closes it. `viewport.ts` decides
 * what a frame means; this is the shell around it.
 */
import type { Problem } from "./errors.js";
import { encode } from "./protocol.js";
import type { ClientFrame, Column, SubscriptionFrame, ViewOptions } from "./protocol.js";
import { viewKey, viewOf } from "./view.js";
import type { View } from "./view.js";
import { asked, doubted, lost, moved, setFrame, step, subscribeFrame, viewport } from "./viewport.js";
import type { News, Step, Viewport } from "./viewport.js";
import { areSame } from "./window.js";
import type { Window } from "./window.js";

/** What the hub needs of a connection. */
export interface Wire {
  /** How long a frame may be, while the server can be told something; null while it cannot. */
  readonly frameBytesMax: number | null;
  send(text: string): void;
}

/** Somebody who looks at a view. Rows come first at once if the hub has them, and then whenever they change. */
export interface ViewListener {
  rows(window: Window): void;
  /** The columns of the rows that follow: the first time, and when they change. */
  schema?(columns: readonly Column[]): void;
  /** Another generation has taken over the table; its rows follow. */
  rebound?(before: string, generation: string): void;
  /** Why no rows come. They come by themselves when it is mended. */
  problem?(problem: Problem): void;
}

export interface Subscription {
  readonly unsubscribe: () => void;
  /** Look elsewhere in the same table: what is shown stays until the rows are here. What is left out stays. */
  readonly look: (options: ViewOptions) => void;
  /** Ask for the whole window again. */
  readonly resync: () => void;
}

export class TableHub {
  readonly #wire: Wire;
  readonly #report: (error: unknown) => void;
  readonly #byKey = new Map<string, Shared>();
  readonly #bySub = new Map<number, Shared>();
  #subs = 0;

  /** `report` is told what listeners throw. */
  constructor(wire: Wire, report: (error: unknown) => void = console.error) {
    this.#wire = wire;
    this.#report = report;
  }

  /** How many viewports are open. */
  get viewports(): number {
    return this.#byKey.size;
  }

  subscribe(table: string, options: ViewOptions, listener: ViewListener): Subscription {
    let isLooking = true;
    const looker: Looker = { listener, isServed: false, columns: null };
    let shared = this.#join(table, viewOf(options), looker);
    return {
      unsubscribe: () => {
        if (!isLooking) return;
        isLooking = false;
        this.#leave(shared, looker);
      },
      look: (changes) => {
        if (isLooking) shared = this.#move(shared, looker, viewOf({ ...shared.viewport.view, ...given(changes) }));
      },
      resync: () => {
        if (isLooking) this.#resync(shared);
      },
    };
  }

  /** There is a new connection, and the server knows nothing yet. */
  restore(): void {
    for (const shared of this.#byKey.values()) this.#open(shared);
  }

  /** Ask for all windows again. */
  resync(): void {
    for (const shared of this.#byKey.values()) this.#resync(shared);
  }

  take(frame: SubscriptionFrame): void {
    const shared = this.#bySub.get(frame.sub);
    if (shared) this.#advance(shared, step(shared.viewport, frame));
  }

  /** The server did not take a frame, and did not say which one. */
  refused(problem: Problem): void {
    for (const shared of [...this.#byKey.values()]) this.#advance(shared, doubted(shared.viewport, problem));
  }

  #join(table: string, view: View, looker: Looker): Shared {
    const key = viewKey(table, view);
    let shared = this.#byKey.get(key);
    if (!shared) {
      shared = { viewport: viewport(table, view, this.#subs++), key, lookers: new Set() };
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
    if (phase === "unsent" || phase === "refused") return;
    this.#send({ type: "unsubscribe", sub });
    for (const other of this.#byKey.values()) if (other.viewport.phase === "refused") this.#open(other);
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
    if (shared.viewport.phase === "refused") this.#open(shared);
    else if (shared.viewport.phase !== "unsent") this.#ask(shared, setFrame(shared.viewport));
    return shared;
  }

  #open(shared: Shared): void {
    if (this.#wire.frameBytesMax !== null) this.#ask(shared, subscribeFrame(shared.viewport));
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

  #advance(shared: Shared, { viewport, news, ask }: Step): void {
    shared.viewport = viewport;
    if (ask === "resync") this.#send({ type: "resync", sub: viewport.sub });
    if (ask === "subscribe") this.#renumber(shared);
    for (const each of news) {
      if (shared.viewport.revision !== viewport.revision) return; // a listener looks elsewhere now
      for (const looker of [...shared.lookers]) this.#tell(shared, looker, each);
    }
  }

  /** Open it under another number: the server does not know this one. */
  #renumber(shared: Shared): void {
    this.#bySub.delete(shared.viewport.sub);
    shared.viewport = { ...shared.viewport, sub: this.#subs++ };
    this.#bySub.set(shared.viewport.sub, shared);
    this.#open(shared);
  }

  /** A late looker gets what is here at once, but not before `subscribe` has returned. */
  #serveSoon(shared: Shared, looker: Looker): void {
    queueMicrotask(() => {
      const { window, problem } = shared.viewport;
      if (looker.isServed || !shared.lookers.has(looker)) return;
      if (window) this.#tell(shared, looker, { kind: "window", window });
      if (problem) this.#tell(shared, looker, { kind: "problem", problem });
    });
  }

  #tell(shared: Shared, looker: Looker, news: News): void {
    if (!shared.lookers.has(looker)) return; // an earlier listener made it leave
    try {
      tell(looker, news);
    } catch (error) {
      this.#report(error); // the others are to be told all the same
    }
  }

  /** Sends a frame, or says why the server would not take it: one that is too long would cost the connection. */
  #send(frame: ClientFrame): Problem | null {
    const bytesMax = this.#wire.frameBytesMax;
    if (bytesMax === null) return null;
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
  /** Those it was told of. */
  columns: readonly Column[] | null;
}

interface Shared {
  viewport: Viewport;
  key: string;
  readonly lookers: Set<Looker>;
}

function tell(looker: Looker, news: News): void {
  const { listener } = looker;
  switch (news.kind) {
    case "rebound":
      listener.rebound?.(news.before, news.generation);
      break;
    case "window":
      looker.isServed = true;
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

/** Without what is undefined: that counts as left out. */
function given(changes: ViewOptions): ViewOptions {
  return Object.fromEntries(Object.entries(changes).filter(([, value]) => value !== undefined));
}
