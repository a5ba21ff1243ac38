/** A livetables server for the whole app: the client, with its state as signals. */
import { DestroyRef, Injectable, InjectionToken, effect, inject, signal, untracked } from "@angular/core";
import type { Provider, Signal } from "@angular/core";
import { LiveTablesClient } from "@livetables/client";
import type {
  ClientOptions,
  Health,
  Latency,
  Role,
  Status,
  Stream,
  Unsubscribable,
  ViewListener,
  ViewOptions,
  ViewState,
  Window,
} from "@livetables/client";

/** The server's address and key; the page's own address, and a key that comes later by `login`, unless provided. */
export const LIVE_TABLES = new InjectionToken<ClientOptions>("livetables", {
  providedIn: "root",
  factory: () => ({}),
});

export function provideLiveTables(options: ClientOptions): Provider {
  return { provide: LIVE_TABLES, useValue: options };
}

@Injectable({ providedIn: "root" })
export class LiveTableService extends LiveTablesClient {
  /** How current the rows in view are, and why they are not. */
  readonly healthNow: Signal<Health>;
  /** The server's last report about its pipeline and topics; null before the first. */
  readonly statusNow: Signal<Status | null>;
  /** What the key may do: null while not connected. */
  readonly roleNow: Signal<Role | null>;
  /** How long records take from Kafka to this page, in the last minute; null while none come. */
  readonly latencyNow: Signal<Latency | null>;

  constructor() {
    super(inject(LIVE_TABLES));
    const streams: Unsubscribable[] = [];
    this.healthNow = newestOf(this.health$, this.health, streams);
    this.statusNow = newestOf<Status | null>(this.status$, null, streams);
    this.roleNow = newestOf<Role | null>(this.role$, null, streams);
    this.latencyNow = newestOf<Latency | null>(this.latency$, null, streams);
    inject(DestroyRef).onDestroy(() => {
      for (const { unsubscribe } of streams) unsubscribe();
      this.close();
    });
  }

  /**
   * A window of a table, now and whenever it changes. It looks elsewhere when a signal does that table or view read, keeps
   * what it shows until the other rows are here, and ends with the component that called it.
   */
  windowOf(table: () => string, view: () => ViewOptions = () => ({})): Signal<Window | undefined> {
    const shown = signal<Window | undefined>(undefined);
    this.#follow(table, view, {
      rows: (window) => {
        shown.set(window);
      },
    });
    return shown.asReadonly();
  }

  /** The state of a view's rows, as `windowOf` shows them; null for a moment. */
  stateOf(table: () => string, view: () => ViewOptions = () => ({})): Signal<ViewState | null> {
    const current = signal<ViewState | null>(null);
    this.#follow(table, view, {
      rows: () => undefined,
      state: (state) => {
        current.set(state);
      },
    });
    return current.asReadonly();
  }

  #follow(table: () => string, view: () => ViewOptions, listener: ViewListener): void {
    effect((onCleanup) => {
      const [name, options] = [table(), view()];
      onCleanup(untracked(() => this.hub.subscribe(name, options, listener)).unsubscribe); // listeners may write signals
    });
  }
}

/** A stream's newest value, for as long as whoever has the list does not end it. */
function newestOf<T>(stream: Stream<T>, first: T, streams: Unsubscribable[]): Signal<T> {
  const newest = signal(first);
  streams.push(
    stream.subscribe((value) => {
      newest.set(value);
    }),
  );
  return newest.asReadonly();
}
