import { beforeEach, describe, expect, it, vi } from "vitest";
import { LiveTableAdapter, REACQUIRE_MS } from "../src/adapter.js";
import type { Resolver } from "../src/adapter.js";
import type { Problem } from "../src/errors.js";
import type { Handle } from "../src/handle.js";
import type { Subscription, ViewListener } from "../src/hub.js";
import type { ViewOptions } from "../src/protocol.js";
import type { Row } from "../src/window.js";
import { shown } from "../src/window.js";
import { FakeSurroundings, settled } from "./support/fake.js";
import { COLUMNS, snapshot } from "./support/frames.js";

/** A handle that a test can close, and that keeps notifying those who have left, as a bad one would. */
class FakeHandle implements Handle {
  readonly name = "user";
  readonly columns = COLUMNS;
  isClosed = false;
  readonly views: ViewOptions[] = [];
  lookers = 0;
  readonly #listeners: ViewListener[] = [];
  readonly #closedListeners: (() => void)[] = [];

  subscribe(view: ViewOptions, listener: ViewListener): Subscription {
    this.views.push(view);
    this.#listeners.push(listener);
    this.lookers++;
    return { unsubscribe: () => this.lookers--, look: vi.fn(), resync: vi.fn(), latency: () => null };
  }

  onClosed(listener: () => void): () => void {
    this.#closedListeners.push(listener);
    return () => undefined;
  }

  send(name: string): void {
    for (const listener of this.#listeners) listener.rows(shown(snapshot([[name, 1]]), COLUMNS));
  }

  close(): void {
    this.isClosed = true;
    for (const listener of this.#closedListeners) listener();
  }
}

let world: FakeSurroundings;
let handles: FakeHandle[];
let problems: Problem[];
let seen: unknown[];
let resolver: ReturnType<typeof vi.fn<Resolver>>;
let adapter: LiveTableAdapter;

const onRows = (rows: Row[]): void => {
  seen.push(rows[0]?.["name"]);
};

beforeEach(() => {
  world = new FakeSurroundings();
  handles = [];
  problems = [];
  seen = [];
  resolver = vi.fn<Resolver>(() => Promise.resolve(newHandle()));
  adapter = new LiveTableAdapter(resolver, world.later, { onProblem: (problem) => problems.push(problem) });
});

function newHandle(): FakeHandle {
  const handle = new FakeHandle();
  handles.push(handle);
  return handle;
}

function handle(index: number): FakeHandle {
  const found = handles[index];
  if (!found) throw new Error(`there is no handle ${index}`);
  return found;
}

describe("binding", () => {
  it("looks at the first ten thousand rows, of the columns asked for", async () => {
    await adapter.bind(newHandle(), onRows, ["name"]);
    await adapter.bind(newHandle(), onRows, COLUMNS);
    await adapter.bind(newHandle(), onRows, []);
    expect(handles.map(({ views }) => views)).toEqual([
      [{ size: 10_000, columns: ["name"] }],
      [{ size: 10_000, columns: ["name", "age"] }],
      [{ size: 10_000 }],
    ]);
  });

  it("looks at what the adapter was made for", async () => {
    adapter = new LiveTableAdapter(resolver, world.later, { view: { size: 5, quick: "a" } });
    await adapter.bind(newHandle(), onRows);
    expect(handle(0).views).toEqual([{ size: 5, quick: "a" }]);
  });

  it("twice binds once", async () => {
    const user = newHandle();
    await Promise.all([adapter.bind(user, onRows, ["name"]), adapter.bind(user, onRows, ["name"])]);
    expect(user.views).toHaveLength(1);
    user.send("Ann");
    expect(seen).toEqual(["Ann"]);
  });

  it("to something else ends what was bound", async () => {
    await adapter.bind(newHandle(), onRows);
    await adapter.bind(newHandle(), onRows);
    handle(0).send("late");
    handle(1).send("Ann");
    expect(seen).toEqual(["Ann"]);
    expect(handles.map(({ lookers }) => lookers)).toEqual([0, 1]);
  });

  it("gives every receiver an array of its own", async () => {
    const received: Row[][] = [];
    await adapter.bind(newHandle(), (rows: Row[], window) => {
      received.push(rows);
      expect(rows).not.toBe(window.rows);
    });
    handle(0).send("Ann");
    expect(received).toEqual([[{ _row: 0, name: "Ann", age: 1 }]]);
  });
});

describe("unbinding", () => {
  it("ends it, and whatever comes late is ignored", async () => {
    await adapter.bind(newHandle(), onRows);
    expect(adapter.isBound).toBe(true);
    adapter.unbind();
    adapter.unbind();
    handle(0).send("late");
    handle(0).close();
    await world.pass(10_000);
    expect(seen).toEqual([]);
    expect(resolver).not.toHaveBeenCalled();
    expect([adapter.isBound, handle(0).lookers, world.timers]).toEqual([false, 0, 0]);
  });

  it("while it waits ends the waiting", async () => {
    await adapter.bind(newHandle(), onRows);
    handle(0).close();
    adapter.unbind();
    await world.pass(10_000);
    expect(resolver).not.toHaveBeenCalled();
  });

  it("while another handle is being acquired ends that", async () => {
    let resolve: (handle: Handle) => void = () => undefined;
    resolver.mockReturnValue(new Promise((settle) => (resolve = settle)));
    await adapter.bind(newHandle(), onRows);
    handle(0).close();
    await world.pass(REACQUIRE_MS);
    adapter.unbind();
    resolve(newHandle());
    await settled();
    expect(handle(1).views).toEqual([]);
  });
});

describe("a closed handle", () => {
  it("is left at once, and another one acquired by name after 150 ms", async () => {
    await adapter.bind(newHandle(), onRows, ["name"]);
    handle(0).send("Ann");
    handle(0).close();
    expect(handle(0).lookers).toBe(0);
    await world.pass(149);
    expect(resolver).not.toHaveBeenCalled();
    await world.pass(1);
    expect(resolver.mock.calls).toEqual([["user"]]);
    expect(handle(1).views).toEqual([{ size: 10_000, columns: ["name"] }]);
    handle(0).send("late");
    handle(1).send("Bob");
    expect(seen).toEqual(["Ann", "Bob"]);
  });

  it("is replaced through the resolver that was given with it", async () => {
    const own = vi.fn<Resolver>(() => newHandle());
    await adapter.bind(newHandle(), onRows, null, own);
    handle(0).close();
    await world.pass(REACQUIRE_MS);
    handle(1).send("Bob");
    expect(seen).toEqual(["Bob"]);
    expect(resolver).not.toHaveBeenCalled();
  });

  it("may be what it is bound with", async () => {
    newHandle().isClosed = true;
    await adapter.bind(handle(0), onRows);
    await world.pass(REACQUIRE_MS);
    handle(1).send("Ann");
    expect(seen).toEqual(["Ann"]);
  });

  it("that reports it many times is replaced once", async () => {
    await adapter.bind(newHandle(), onRows);
    for (let times = 0; times < 20; times++) handle(0).close();
    await world.pass(10_000);
    handle(0).close();
    await world.pass(10_000);
    expect(resolver).toHaveBeenCalledTimes(1);
  });

  it("is replaced every time, if rows came between", async () => {
    await adapter.bind(newHandle(), onRows);
    for (let times = 0; times < 5; times++) {
      handle(times).send(`${times}`);
      handle(times).close();
      await world.pass(REACQUIRE_MS);
    }
    expect(resolver).toHaveBeenCalledTimes(5);
    expect(problems).toEqual([]);
  });

  it("that follows a closed handle without rows is the end, and reported", async () => {
    await adapter.bind(newHandle(), onRows);
    handle(0).close();
    await world.pass(REACQUIRE_MS);
    handle(1).close();
    await world.pass(3_600_000);
    expect(resolver).toHaveBeenCalledTimes(1);
    expect(problems.map(({ code }) => code)).toEqual(["closed"]);
    expect(world.timers).toBe(0);
  });

  it("that cannot be replaced is reported, and not tried again", async () => {
    resolver.mockRejectedValue(new Error("no such table"));
    await adapter.bind(newHandle(), onRows);
    handle(0).close();
    await world.pass(3_600_000);
    expect(resolver).toHaveBeenCalledTimes(1);
    expect(problems[0]?.problem).toContain("no such table");
    await adapter.bind(newHandle(), onRows);
    handle(1).send("Ann");
    expect(seen).toEqual(["Ann"]);
  });
});
