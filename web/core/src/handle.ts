/** A table by its name, as a page holds it. */
import type { Subscription, TableHub, ViewListener } from "./hub.js";
import type { Column, ViewOptions } from "./protocol.js";

export interface Handle {
  readonly name: string;
  /** The columns that the table had when the handle was acquired; those of its rows come with them. */
  readonly columns: readonly Column[];
  readonly isClosed: boolean;
  subscribe(options: ViewOptions, listener: ViewListener): Subscription;
  /** Call it when the handle is closed; the function that is returned ends that. */
  onClosed(listener: () => void): () => void;
}

/** Follows its table through every generation. It is closed by its holder only, and for good. */
export class TableHandle implements Handle {
  readonly name: string;
  readonly columns: readonly Column[];
  readonly #hub: TableHub;
  readonly #listeners = new Set<() => void>();
  #isClosed = false;

  constructor(hub: TableHub, name: string, columns: readonly Column[]) {
    this.#hub = hub;
    this.name = name;
    this.columns = columns;
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  subscribe(options: ViewOptions, listener: ViewListener): Subscription {
    return this.#hub.subscribe(this.name, options, listener);
  }

  onClosed(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Whoever is bound to it detaches, and acquires another one. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    for (const listener of [...this.#listeners]) listener();
    this.#listeners.clear();
  }
}
