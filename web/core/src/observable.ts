/**
 * Values over time, for whoever takes them: by callback, by `for await`, or by RxJS (`from(stream)`) and whatever else
 * takes observables, none of which is needed. Nothing runs until somebody subscribes.
 */
export interface Observer<T> {
  next(value: T): void;
  complete(): void;
}

export interface Unsubscribable {
  readonly unsubscribe: () => void;
}

export interface Stream<T> extends AsyncIterable<T> {
  subscribe(observer: Partial<Observer<T>> | ((value: T) => void)): Unsubscribable;
}

// Libraries of observables look for this under one name or the other, depending on what was loaded before them.
const INTEROP = "@@observable";
const INTEROP_SYMBOL = (Symbol as { observable?: symbol }).observable ?? INTEROP;

/** A stream of what `start` produces for each subscriber; what it returns is called once, at the end. */
export function streamOf<T>(start: (observer: Observer<T>) => () => void): Stream<T> {
  const stream: Stream<T> & Record<typeof INTEROP, () => Stream<T>> = {
    subscribe: (taker) => subscribed(start, taker),
    [Symbol.asyncIterator]: () => iterator(stream),
    [INTEROP]: () => stream,
    [INTEROP_SYMBOL]: () => stream,
  };
  return stream;
}

function subscribed<T>(
  start: (observer: Observer<T>) => () => void,
  taker: Partial<Observer<T>> | ((value: T) => void),
): Unsubscribable {
  const observer = typeof taker === "function" ? { next: taker } : taker;
  let isOpen = true as boolean; // which `start` may change
  let stop: (() => void) | null = null;
  const end = (): void => {
    isOpen = false;
    const stopping = stop;
    stop = null;
    stopping?.();
  };
  stop = start({
    next: (value) => {
      if (isOpen) observer.next?.(value);
    },
    complete: () => {
      if (!isOpen) return;
      end();
      observer.complete?.();
    },
  });
  if (!isOpen) end(); // it was over before `start` had returned
  return { unsubscribe: end };
}

/** Whoever is slower than the stream gets the newest value: there is no queue. */
function iterator<T>(stream: Stream<T>): AsyncIterableIterator<T> {
  let newest: { readonly value: T } | null = null;
  let isOver = false;
  const waiting: ((result: IteratorResult<T>) => void)[] = [];
  const finish = (): void => {
    isOver = true;
    for (const resolve of waiting.splice(0)) resolve({ done: true, value: undefined });
  };
  const subscription = stream.subscribe({
    next: (value) => {
      const resolve = waiting.shift();
      if (resolve) resolve({ done: false, value });
      else newest = { value };
    },
    complete: finish,
  });
  return {
    next: () => {
      if (newest) {
        const { value } = newest;
        newest = null;
        return Promise.resolve({ done: false, value });
      }
      return isOver
        ? Promise.resolve({ done: true, value: undefined })
        : new Promise((resolve) => waiting.push(resolve));
    },
    return: () => {
      newest = null;
      subscription.unsubscribe();
      finish();
      return Promise.resolve({ done: true, value: undefined });
    },
    [Symbol.asyncIterator]() {
      return this;
    },
  };
}

/** A value that changes, as a stream that begins with what it is now. */
export class LiveValue<T> {
  #value: T;
  readonly #report: (error: unknown) => void;
  readonly #observers = new Set<Observer<T>>();
  readonly stream: Stream<T>;

  /** `report` gets what observers throw. */
  constructor(value: T, report: (error: unknown) => void = console.error) {
    this.#value = value;
    this.#report = report;
    this.stream = streamOf((observer) => {
      this.#observers.add(observer);
      observer.next(this.#value);
      return () => this.#observers.delete(observer);
    });
  }

  get value(): T {
    return this.#value;
  }

  set(value: T): void {
    this.#value = value;
    for (const observer of [...this.#observers]) {
      try {
        observer.next(value);
      } catch (error) {
        this.#report(error); // the others get it all the same
      }
    }
  }
}
