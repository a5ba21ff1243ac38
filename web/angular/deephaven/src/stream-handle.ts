/** A table's rows as an observable that follows its generations, and fails when they cannot come. */
import type { LiveTableService } from "@livetables/angular";
import { LivetablesError, mayAppear, tableNameProblem } from "@livetables/client";
import { Observable, ReplaySubject, takeUntil } from "rxjs";
import { namedRow } from "./rows";
import type { NamedRow } from "./rows";

export interface StreamHandle<T extends object = NamedRow> {
  /** Begins with no rows; an unknown table, too many rows or a wrong key is its error. */
  readonly rows$: Observable<T[]>;
  /** Completes `rows$` for everybody. */
  readonly dispose: () => Promise<void>;
}

export function streamHandle<T extends object>(
  tables: LiveTableService,
  name: string,
  maxRows: number,
): StreamHandle<T> {
  const disposed = new ReplaySubject<void>(1);
  const rows = new Observable<T[]>((subscriber) => {
    subscriber.next([]);
    const problem = tableNameProblem(name);
    if (problem) {
      subscriber.error(new LivetablesError(problem));
      return undefined;
    }
    return tables.follow(name, maxRows, {
      rows: (window) => {
        subscriber.next(window.rows.map(namedRow) as unknown as T[]); // the page declares the type of its rows
      },
      problem: (problem) => {
        const mayCome = problem.code === "unknown_table" && mayAppear(tables.statusNow());
        if (!mayCome) subscriber.error(new LivetablesError(problem));
      },
      state: ({ name, why }) => {
        if (name === "refused") subscriber.error(new LivetablesError(refusal(why)));
      },
    });
  });
  return {
    rows$: rows.pipe(takeUntil(disposed)),
    dispose: () => {
      disposed.next();
      return Promise.resolve();
    },
  };
}

function refusal(why: string): { code: string; problem: string; cure: string } {
  return { code: "unauthorized", problem: why, cure: "provide the right key, and subscribe again" };
}
