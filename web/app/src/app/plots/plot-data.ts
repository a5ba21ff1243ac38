import { DestroyRef, Injectable, computed, effect, inject, linkedSignal, signal } from "@angular/core";
import { LiveTableService } from "@livetables/angular";
import type { Status, Window } from "@livetables/angular";
import type { AlignedData } from "uplot";
import { COUNT } from "../tables/count";
import { TablesShown } from "../tables/tables-shown";

export const PLOTTED_SECONDS = 300;
const LATENCIES_MAX = 1000; // in a second
const CURRENT_SECONDS = 5; // what was measured within them counts as current

/** What was measured, by the name of its line. */
type Measures = Readonly<Record<string, number>>;

interface Second {
  /** When it ended. */
  readonly time: number;
  readonly rates: Measures;
  readonly lags: Measures;
  readonly latencies: Measures;
}

export interface Lines {
  readonly names: readonly string[];
  readonly data: AlignedData;
  readonly current: Measures;
}

/** Measures from the start of the page, whether anybody looks at the plots or not, and keeps the last five minutes. */
@Injectable({ providedIn: "root" })
export class PlotData {
  readonly #service = inject(LiveTableService);
  readonly #tables = inject(TablesShown);
  readonly #seconds = signal<readonly Second[]>([]);
  readonly #newest = new Map<string, Window>();
  readonly #counted = new Map<string, Window>();
  #latencies: number[] = [];
  #measuredMs = Date.now();

  /** The tables that are read from topics; those last heard of, while there is no connection. */
  readonly #sources = linkedSignal<Status | null, readonly string[]>({
    source: this.#service.statusNow,
    computation: (status, before) => {
      const sources = status?.sources.map(({ table }) => table) ?? [];
      return sources.length > 0 ? sources : (before?.value ?? []);
    },
    equal: (some, others) => some.join() === others.join(),
  });

  /** New rows a second in the tables that are read from topics. */
  readonly rates = computed(() => lines(this.#seconds(), "rates"));
  /** Records of each table's topic that are still to be read. */
  readonly lags = computed(() => lines(this.#seconds(), "lags"));
  /** Milliseconds from the time of the newest record in the view until the page has it. */
  readonly latencies = computed(() => lines(this.#seconds(), "latencies"));
  readonly view = computed(() => this.#tables.names().at(-1));

  constructor() {
    effect((onCleanup) => {
      for (const table of this.#sources()) {
        const counting = this.#service.hub.subscribe(table, COUNT, {
          rows: (window) => {
            this.#newest.set(table, window);
          },
        });
        onCleanup(counting.unsubscribe);
      }
    });
    effect((onCleanup) => {
      const view = this.view();
      let before: Window | undefined;
      if (view === undefined) return;
      const timing = this.#service.hub.subscribe(view, COUNT, {
        // The newest row alone shows every change: a view may change its rows and keep their number.
        schema: (columns) => {
          const time = columns.findLast(({ type }) => type === "timestamp")?.name;
          if (time) timing.look({ size: 1, sort: [{ column: time, descending: true }] });
        },
        rows: (window) => {
          this.#time(window, before);
          before = window;
        },
      });
      onCleanup(timing.unsubscribe);
    });
    const measuring = setInterval(() => {
      this.#measure();
    }, 1000);
    inject(DestroyRef).onDestroy(() => {
      clearInterval(measuring);
    });
  }

  /** How old the newest record is as it arrives, if there is a newer one than before. */
  #time(window: Window, before: Window | undefined): void {
    if (window.generation !== before?.generation || window.newest === null) return;
    const newestMs = Date.parse(window.newest);
    const isNewer = before.newest === null || newestMs > Date.parse(before.newest);
    const hereMs = Date.now() + (this.#service.clockDifference?.aheadMs ?? 0); // by the server's clock
    if (isNewer && this.#latencies.length < LATENCIES_MAX) this.#latencies.push(Math.max(0, hereMs - newestMs));
  }

  #measure(): void {
    const nowMs = Date.now();
    const elapsedSeconds = (nowMs - this.#measuredMs) / 1000; // more than one where the browser slows timers down
    this.#measuredMs = nowMs;
    const rates: Record<string, number> = {};
    for (const table of this.#sources()) {
      const window = this.#newest.get(table);
      const before = this.#counted.get(table);
      // Another generation has other rows: its number of rows does not show how many came.
      if (window && window.generation === before?.generation && this.#service.isReady && elapsedSeconds > 0) {
        rates[table] = Math.max(0, window.total - before.total) / elapsedSeconds;
      }
      if (window) this.#counted.set(table, window);
    }
    const sources = this.#service.statusNow()?.sources ?? [];
    const second: Second = {
      time: nowMs / 1000,
      rates,
      lags: Object.fromEntries(sources.map(({ table, lag_records }) => [table, lag_records])),
      latencies: summary(this.#latencies),
    };
    this.#latencies = [];
    this.#seconds.update((seconds) => [...seconds.filter(({ time }) => time > second.time - PLOTTED_SECONDS), second]);
  }
}

function summary(latencies: readonly number[]): Measures {
  const sorted = [...latencies].sort((one, other) => one - other);
  const median = sorted[Math.floor((sorted.length - 1) / 2)];
  const max = sorted.at(-1);
  return median === undefined || max === undefined ? {} : { p50: median, max };
}

function lines(seconds: readonly Second[], kind: "rates" | "lags" | "latencies"): Lines {
  const names = [...new Set(seconds.flatMap((second) => Object.keys(second[kind])))];
  return {
    names,
    data: [
      seconds.map(({ time }) => time),
      ...names.map((name) => seconds.map((second) => second[kind][name] ?? null)),
    ],
    current: seconds.slice(-CURRENT_SECONDS).findLast((second) => Object.keys(second[kind]).length > 0)?.[kind] ?? {},
  };
}
