/** A table as pages written for Deephaven hold it: a viewport, its rows, and events. */
import { LivetablesError } from "@livetables/client";
import type { Column, Problem, Row, Subscription, TableHandle, Value, ViewOptions, Window } from "@livetables/client";
import { columnsOf } from "./rows";
import type { DhColumn } from "./rows";

export interface DhRow {
  /** Its place in the table. */
  readonly index: number;
  /** Null for a column that is not in the viewport. */
  get(column: DhColumn | string): Value;
}

/** Shared by all who get it, and not to be changed, though pages know its arrays as theirs. */
export interface ViewportData {
  /** The place of the first row in the table. */
  readonly offset: number;
  readonly columns: DhColumn[];
  readonly rows: DhRow[];
}

export interface SchemaChange {
  readonly columns: DhColumn[];
}

/** What comes with each event. `update` and `updated` are the same. */
export interface DhEvents {
  readonly update: ViewportData;
  readonly updated: ViewportData;
  readonly schema_changed: SchemaChange;
  /** Why no rows come. They come by themselves when it is fixed. */
  readonly requestfailed: Problem;
}

export type DhEventDetail<N extends string> = N extends keyof DhEvents ? DhEvents[N] : unknown;

/** A viewport that was set; closing it ends its events, until the next one is set. */
export interface DhViewport {
  readonly close: () => void;
}

/** Rows of a viewport that is not set: as many as the server gives at once. */
const ROWS_MAX = 10_001;

/** Follows its table through every generation. Only `close` closes it. */
export class DhTable {
  /** The same table for `@livetables/client`. */
  readonly handle: TableHandle;
  readonly #listeners = new Map<string, Set<Listener>>();
  #columns: readonly DhColumn[];
  #viewport: Viewport | null = null;
  #waiting: Waiting[] = [];
  /** Open while somebody listens to changes of the schema: a viewport need not be set for that. */
  #schema: Subscription | null = null;

  constructor(handle: TableHandle) {
    this.handle = handle;
    this.#columns = columnsOf(handle.columns);
  }

  get name(): string {
    return this.handle.name;
  }

  /** Those of its rows; internal ids are not among them. */
  get columns(): DhColumn[] {
    return [...this.#columns];
  }

  get isClosed(): boolean {
    return this.handle.isClosed;
  }

  /** Look at the rows from `first` to `last`, both included, instead of where it looked before. */
  setViewport(first: number, last: number, columns?: readonly (DhColumn | string)[] | null): DhViewport {
    if (this.isClosed) throw new LivetablesError(closed(this.name));
    if (!Number.isInteger(first) || !Number.isInteger(last) || first < 0 || last < first) {
      throw new LivetablesError({
        code: "bad_viewport",
        problem: `a viewport from ${first} to ${last} has no rows`,
        cure: "give the first and the last row, counted from 0, as whole numbers",
      });
    }
    const before = this.#viewport;
    const view: ViewOptions = { offset: first, size: last - first + 1, columns: namesOf(columns) };
    const viewport: Viewport = { view, data: null, problem: null, subscription: null };
    this.#viewport = viewport;
    viewport.subscription = this.handle.subscribe(view, {
      rows: (window) => {
        if (viewport === this.#viewport) this.#show(viewport, window);
      },
      problem: (problem) => {
        if (viewport === this.#viewport) this.#fail(viewport, problem);
      },
    });
    before?.subscription?.unsubscribe(); // after the new one is open, so that the same viewport stays
    return {
      close: () => {
        if (viewport !== this.#viewport) return;
        this.#viewport = null;
        viewport.subscription?.unsubscribe();
        this.#giveUp(noViewport(this.name));
      },
    };
  }

  /** Resolve with the viewport's rows, once they are here. */
  getViewportData(): Promise<ViewportData> {
    if (this.isClosed) return Promise.reject(new LivetablesError(closed(this.name)));
    const viewport = this.#viewport;
    if (!viewport) return Promise.reject(new LivetablesError(noViewport(this.name)));
    if (viewport.problem) return Promise.reject(new LivetablesError(viewport.problem));
    if (viewport.data) return Promise.resolve(viewport.data);
    return new Promise((resolve, reject) => this.#waiting.push({ resolve, reject }));
  }

  /** Resolve with the viewport's rows as they are now, in the columns asked for; without a viewport, the first rows. */
  snapshot(columns?: readonly (DhColumn | string)[] | null): Promise<ViewportData> {
    if (this.isClosed) return Promise.reject(new LivetablesError(closed(this.name)));
    const { offset = 0, size = ROWS_MAX } = this.#viewport?.view ?? {};
    return new Promise((resolve, reject) => {
      const looking = this.handle.subscribe(
        { offset, size, columns: namesOf(columns) },
        {
          rows: (window) => {
            looking.unsubscribe();
            resolve(dataOf(window));
          },
          problem: (problem) => {
            looking.unsubscribe();
            reject(new LivetablesError(problem));
          },
        },
      );
    });
  }

  /**
   * Call `listener` at each event; the function that is returned ends it. Whoever listens to updates after rows have
   * come gets those at once.
   */
  addEventListener<N extends string, D = DhEventDetail<N>>(
    name: N,
    listener: (event: CustomEvent<D>) => void,
  ): () => void {
    const added = listener as unknown as Listener; // the name of an event decides what it holds
    const listeners = this.#listeners.get(name) ?? new Set();
    this.#listeners.set(name, listeners.add(added));
    if (name === "schema_changed") this.#watchSchema();
    const data = this.#viewport?.data;
    if (data && isUpdate(name)) {
      queueMicrotask(() => {
        if (this.#viewport?.data === data && listeners.has(added)) call(added, name, data);
      });
    }
    return () => {
      this.removeEventListener(name, listener);
    };
  }

  removeEventListener<N extends string, D = DhEventDetail<N>>(
    name: N,
    listener: (event: CustomEvent<D>) => void,
  ): void {
    this.#listeners.get(name)?.delete(listener as unknown as Listener);
    if (!this.#listeners.get("schema_changed")?.size) this.#unwatchSchema();
  }

  /** Nothing comes from it any more. Whoever is bound to it by an adapter gets another one. */
  close(): void {
    this.#viewport?.subscription?.unsubscribe();
    this.#viewport = null;
    this.#unwatchSchema();
    this.#listeners.clear();
    this.#giveUp(closed(this.name));
    this.handle.close();
  }

  #show(viewport: Viewport, window: Window): void {
    const data = dataOf(window);
    viewport.data = data;
    viewport.problem = null;
    if (viewport.view.columns === null) this.#learn(window.columns);
    if (viewport !== this.#viewport) return; // whoever learned of other columns has set another one
    for (const { resolve } of this.#waiting.splice(0)) resolve(data);
    this.#emit("update", data);
    this.#emit("updated", data);
  }

  #fail(viewport: Viewport, problem: Problem): void {
    viewport.problem = problem;
    this.#giveUp(problem);
    if (this.#listeners.get("requestfailed")?.size) this.#emit("requestfailed", problem);
    else console.error(new LivetablesError(problem));
  }

  #giveUp(problem: Problem): void {
    for (const { reject } of this.#waiting.splice(0)) reject(new LivetablesError(problem));
  }

  #watchSchema(): void {
    this.#schema ??= this.handle.subscribe(
      { size: 0 },
      {
        rows: () => undefined,
        schema: (columns) => {
          this.#learn(columns);
        },
      },
    );
  }

  #unwatchSchema(): void {
    this.#schema?.unsubscribe();
    this.#schema = null;
  }

  #learn(columns: readonly Column[]): void {
    const learned = columnsOf(columns);
    if (areSame(learned, this.#columns)) return;
    this.#columns = learned;
    this.#emit("schema_changed", { columns: [...learned] });
  }

  #emit<N extends keyof DhEvents>(name: N, detail: DhEvents[N]): void {
    for (const listener of [...(this.#listeners.get(name) ?? [])]) call(listener, name, detail);
  }
}

type Listener = (event: CustomEvent<unknown>) => void;

interface Viewport {
  readonly view: ViewOptions;
  data: ViewportData | null;
  problem: Problem | null;
  subscription: Subscription | null;
}

interface Waiting {
  readonly resolve: (data: ViewportData) => void;
  readonly reject: (error: LivetablesError) => void;
}

/** The others are to be called though one throws. */
function call(listener: Listener, name: string, detail: unknown): void {
  try {
    listener(new CustomEvent(name, { detail }));
  } catch (error) {
    console.error(error);
  }
}

function isUpdate(name: string): boolean {
  return name === "update" || name === "updated";
}

function dataOf({ offset, columns, rows }: Window): ViewportData {
  return {
    offset,
    columns: [...columnsOf(columns)],
    rows: rows.map((row, position) => rowOf(row, offset + position)),
  };
}

function rowOf(row: Row, index: number): DhRow {
  return { index, get: (column) => row[typeof column === "string" ? column : column.name] ?? null };
}

/** Null means all of them. */
function namesOf(columns: readonly (DhColumn | string)[] | null | undefined): readonly string[] | null {
  return columns?.length ? columns.map((column) => (typeof column === "string" ? column : column.name)) : null;
}

function areSame(columns: readonly DhColumn[], others: readonly DhColumn[]): boolean {
  return (
    columns.length === others.length &&
    columns.every(({ name, type }, index) => name === others[index]?.name && type === others[index].type)
  );
}

function closed(name: string): Problem {
  return { code: "closed", problem: `the handle of ${name} is closed`, cure: "get another one by getTableHandle" };
}

function noViewport(name: string): Problem {
  return { code: "no_viewport", problem: `the handle of ${name} has no viewport`, cure: "call setViewport first" };
}
