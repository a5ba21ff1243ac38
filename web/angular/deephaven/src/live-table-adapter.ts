/** The client's adapter in the old form: it connects, gives rows without internal ids, and its ends are promises. */
import type { LiveTableAdapter as ClientAdapter, RowsCallback } from "@livetables/client";
import type { DhTable } from "./dh-table";
import { namedRow } from "./rows";
import type { DhColumn, NamedRow, OnRows } from "./rows";

export type Resolver = (name: string) => DhTable | Promise<DhTable>;

export class LiveTableAdapter {
  readonly #adapter: ClientAdapter;
  readonly #connect: () => void;
  /** The same callback for the same one of the page, so that binding twice binds once. */
  readonly #callbacks = new WeakMap<object, RowsCallback<NamedRow>>();

  constructor(adapter: ClientAdapter, connect: () => void) {
    this.#adapter = adapter;
    this.#connect = connect;
  }

  get isBound(): boolean {
    return this.#adapter.isBound;
  }

  /** Give a table's rows to `onRows`, now and whenever they change. Binding again ends the earlier binding. */
  bind<T extends object = NamedRow>(
    handle: DhTable,
    onRows: OnRows<T>,
    columns?: readonly (DhColumn | string)[] | null,
    resolver?: Resolver | null,
  ): Promise<void> {
    this.#connect();
    const resolve = resolver && (async (name: string) => (await resolver(name)).handle);
    return this.#adapter.bind(handle.handle, this.#callback(onRows), columns, resolve);
  }

  unbind(): Promise<void> {
    this.#adapter.unbind();
    return Promise.resolve();
  }

  #callback<T extends object>(onRows: OnRows<T>): RowsCallback<NamedRow> {
    const known = this.#callbacks.get(onRows);
    if (known) return known;
    const callback: RowsCallback<NamedRow> = (_, { rows }) => {
      onRows(rows.map(namedRow) as unknown as T[]);
    };
    this.#callbacks.set(onRows, callback);
    return callback;
  }
}
