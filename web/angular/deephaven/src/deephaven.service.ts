/** The service that pages written for Deephaven inject, with its old forms, on the app's one connection. */
import { Injectable, inject } from "@angular/core";
import { LiveTableService } from "@livetables/angular";
import { LivetablesError, tableNameProblem } from "@livetables/client";
import type { Problem, Value } from "@livetables/client";
import { DH } from "./dh-namespace";
import type { DhNamespace } from "./dh-namespace";
import { DhTable } from "./dh-table";
import { LiveTableAdapter } from "./live-table-adapter";
import { cellsOf, columnsOf } from "./rows";
import type { NamedRow, OnRows } from "./rows";
import { streamHandle } from "./stream-handle";
import type { StreamHandle } from "./stream-handle";

/** A row's values in the order of the table's columns. */
export type Cells = Value[];

export interface SubscribeOptions {
  readonly offset?: number | undefined;
  readonly size?: number | undefined;
  /** Called with the reason when rows cannot come; without it, the console has it. */
  readonly onProblem?: ((problem: Problem) => void) | undefined;
}

/** Call it, or its method of the same name, to end a subscription. */
export interface Unsubscribe {
  (): Promise<void>;
  readonly unsubscribe: () => Promise<void>;
}

/** Rows of an adapter's viewport, as setViewport(0, 10000) has them. */
const ADAPTER_ROWS = 10_001;
const STREAM_ROWS = 1_000;

/** Connects with whatever needs it first. */
@Injectable({ providedIn: "root" })
export class DeephavenService {
  readonly #tables = inject(LiveTableService);

  /** Resolve when the server has taken the login. Nobody has to call it. */
  connect(): Promise<void> {
    return this.#tables.connect();
  }

  /** Whether there is a connection; a template that reads it is refreshed when that changes. */
  get isReady(): boolean {
    this.#tables.healthNow();
    return this.#tables.isReady;
  }

  getDhNs(): DhNamespace {
    return DH;
  }

  /** Resolve with a table once its columns are known; reject if there is no such table, or the key is wrong. */
  async getTableHandle(name: string): Promise<DhTable> {
    check(name);
    this.#connect();
    return new DhTable(await this.#tables.getTableHandle(name));
  }

  /** Rows of a table as arrays, now and whenever they change: the first 300, or those of the options. */
  subscribe<R extends readonly unknown[] = Cells>(
    name: string,
    onRows: OnRows<R>,
    options: SubscribeOptions = {},
  ): Unsubscribe {
    check(name);
    this.#connect();
    const { offset, size, onProblem = report } = options;
    const subscription = this.#tables.hub.subscribe(
      name,
      { offset, size },
      {
        rows: (window) => {
          const columns = columnsOf(window.columns);
          onRows(window.rows.map((row) => cellsOf(row, columns)) as unknown[] as R[]);
        },
        problem: onProblem,
        state: ({ name, why }) => {
          if (name === "refused") onProblem({ code: "unauthorized", problem: why, cure: "provide the right key" });
        },
      },
    );
    const unsubscribe = (): Promise<void> => {
      subscription.unsubscribe();
      return Promise.resolve();
    };
    return Object.assign(() => unsubscribe(), { unsubscribe });
  }

  createLiveAdapter(): LiveTableAdapter {
    const adapter = this.#tables.createLiveAdapter({ view: { size: ADAPTER_ROWS }, onProblem: report });
    return new LiveTableAdapter(adapter, () => {
      this.#connect();
    });
  }

  /** The first rows of a table, through every generation. */
  streamTableWithRebind<T extends object = NamedRow>(name: string, maxRows = STREAM_ROWS): StreamHandle<T> {
    this.#connect();
    return streamHandle<T>(this.#tables, name, maxRows);
  }

  /** A refusal is reported to each caller in its own way. */
  #connect(): void {
    this.connect().catch(() => undefined);
  }
}

function check(name: string): void {
  const problem = tableNameProblem(name);
  if (problem) throw new LivetablesError(problem);
}

function report(problem: Problem): void {
  console.error(new LivetablesError(problem));
}
