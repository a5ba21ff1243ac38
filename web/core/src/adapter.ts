/**
 * Rows of one table for one part of a page, whatever becomes of the handle that it was bound with.
 *
 * A closed handle is terminal: the adapter detaches, waits, and acquires another one by name, once. Only rows that come
 * from that one earn it another try, so that a handle which closes again and again causes no storm. Whatever an earlier
 * binding still has to say carries an earlier token, and is ignored.
 */
import type { Problem } from "./errors.js";
import { LivetablesError } from "./errors.js";
import type { Handle } from "./handle.js";
import type { Subscription } from "./hub.js";
import type { ViewOptions } from "./protocol.js";
import type { Surroundings } from "./surroundings.js";
import type { Row, Window } from "./window.js";

export const REACQUIRE_MS = 150;
export const ADAPTER_ROWS = 10_000;

/** Rows are the receiver's own array; the rows in it are shared, and not to be changed. */
export type RowsCallback<T> = (rows: T[], window: Window) => void;
export type Resolver = (name: string) => Handle | Promise<Handle>;

export interface AdapterOptions {
  /** What to look at: by default the first 10,000 rows. */
  readonly view?: ViewOptions | undefined;
  /** Called with the reason when rows cannot come. */
  readonly onProblem?: ((problem: Problem) => void) | undefined;
}

export class LiveTableAdapter {
  readonly #resolver: Resolver;
  readonly #later: Surroundings["later"];
  readonly #options: AdapterOptions;
  #binding: Binding | null = null;
  #token = 0;
  #detach: () => void = () => undefined;

  constructor(resolver: Resolver, later: Surroundings["later"], options: AdapterOptions = {}) {
    this.#resolver = resolver;
    this.#later = later;
    this.#options = options;
  }

  get isBound(): boolean {
    return this.#binding !== null;
  }

  /**
   * Give a table's rows to `onRows`, now and whenever they change. Binding again ends the earlier binding; binding the
   * same again changes nothing. Resolves when it is bound; rows come as soon as they are here.
   */
  bind<T extends object = Row>(
    handle: Handle,
    onRows: RowsCallback<T>,
    columns?: readonly (string | { readonly name: string })[] | null,
    resolver?: Resolver | null,
  ): Promise<void> {
    const names = columns?.length ? columns.map((column) => (typeof column === "string" ? column : column.name)) : null;
    const binding: Binding = {
      handle,
      onRows: onRows as unknown as RowsCallback<Row>, // the caller declares the type of its rows
      view: { size: ADAPTER_ROWS, ...this.#options.view, ...(names && { columns: names }) },
      resolver: resolver ?? this.#resolver,
      mayReacquire: true,
    };
    if (!this.#binding || !isSame(this.#binding, binding)) {
      this.unbind();
      this.#binding = binding;
      this.#attach(binding, handle);
    }
    return Promise.resolve();
  }

  unbind(): void {
    this.#binding = null;
    this.#release();
  }

  #attach(binding: Binding, handle: Handle): void {
    const token = this.#release();
    if (handle.isClosed) {
      this.#reacquire(binding);
      return;
    }
    const ifCurrent =
      <A extends unknown[]>(call: (...given: A) => void) =>
      (...given: A) => {
        if (token === this.#token) call(...given);
      };
    const subscription: Subscription = handle.subscribe(binding.view, {
      rows: ifCurrent((window) => {
        binding.mayReacquire = true;
        binding.onRows([...window.rows], window);
      }),
      problem: ifCurrent((problem) => {
        this.#options.onProblem?.(problem);
      }),
    });
    const stopListening = handle.onClosed(
      ifCurrent(() => {
        this.#reacquire(binding);
      }),
    );
    this.#detach = () => {
      stopListening();
      subscription.unsubscribe();
    };
  }

  #reacquire(binding: Binding): void {
    const token = this.#release();
    const { name } = binding.handle;
    if (!binding.mayReacquire) {
      this.#options.onProblem?.({
        code: "closed",
        problem: `the handle of ${name} was closed again before any rows came`,
        cure: "bind it anew when the table is there",
      });
      return;
    }
    binding.mayReacquire = false;
    this.#detach = this.#later(() => {
      this.#resolve(binding).then(
        (handle) => {
          if (token === this.#token) this.#attach(binding, handle);
        },
        (error: unknown) => {
          if (token === this.#token) this.#options.onProblem?.(asProblem(error, name));
        },
      );
    }, REACQUIRE_MS);
  }

  async #resolve(binding: Binding): Promise<Handle> {
    return binding.resolver(binding.handle.name);
  }

  /** Ends what is attached; the token of what comes next. */
  #release(): number {
    const detach = this.#detach;
    this.#detach = () => undefined;
    this.#token++;
    detach();
    return this.#token;
  }
}

interface Binding {
  readonly handle: Handle;
  readonly onRows: RowsCallback<Row>;
  readonly view: ViewOptions;
  readonly resolver: Resolver;
  mayReacquire: boolean;
}

function isSame(binding: Binding, other: Binding): boolean {
  return (
    binding.handle === other.handle &&
    binding.onRows === other.onRows &&
    JSON.stringify(binding.view) === JSON.stringify(other.view)
  );
}

function asProblem(error: unknown, name: string): Problem {
  if (error instanceof LivetablesError) return error;
  return {
    code: "unavailable",
    problem: `the table ${name} cannot be acquired again: ${String(error)}`,
    cure: "bind it anew when the table is there",
  };
}
