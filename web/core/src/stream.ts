/** Rows of a table by its name, that follow it through every generation. */
import { REACQUIRE_MS } from "./adapter.js";
import type { Subscription, TableHub, ViewListener } from "./hub.js";
import { streamOf } from "./observable.js";
import type { Observer, Stream } from "./observable.js";
import type { Surroundings } from "./surroundings.js";
import type { Value } from "./protocol.js";
import type { Row } from "./window.js";

export const STATUS_TABLE = "orchestrator_status";

export interface RebindingStream<T> {
  readonly rows$: Stream<T[]>;
  /** Ends `rows$` for everybody. */
  readonly dispose: () => void;
}

/** Who looks at rows, whatever their generation and columns. */
export type RowsListener = Pick<ViewListener, "rows" | "problem" | "state">;

/**
 * The first `maxRows` rows of a table. The server reports by itself that another generation took over; should it not,
 * `orchestrator_status` names the new generation, and the rows are asked for again, once.
 */
export function streamTableWithRebind<T extends object = Row>(
  hub: TableHub,
  later: Surroundings["later"],
  name: string,
  maxRows: number,
): RebindingStream<T> {
  const observers = new Set<Observer<T[]>>();
  let isDisposed = false;
  const rows$ = streamOf<T[]>((observer) => {
    if (isDisposed) {
      observer.complete();
      return () => undefined;
    }
    observers.add(observer);
    const stop = follow(hub, later, name, maxRows, {
      rows: ({ rows }) => {
        observer.next([...rows] as unknown as T[]); // the caller declares the type of its rows
      },
    });
    return () => {
      observers.delete(observer);
      stop();
    };
  });
  const dispose = (): void => {
    isDisposed = true;
    for (const observer of [...observers]) observer.complete();
  };
  return { rows$, dispose };
}

/** Look at the same rows with a listener of one's own; the function that is returned ends it. */
export function follow(
  hub: TableHub,
  later: Surroundings["later"],
  name: string,
  maxRows: number,
  listener: RowsListener,
): () => void {
  let shown: string | null = null; // the generation of the rows
  let named: Value | undefined; // the generation that the orchestrator names
  let cancel: () => void = () => undefined;
  const rows: Subscription = hub.subscribe(
    name,
    { size: maxRows },
    {
      rows: (window) => {
        shown = window.generation;
        listener.rows(window);
      },
      problem: (problem) => listener.problem?.(problem),
      state: (state) => listener.state?.(state),
    },
  );
  const status: Subscription = hub.subscribe(
    STATUS_TABLE,
    { columns: ["generation"], size: 1 },
    {
      rows: (window) => {
        const before = named;
        named = window.rows[0]?.["generation"];
        if (before === undefined || named === before) return;
        cancel();
        cancel = later(() => {
          if (shown !== named) rows.resync();
        }, REACQUIRE_MS);
      },
    },
  );
  return () => {
    cancel();
    rows.unsubscribe();
    status.unsubscribe();
  };
}
