import { from, firstValueFrom, map, take } from "rxjs";
import { beforeEach, describe, expect, it } from "vitest";
import { LiveTablesClient } from "../src/client.js";
import { LiveValue, streamOf } from "../src/observable.js";
import type { Observer } from "../src/observable.js";
import type { Row } from "../src/window.js";
import { FakeSurroundings, settled } from "./support/fake.js";
import { error, rebound, schema, snapshot, status, WELCOME } from "./support/frames.js";

describe("a stream", () => {
  let observers: Observer<number>[];
  let ends: number;
  const numbers = streamOf<number>((observer) => {
    observers.push(observer);
    return () => ends++;
  });

  beforeEach(() => {
    observers = [];
    ends = 0;
  });

  it("runs for each who takes it, until they leave", () => {
    const seen: number[] = [];
    const { unsubscribe } = numbers.subscribe((value) => seen.push(value));
    observers[0]?.next(1);
    unsubscribe();
    unsubscribe();
    observers[0]?.next(2);
    expect([seen, ends]).toEqual([[1], 1]);
  });

  it("that ends before its start has returned is ended properly", () => {
    let isComplete = false;
    streamOf((observer) => {
      observer.complete();
      return () => ends++;
    }).subscribe({ complete: () => (isComplete = true) });
    expect([isComplete, ends]).toEqual([true, 1]);
  });

  it("is what RxJS takes", async () => {
    const doubled = firstValueFrom(from(numbers).pipe(take(1), map((value) => value * 2))); // prettier-ignore
    observers[0]?.next(21);
    expect(await doubled).toBe(42);
    expect(ends).toBe(1);
  });

  it("can be iterated; whoever is slow gets the newest value", async () => {
    const iterator = numbers[Symbol.asyncIterator]();
    const first = iterator.next();
    for (const value of [1, 2, 3]) observers[0]?.next(value);
    expect([(await first).value, (await iterator.next()).value]).toEqual([1, 3]);
    const last = iterator.next();
    observers[0]?.complete();
    expect((await last).done).toBe(true);
    expect((await iterator.next()).done).toBe(true);
  });

  it("is left when its iteration is", async () => {
    const value = new LiveValue(7);
    for await (const seen of value.stream) {
      expect(seen).toBe(7);
      break;
    }
    const iterator = numbers[Symbol.asyncIterator]();
    const pending = iterator.next();
    await iterator.return?.();
    expect((await pending).done).toBe(true);
    expect(ends).toBe(1);
  });

  it("of a value notifies all observers though one throws", () => {
    const reported: unknown[] = [];
    const value = new LiveValue(1, (error) => reported.push(error));
    const seen: number[] = [];
    value.stream.subscribe((each) => {
      if (each === 2) throw new Error("a mistake of the page");
    });
    value.stream.subscribe((each) => seen.push(each));
    value.set(2);
    expect(seen).toEqual([1, 2]);
    expect(reported).toHaveLength(1);
  });
});

describe("streamTableWithRebind", () => {
  let world: FakeSurroundings;
  let client: LiveTablesClient;

  beforeEach(async () => {
    world = new FakeSurroundings();
    client = new LiveTablesClient({ url: "http://host", surroundings: world });
    const connecting = client.connect();
    world.socket.open();
    world.socket.receive(WELCOME);
    world.socket.receive(status("live"));
    await connecting;
  });

  /** The orchestrator's row names a generation. Sub 0 has the rows, sub 1 the status. */
  function named(generation: string): void {
    world.socket.receive(schema({ sub: 1, generation: "status" }, [{ name: "generation", type: "string" }]));
    world.socket.receive(snapshot([[generation]], { sub: 1, generation: "status" }));
  }

  function subscribed(): Row[][] {
    const seen: Row[][] = [];
    client.streamTableWithRebind("user", 1000).rows$.subscribe((rows) => seen.push(rows));
    world.socket.receive(schema());
    world.socket.receive(snapshot([["Ann", 1]]));
    named("g1");
    return seen;
  }

  it("gives the first rows of the table, and looks at nothing before somebody takes them", () => {
    const { rows$ } = client.streamTableWithRebind("user", 1000);
    expect(client.hub.viewports).toBe(0);
    rows$.subscribe(() => undefined);
    expect(world.socket.of("subscribe").map(({ table, view }) => [table, view.size])).toEqual([
      ["user", 1000],
      ["orchestrator_status", 1],
    ]);
  });

  it("shares its viewports between all who take it, and late ones are served at once", async () => {
    const { rows$ } = client.streamTableWithRebind("user", 1000);
    const seen: Row[][] = [];
    const subscriptions = [1, 2, 3].map(() => rows$.subscribe((rows) => seen.push(rows)));
    world.socket.receive(schema());
    world.socket.receive(snapshot([["Ann", 1]]));
    expect(seen).toHaveLength(3);
    subscriptions.push(rows$.subscribe((rows) => seen.push(rows)));
    await settled();
    expect(seen).toHaveLength(4);
    expect(client.hub.viewports).toBe(2);
    for (const { unsubscribe } of subscriptions) unsubscribe();
    expect(client.hub.viewports).toBe(0);
    expect(world.socket.of("unsubscribe")).toHaveLength(2);
  });

  it("does nothing when rows of the new generation come by themselves", async () => {
    const seen = subscribed();
    world.socket.receive(rebound("g1", { generation: "g2" }));
    world.socket.receive(snapshot([["Bob", 1]], { generation: "g2" }));
    named("g2");
    await world.pass(1_000);
    expect(seen.map(([row]) => row?.["name"])).toEqual(["Ann", "Bob"]);
    expect(world.socket.of("resync")).toEqual([]);
  });

  it("asks once when they do not", async () => {
    const seen = subscribed();
    named("g2");
    await world.pass(149);
    expect(world.socket.of("resync")).toEqual([]);
    await world.pass(1);
    expect(world.socket.of("resync")).toEqual([{ type: "resync", sub: 0 }]);
    await world.pass(9_000);
    expect(world.socket.of("resync")).toHaveLength(1);
    world.socket.receive(snapshot([["Bob", 1]], { generation: "g2" }));
    expect(seen.at(-1)?.[0]?.["name"]).toBe("Bob");
  });

  it("can be followed with problems and state", async () => {
    const notified: string[] = [];
    const end = client.follow("usr", 1000, {
      rows: () => notified.push("rows"),
      problem: ({ code }) => notified.push(code),
      state: ({ name }) => notified.push(name),
    });
    world.socket.receive(error("unknown_table", 0));
    await settled();
    end();
    expect(notified).toEqual(["unknown_table", "failed"]);
    expect(client.hub.viewports).toBe(0);
  });

  it("ends for everybody when it is disposed of, and for whoever comes after", () => {
    const { rows$, dispose } = client.streamTableWithRebind("user", 1000);
    let completed = 0;
    for (let times = 0; times < 3; times++) rows$.subscribe({ complete: () => completed++ });
    dispose();
    dispose();
    rows$.subscribe({ complete: () => completed++ });
    expect(completed).toBe(4);
    expect(client.hub.viewports).toBe(0);
  });
});
