/** A livetables server for the whole app: the client, and what it tells as signals. */
import { DestroyRef, Injectable, InjectionToken, effect, inject, signal } from "@angular/core";
import type { Provider, Signal } from "@angular/core";
import { LiveTablesClient } from "@livetables/client";
import type { ClientOptions, Health, Status, Stream, ViewOptions, Window } from "@livetables/client";

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
  /** What the server last said of its pipeline and topics; null until it has. */
  readonly statusNow: Signal<Status | null>;

  constructor() {
    super(inject(LIVE_TABLES));
    this.healthNow = newestOf(this.health$, this.health);
    this.statusNow = newestOf<Status | null>(this.status$, null);
    inject(DestroyRef).onDestroy(() => {
      this.close();
    });
  }

  /**
   * A window of a table, now and whenever it changes. It looks elsewhere when a signal does that table or view read, keeps
   * what it shows until the other rows are here, and ends with the component that called it.
   */
  windowOf(table: () => string, view: () => ViewOptions = () => ({})): Signal<Window | undefined> {
    const shown = signal<Window | undefined>(undefined);
    effect((onCleanup) => {
      const { unsubscribe } = this.hub.subscribe(table(), view(), {
        rows: (window) => {
          shown.set(window);
        },
      });
      onCleanup(unsubscribe);
    });
    return shown.asReadonly();
  }
}

/** The service's own streams live as long as it does: nobody has to end them. */
function newestOf<T>(stream: Stream<T>, first: T): Signal<T> {
  const newest = signal(first);
  stream.subscribe((value) => {
    newest.set(value);
  });
  return newest.asReadonly();
}
