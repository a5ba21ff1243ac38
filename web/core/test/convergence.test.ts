/**
 * Whatever comes in whatever order, the client ends with what the server has, one viewport for each view, and nothing
 * left behind; also when a patch is wrong, which its checksum shows. The server is a model over fake sockets and a fake clock: a real one cannot be stopped between any two
 * steps. test/real-server.test.ts has the real one.
 */
import fc from "fast-check";
import { expect, it } from "vitest";
import { LiveTablesClient } from "../src/client.js";
import type { Subscription } from "../src/hub.js";
import type { ViewOptions } from "../src/protocol.js";
import { viewKey, viewOf } from "../src/view.js";
import type { ViewState } from "../src/view-state.js";
import type { Window } from "../src/window.js";
import { FakeSurroundings, settled } from "./support/fake.js";
import { ModelServer } from "./support/model-server.js";
import type { Content, Fault } from "./support/model-server.js";

const TABLES = ["users_ui", "accounts_ui"];
const VIEWS: readonly ViewOptions[] = [
  {},
  { size: 3 },
  { offset: 2, size: 3 },
  { sort: [{ column: "age", descending: true }], size: 4 },
  { columns: ["age"], sort: [{ column: "name" }], offset: 1 },
  { columns: ["email", "name"], size: 5 }, // which some generations do not have
  { quick: "1" },
  { filters: [{ column: "name", op: "contains", value: "1".repeat(1_001) }] }, // which the server has, and cannot show
];

const table = fc.constantFrom(...TABLES);
const view = fc.constantFrom(...VIEWS);
const looker = fc.nat(7);

type Action =
  | { readonly do: "subscribe"; readonly looker: number; readonly table: string; readonly view: ViewOptions }
  | { readonly do: "look"; readonly looker: number; readonly view: ViewOptions }
  | { readonly do: "unsubscribe" | "resync"; readonly looker: number }
  | { readonly do: "insert"; readonly table: string; readonly age: number }
  | { readonly do: "change"; readonly table: string; readonly index: number; readonly age: number }
  | { readonly do: "remove"; readonly table: string; readonly index: number }
  | { readonly do: "publish"; readonly table: string; readonly rows: number; readonly hasOtherColumns: boolean }
  | { readonly do: "drop"; readonly table: string }
  | { readonly do: "read" | "write" | "deliver"; readonly times: number }
  | { readonly do: "spoil"; readonly how: "lose" | "repeat" }
  | { readonly do: "corrupt"; readonly fault: Fault }
  | { readonly do: "close"; readonly code: number }
  | { readonly do: "pass"; readonly ms: number }
  | { readonly do: "wake"; readonly ms: number }
  | { readonly do: "short of memory"; readonly isShort: boolean }
  | { readonly do: "stop" | "start" | "another key" | "log in" | "garbage" };

const often = 6;
const action: fc.Arbitrary<Action> = fc.oneof(
  { weight: often, arbitrary: fc.record({ do: fc.constant("subscribe"), looker, table, view }) },
  { weight: often, arbitrary: fc.record({ do: fc.constant("look"), looker, view }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constantFrom("unsubscribe", "resync"), looker }) },
  { weight: often, arbitrary: fc.record({ do: fc.constant("insert"), table, age: fc.nat(5) }) },
  { weight: often, arbitrary: fc.record({ do: fc.constant("change"), table, index: fc.nat(9), age: fc.nat(5) }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant("remove"), table, index: fc.nat(9) }) },
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constant("publish"), table, rows: fc.nat(9), hasOtherColumns: fc.boolean() }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant("drop"), table }) },
  { weight: 4 * often, arbitrary: fc.record({ do: fc.constantFrom("read", "write", "deliver"), times: fc.nat(6) }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant("spoil"), how: fc.constantFrom("lose", "repeat") }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant("close"), code: fc.constantFrom(1006, 1012, 1013, 4408) }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant("pass"), ms: fc.constantFrom(100, 1_000, 40_000) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant("wake"), ms: fc.constantFrom(100, 100_000) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant("short of memory"), isShort: fc.boolean() }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constantFrom("stop", "start", "another key", "log in", "garbage") }) },
);

const fault = fc.constantFrom<Fault>("wrong value", "lost row");
const actionOrFault: fc.Arbitrary<Action> = fc.oneof(
  { weight: 9, arbitrary: action },
  { weight: 1, arbitrary: fc.record({ do: fc.constant("corrupt"), fault }) },
);

/** Somebody on the page: what it looks at, and what it shows. */
interface Looker {
  readonly table: string;
  options: ViewOptions;
  readonly subscription: Subscription;
  shown: Window | null;
  state: ViewState | null;
}

class Story {
  readonly world = new FakeSurroundings();
  readonly server = new ModelServer(() => this.world.now());
  readonly client: LiveTablesClient;
  readonly lookers = new Map<number, Looker>();
  /** What was wrong with what somebody was shown. */
  readonly mistakes: unknown[] = [];

  constructor() {
    for (const name of TABLES) this.server.publish(name, 6, false);
    this.world.onSocket = (socket) => {
      queueMicrotask(() => { this.server.connect(socket); });
    }; // prettier-ignore
    this.client = new LiveTablesClient({
      url: "http://host",
      token: "the key",
      surroundings: this.world,
      onError: (error) => this.mistakes.push(error),
    });
    this.client.connect().catch(() => undefined);
  }

  async take(action: Action): Promise<void> {
    switch (action.do) {
      case "subscribe":
        this.#subscribe(action.looker, action.table, action.view);
        break;
      case "look":
        this.#look(action.looker, action.view);
        break;
      case "unsubscribe":
        this.lookers.get(action.looker)?.subscription.unsubscribe();
        this.lookers.delete(action.looker);
        break;
      case "resync":
        this.lookers.get(action.looker)?.subscription.resync();
        break;
      case "insert":
        this.server.insert(action.table, action.age);
        break;
      case "change":
        this.server.change(action.table, action.index, action.age);
        break;
      case "remove":
        this.server.remove(action.table, action.index);
        break;
      case "publish":
        this.server.publish(action.table, action.rows, action.hasOtherColumns);
        break;
      case "drop":
        this.server.drop(action.table);
        break;
      case "read":
      case "write":
      case "deliver":
        for (let times = 0; times <= action.times; times++) this.server[action.do]();
        break;
      case "spoil":
        this.server.spoil(action.how);
        break;
      case "corrupt":
        this.server.corrupt(action.fault);
        break;
      case "close":
        this.server.close(action.code);
        break;
      case "pass":
        await this.world.pass(action.ms);
        break;
      case "wake":
        this.world.wake(action.ms);
        break;
      case "short of memory":
        this.server.setShortOfMemory(action.isShort);
        break;
      case "stop":
        this.server.stop();
        break;
      case "start":
        this.server.start();
        break;
      case "another key":
        this.server.key += "!";
        break;
      case "log in":
        this.client.login(this.server.key).catch(() => undefined);
        break;
      case "garbage":
        for (const socket of this.world.openSockets) socket.receiveText("<html>");
        break;
    }
    await settled();
    this.#checkMistakes();
    expect(this.world.openSockets.length).toBeLessThanOrEqual(1);
    expect(this.world.timers).toBeLessThanOrEqual(1);
  }

  /** All goes well again, and everything that is under way arrives. */
  async end(): Promise<void> {
    this.server.start();
    this.server.setShortOfMemory(false);
    let quiet = 0;
    for (let rounds = 0; quiet < 2; rounds++) {
      if (rounds > 10_000) throw new Error("there is no end to it");
      if (this.client.health.state === "refused") await this.take({ do: "log in" });
      const isBusy = [this.server.read(), this.server.write(), this.server.deliver()].includes(true);
      await settled();
      if (isBusy) continue;
      if (this.client.isReady) quiet++;
      else await this.world.pass(1_000);
    }
    this.#checkMistakes();
  }

  /** Everything arrives, and what was not compared is, at the next heartbeat. */
  async endCompared(): Promise<void> {
    await this.end();
    await this.world.pass(10_000);
    await this.end();
  }

  /** Whoever looks sees what the server has, and its state says so; how many that can be said of. */
  checkEnd(): number {
    let checked = 0;
    for (const { table, options, shown, state } of this.lookers.values()) {
      const expected = this.server.shown(table, options);
      expect(state?.name).toBe(expected ? "live" : "failed");
      if (!expected) continue; // this generation has no such column
      checked++;
      expect(shown && content(shown)).toEqual(expected.content);
    }
    return checked;
  }

  /** Insert until every view has changed, that which finds a 1 too. */
  insertForAll(table: string): void {
    while (!String(this.server.insert(table, 3)).includes("1"));
  }

  /** The views that are looked at. */
  get keys(): Set<string> {
    return new Set([...this.lookers.values()].map(({ table, options }) => viewKey(table, viewOf(options))));
  }

  #subscribe(number: number, table: string, options: ViewOptions): void {
    if (this.lookers.has(number)) return;
    const subscription = this.client.hub.subscribe(table, options, {
      rows: (window) => {
        looker.shown = window;
        if (this.server.faults === 0) this.#check(looker, window);
      },
      state: (state) => {
        looker.state = state;
      },
    });
    const looker: Looker = { table, options, subscription, shown: null, state: null };
    this.lookers.set(number, looker);
  }

  #look(number: number, options: ViewOptions): void {
    const looker = this.lookers.get(number);
    if (!looker) return;
    const nothingLeftOut = viewOf(options);
    looker.options = nothingLeftOut;
    looker.subscription.look(nothingLeftOut);
  }

  #checkMistakes(): void {
    if (this.mistakes.length > 0) throw this.mistakes[0];
  }

  /** What is shown is what the server had at some time, whole: never half of this and half of that. */
  #check(looker: Looker, window: Window): void {
    const had = this.server.history.get(`${window.generation} ${window.sequence}`);
    if (!had) throw new Error("the server never had what is shown");
    expect({ ...content(window), offset: window.offset }).toEqual({
      ...had.content,
      offset: viewOf(looker.options).offset,
    });
  }
}

function content({ rows, columns, total, generation }: Window): Content {
  return { rows, columns, total, generation };
}

it("any order of frames, closes and reconnects ends in the server's state, with one viewport a view and no leak", async () => {
  let checked = 0;
  let compared = 0;
  await fc.assert(
    fc.asyncProperty(fc.array(action, { maxLength: 80, size: "max" }), async (actions) => {
      const story = new Story();
      for (const each of actions) await story.take(each);
      await story.end();
      for (const name of TABLES) story.server.publishIfGone(name);
      for (const name of TABLES) story.insertForAll(name); // a patch that was lost is noticed by the next one
      await story.end();
      for (const name of TABLES) story.server.insert(name, 4); // by a patch
      await story.endCompared();

      checked += story.checkEnd();
      compared += story.client.comparisons.compared;
      expect(story.client.comparisons.different).toBe(0);
      expect(story.server.resyncs).not.toContain("checksum");
      expect(story.client.hub.viewports).toBe(story.keys.size);
      expect(story.server.subscriptions).toBe(story.keys.size);
      expect(story.server.sessions).toHaveLength(1);

      for (const { subscription } of story.lookers.values()) subscription.unsubscribe();
      await story.end();
      expect([story.client.hub.viewports, story.server.subscriptions]).toEqual([0, 0]);
      story.client.close();
      expect([story.world.openSockets.length, story.world.timers, story.world.wakeListeners]).toEqual([0, 0, 0]);
    }),
    { numRuns: 300 },
  );
  expect(checked).toBeGreaterThan(300);
  expect(compared).toBeGreaterThan(300);
});

it("patches with faults among them end in the server's state too", async () => {
  let different = 0;
  await fc.assert(
    fc.asyncProperty(fc.array(actionOrFault, { maxLength: 80, size: "max" }), async (actions) => {
      const story = new Story();
      for (const each of actions) await story.take(each);
      await story.end();
      for (const name of TABLES) story.server.publishIfGone(name);
      for (const name of TABLES) story.insertForAll(name);
      await story.endCompared();
      story.checkEnd();
      expect(story.client.comparisons.different).toBeLessThanOrEqual(story.server.faults);
      different += story.client.comparisons.different;
      story.client.close();
    }),
    { numRuns: 200 },
  );
  expect(different).toBeGreaterThan(50);
});

it("one fault in one patch is noticed, and healed by one resync", async () => {
  const patches = fc.array(fc.record({ table, age: fc.nat(5), isChange: fc.boolean() }), { maxLength: 5 });
  await fc.assert(
    fc.asyncProperty(patches, fault, fc.constantFrom(0, 100, 2_000), async (before, fault, ms) => {
      const story = new Story();
      for (const [looker, view] of VIEWS.entries()) {
        await story.take({ do: "subscribe", looker, table: "users_ui", view });
      }
      await story.end();
      for (const { table, age, isChange } of before) {
        if (isChange) story.server.change(table, age, age);
        else story.server.insert(table, age);
        await story.end();
        await story.world.pass(ms);
      }
      story.server.corrupt(fault);
      story.server.insert("users_ui", 9);
      await story.endCompared();

      expect(story.server.faults).toBe(1);
      expect(story.server.resyncs).toEqual(["checksum"]);
      expect(story.client.comparisons.different).toBe(1);
      story.checkEnd();
      story.client.close();
    }),
    { numRuns: 100 },
  );
});
