import { beforeEach, describe, expect, it, vi } from "vitest";
import type { Problem } from "../src/errors.js";
import { TableHub } from "../src/hub.js";
import type { Subscription, ViewListener } from "../src/hub.js";
import type { ClientFrame, ErrorFrame, Limits, SubscriptionFrame, ViewOptions } from "../src/protocol.js";
import type { ViewState } from "../src/view-state.js";
import { COMPARE_MS } from "../src/viewport.js";
import type { Window } from "../src/window.js";
import { nodeChecksum } from "./support/checksum.js";
import { settled } from "./support/fake.js";
import { COLUMNS, error, patch, rebound, schema, snapshot, WELCOME } from "./support/frames.js";

/** A wire that only writes down what is sent. */
class FakeWire {
  limits: Limits | null = WELCOME.limits;
  hasChecksums = false;
  time = 1_000_000;
  sent: ClientFrame[] = [];

  send(text: string): void {
    this.sent.push(JSON.parse(text) as ClientFrame);
  }

  now(): number {
    return this.time;
  }

  /** What was sent since it was last asked. */
  news(): string[] {
    return this.sent.splice(0).map((frame) => ("sub" in frame ? `${frame.type} ${frame.sub}` : frame.type));
  }
}

/** A listener that remembers its notifications. */
class Looker implements ViewListener {
  readonly windows: Window[] = [];
  readonly notified: string[] = [];

  get names(): unknown[] | undefined {
    return this.windows.at(-1)?.rows.map((row) => row["name"]);
  }

  rows(window: Window): void {
    this.windows.push(window);
    this.notified.push(`rows of ${window.generation}`);
  }

  schema(columns: Window["columns"]): void {
    this.notified.push(`schema ${columns.map(({ name }) => name).join()}`);
  }

  rebound(before: string, generation: string): void {
    this.notified.push(`rebound ${before} ${generation}`);
  }

  problem({ code }: Problem): void {
    this.notified.push(`problem ${code}`);
  }
}

let wire: FakeWire;
let hub: TableHub;
let reported: unknown[];

beforeEach(() => {
  wire = new FakeWire();
  reported = [];
  hub = new TableHub(wire, (thrown) => reported.push(thrown));
});

function look(options: ViewOptions = {}, table = "users_ui"): [Looker, Subscription] {
  const looker = new Looker();
  return [looker, hub.subscribe(table, options, looker)];
}

function take(...frames: (SubscriptionFrame | Record<string, unknown>)[]): void {
  for (const frame of frames) hub.take(frame as SubscriptionFrame);
}

describe("one viewport", () => {
  it("serves all who look at the same, from one snapshot", async () => {
    const lookers = Array.from({ length: 50 }, () => look({ size: 300 })[0]);
    take(schema(), snapshot([["Ann", 1]]));
    expect(wire.news()).toEqual(["subscribe 0"]);
    expect(hub.viewports).toBe(1);
    await settled();
    for (const looker of lookers) expect(looker.notified).toEqual(["schema name,age", "rows of g1"]);
  });

  it("is the same however its options are written", () => {
    look({ sort: [{ column: "age" }], filters: [{ op: "equals", column: "age", value: 3 }] });
    look({
      filters: [{ column: "age", op: "equals", value: 3 }],
      ...{ columns: null, sort: [{ descending: false, column: "age" }], offset: 0, size: 300, quick: "" },
    });
    look({ sort: [{ column: "age", descending: undefined }], filters: [{ column: "age", op: "equals", value: 3 }], offset: undefined }); // prettier-ignore
    expect(hub.viewports).toBe(1);
  });

  it.each<ViewOptions>([
    { offset: 1 },
    { size: 1 },
    { quick: "a" },
    { columns: ["name"] },
    { sort: [{ column: "age" }] },
    { sort: [{ column: "age", descending: true }] },
    { filters: [{ column: "age", op: "is_null" }] },
    { filters: [{ column: "age", op: "equals", value: 1 }] },
    { filters: [{ column: "age", op: "equals", value: "1" }] },
  ])("is another one for %o", (options) => {
    look();
    look(options);
    look({}, "accounts_ui");
    expect(hub.viewports).toBe(3);
  });

  it("serves a late looker at once, but not before it knows how to leave", async () => {
    look();
    take(schema(), snapshot([["Ann", 1]]));
    const [late] = look();
    expect(late.notified).toEqual([]);
    await settled();
    expect(late.notified).toEqual(["schema name,age", "rows of g1"]);
    expect(wire.news()).toEqual(["subscribe 0"]);
  });

  it("does not serve a late looker twice, nor one that has left", async () => {
    look();
    take(schema(), snapshot([["Ann", 1]]));
    const [late] = look();
    const [gone, subscription] = look();
    subscription.unsubscribe();
    take(patch({ updated: [[0, 1, 2]] }, { sequence: 2 }));
    await settled();
    expect(late.windows.map(({ sequence }) => sequence)).toEqual([2]);
    expect(gone.notified).toEqual([]);
  });

  it("closes when the last one leaves, and only then", () => {
    const subscriptions = [look()[1], look()[1], look()[1]];
    for (const { unsubscribe } of subscriptions) {
      expect(wire.news()).not.toContain("unsubscribe 0");
      unsubscribe();
      unsubscribe();
    }
    expect(wire.news()).toEqual(["unsubscribe 0"]);
    expect(hub.viewports).toBe(0);
  });

  it("is opened anew for whoever looks after that", () => {
    look()[1].unsubscribe();
    const [looker] = look();
    take(schema({ sub: 0 }), snapshot([["Old", 1]], { sub: 0 }));
    take(schema({ sub: 1 }), snapshot([["Ann", 1]], { sub: 1 }));
    expect(wire.news()).toEqual(["subscribe 0", "unsubscribe 0", "subscribe 1"]);
    expect(looker.names).toEqual(["Ann"]);
  });

  it("notifies the others though one throws", () => {
    const thrown = new Error("a mistake of the page");
    hub.subscribe("users_ui", {}, { rows: vi.fn().mockThrow(thrown) });
    const [looker] = look();
    take(schema(), snapshot([["Ann", 1]]));
    expect(looker.names).toEqual(["Ann"]);
    expect(reported).toEqual([thrown]);
  });

  it("does not notify one that another one made leave", () => {
    const left: Subscription[] = [];
    hub.subscribe("users_ui", {}, { rows: () => left[0]?.unsubscribe() });
    const [looker, subscription] = look();
    left.push(subscription);
    take(schema(), snapshot([["Ann", 1]]));
    expect(looker.notified).toEqual([]);
  });
});

describe("rows", () => {
  it("follow patches", () => {
    const [looker] = look();
    take(schema(), snapshot([["Ann", 1]]), patch({ inserted: [[1, 9, ["Bob", 2]]] }, { sequence: 2 }));
    expect(looker.names).toEqual(["Ann", "Bob"]);
  });

  it("are asked for again after a gap, once, and what comes before them is passed over", () => {
    const [looker] = look();
    take(schema(), snapshot([["Ann", 1]]));
    wire.news();
    for (const sequence of [3, 4, 5]) take(patch({ updated: [[0, 0, "Bob"]] }, { sequence }));
    expect(wire.news()).toEqual(["resync 0"]);
    expect(looker.names).toEqual(["Ann"]);
    take(snapshot([["Cid", 1]], { sequence: 5 }), patch({ updated: [[0, 0, "Dee"]] }, { sequence: 6 }));
    expect(looker.names).toEqual(["Dee"]);
  });

  it("are asked for when a patch comes before any window", () => {
    look();
    take(schema(), patch({}, { sequence: 2 }));
    expect(wire.news()).toEqual(["subscribe 0", "resync 0"]);
  });

  it("are asked for again on demand, unless they are under way", () => {
    const [, subscription] = look();
    subscription.resync();
    hub.resync();
    expect(wire.news()).toEqual(["subscribe 0"]);
    take(schema(), snapshot([["Ann", 1]]));
    subscription.resync();
    hub.resync();
    expect(wire.news()).toEqual(["resync 0"]);
    take(snapshot([["Ann", 1]]));
    hub.resync();
    expect(wire.news()).toEqual(["resync 0"]);
    subscription.unsubscribe();
    subscription.resync();
    subscription.look({ size: 1 });
    expect(wire.news()).toEqual(["unsubscribe 0"]);
  });

  it("of another generation are announced, with other columns", () => {
    const [looker] = look();
    take(schema(), snapshot([["Ann", 1]]));
    const about = { generation: "g2", sequence: 2 };
    take(rebound("g1", about), schema(about, COLUMNS.slice(0, 1)), snapshot([["Bob"]], about));
    expect(looker.notified).toEqual(["schema name,age", "rows of g1", "rebound g1 g2", "schema name", "rows of g2"]);
    expect(looker.windows[1]?.rows).toEqual([{ _row: 0, name: "Bob" }]);
  });

  it("do not follow a patch of a generation that is gone", () => {
    const [looker] = look();
    take(schema(), snapshot([["Ann", 1]]), rebound("g1", { generation: "g2", sequence: 2 }));
    take(snapshot([["Bob", 1]], { generation: "g2", sequence: 2 }));
    take(patch({ updated: [[0, 0, "Old"]] }, { generation: "g1", sequence: 3 }));
    expect(looker.names).toEqual(["Bob"]);
    expect(wire.news()).toEqual(["subscribe 0", "resync 0"]);
  });
});

describe("looking elsewhere", () => {
  it("moves the viewport of one, and keeps what is not named", () => {
    const [looker, subscription] = look({ quick: "a", size: 10 });
    take(schema(), snapshot([["Ann", 1]]));
    wire.news();
    subscription.look({ offset: 10, quick: undefined });
    const view = { columns: null, sort: [], filters: [], quick: "a", offset: 10, size: 10 };
    expect(wire.sent).toEqual([{ type: "set", sub: 0, revision: 1, ...view }]);
    take(patch({ updated: [[0, 0, "Old"]] }, { sequence: 2 }), snapshot([["Old", 1]], { sequence: 3 }));
    expect(looker.names).toEqual(["Ann"]);
    take(snapshot([["Bob", 1]], { revision: 1, sequence: 1 }));
    expect(looker.names).toEqual(["Bob"]);
    expect(hub.viewports).toBe(1);
  });

  it("knows the columns that were sent before the server heard of it", () => {
    const [looker, subscription] = look();
    subscription.look({ offset: 10 });
    take(schema({ revision: 0 }), snapshot([["Old", 1]], { revision: 0 }), snapshot([["Ann", 1]], { revision: 1 }));
    expect(looker.notified).toEqual(["schema name,age", "rows of g1"]);
    expect(looker.names).toEqual(["Ann"]);
  });

  it("keeps the interval that the view was opened with", () => {
    wire.hasChecksums = true;
    const [, subscription] = look({ size: 10, interval_ms: 20 });
    subscription.look({ offset: 10, interval_ms: 100 });
    expect(wire.sent[0]).toMatchObject({ view: { interval_ms: 20 } });
    expect(wire.sent[1]).not.toHaveProperty("interval_ms");
    look({ offset: 10, size: 10, interval_ms: 20 });
    expect(hub.viewports).toBe(1);
  });

  it("at the same again sends nothing", () => {
    const [, subscription] = look({ size: 10 });
    subscription.look({ size: 10 });
    expect(wire.news()).toEqual(["subscribe 0"]);
  });

  it("leaves those who looked at the same where they are", async () => {
    const [stays] = look();
    const [moves, subscription] = look();
    take(schema(), snapshot([["Ann", 1]]));
    await settled();
    subscription.look({ offset: 10 });
    take(schema({ sub: 1 }), snapshot([["Bob", 1]], { sub: 1 }));
    expect([stays.names, moves.names]).toEqual([["Ann"], ["Bob"]]);
    expect(wire.news()).toEqual(["subscribe 0", "subscribe 1"]);
  });

  it("joins those who look there already", async () => {
    look({ offset: 10 });
    const [looker, subscription] = look();
    take(schema(), snapshot([["Ann", 1]]));
    subscription.look({ offset: 10 });
    await settled();
    expect(looker.names).toEqual(["Ann"]);
    expect(wire.news()).toEqual(["subscribe 0", "subscribe 1", "unsubscribe 1"]);
    expect(hub.viewports).toBe(1);
  });

  it("gives a late looker no rows of where the viewport was", async () => {
    const [, subscription] = look();
    take(schema(), snapshot([["Ann", 1]]));
    subscription.look({ offset: 10 });
    const [late] = look({ offset: 10 });
    await settled();
    expect(late.notified).toEqual([]);
    take(snapshot([["Bob", 1]], { revision: 1 }));
    expect(late.notified).toEqual(["schema name,age", "rows of g1"]);
  });

  it("while being notified of another generation ends with the new place", () => {
    const shown: unknown[] = [];
    const subscription = hub.subscribe("users_ui", {}, {
      rebound: () => { subscription.look({ offset: 10 }); },
      rows: ({ rows }) => shown.push(rows[0]?.["name"]),
    }); // prettier-ignore
    take(schema(), snapshot([["Ann", 1]]), snapshot([["Old", 1]], { generation: "g2" }));
    take(snapshot([["Bob", 1]], { generation: "g2", revision: 1 }));
    expect(shown).toEqual(["Ann", "Bob"]);
  });
});

describe("a new connection", () => {
  it("gets every view as it was, and what is in view stays until then", async () => {
    const view = {
      columns: ["name"],
      sort: [{ column: "age", descending: true }],
      filters: [{ column: "age", op: ">", value: 3 }],
      quick: "a",
      offset: 5,
      size: 7,
    } as const;
    const [looker, subscription] = look({ size: 7 });
    subscription.look(view);
    take(schema(), snapshot([["Ann", 1]], { revision: 1 }));
    wire.news();
    wire.limits = null;
    const [late] = look(view);
    await settled();
    expect([looker.names, late.names]).toEqual([["Ann"], ["Ann"]]);
    expect(wire.news()).toEqual([]);

    wire.limits = WELCOME.limits;
    hub.restore();
    expect(wire.sent).toEqual([{ type: "subscribe", sub: 0, table: "users_ui", view, revision: 1, format: "json" }]);
    take(schema({ revision: 1 }), snapshot([["Bob", 1]], { revision: 1, generation: "g2" }));
    expect(looker.notified).toEqual(["schema name,age", "rows of g1", "rebound g1 g2", "rows of g2"]);
  });

  it("gets what the page looked at meanwhile, and not what it left", () => {
    wire.limits = null;
    const [, left] = look({ size: 1 });
    const [, moves] = look({ size: 2 });
    left.unsubscribe();
    moves.look({ size: 3 });
    expect(wire.news()).toEqual([]);
    wire.limits = WELCOME.limits;
    hub.restore();
    expect(wire.sent).toMatchObject([{ type: "subscribe", view: { size: 3 } }]);
  });
});

describe("problems", () => {
  it("that the server fixes by itself are reported, and gone with the next rows", async () => {
    const [looker] = look({}, "later_ui");
    take(error("unknown_table", 0));
    const [late] = look({}, "later_ui");
    await settled();
    expect([looker.notified, late.notified]).toEqual([["problem unknown_table"], ["problem unknown_table"]]);
    take(schema(), snapshot([["Ann", 1]]));
    const [later] = look({}, "later_ui");
    await settled();
    expect(later.notified).toEqual(["schema name,age", "rows of g1"]);
    expect(wire.news()).toEqual(["subscribe 0"]);
  });

  it("keep what is in view", async () => {
    look();
    take(schema(), snapshot([["Ann", 1]]), error("internal", 0));
    const [late] = look();
    await settled();
    expect(late.notified).toEqual(["schema name,age", "rows of g1", "problem internal"]);
  });

  it("of too many viewports are tried again when another one closes", () => {
    const [, first] = look({ size: 1 });
    const [looker] = look({ size: 2 });
    take(error("limit", 1));
    wire.news();
    first.unsubscribe();
    expect(wire.news()).toEqual(["unsubscribe 0", "unsubscribe 1", "subscribe 2"]);
    take(error("unknown_subscription", 1)); // which is what the server knows of that one
    take(schema({ sub: 2 }), snapshot([["Ann", 1]], { sub: 2 }));
    expect(looker.notified).toEqual(["problem limit", "schema name,age", "rows of g1"]);
  });

  it("of too many viewports are tried again when the page looks elsewhere", () => {
    const [, subscription] = look();
    take(error("limit", 0));
    subscription.look({ size: 2 });
    take(error("limit", 1));
    expect(wire.news()).toEqual(["subscribe 0", "unsubscribe 0", "subscribe 1"]);
  });

  it("of a value that is too long end when it is corrected: the server keeps such a view, which is closed", () => {
    const value = "x".repeat(1001);
    const [looker, subscription] = look({ filters: [{ column: "name", op: "contains", value }] });
    take(error("limit", 0));
    subscription.look({ filters: [{ column: "name", op: "contains", value: "x" }] });
    expect(wire.news()).toEqual(["subscribe 0", "unsubscribe 0", "subscribe 1"]);
    take(schema({ sub: 1 }), snapshot([["xi", 1]], { sub: 1, revision: 1 }));
    expect(looker.names).toEqual(["xi"]);
  });

  it.each(["limit", "bad_frame"])("of a %s that passes end with the rows that the server sends then", (code) => {
    const [early] = look({ size: 1 });
    take(error(code, 0), schema(), snapshot([["Ann", 1]], { sequence: 2 }));
    expect(early.notified).toEqual([`problem ${code}`, "schema name,age", "rows of g1"]);
    take(error(code, 0), error("internal", 0));
    take(rebound("g1", { generation: "g2" }), snapshot([["Bob", 1]], { generation: "g2", sequence: 3 }));
    take(patch({ updated: [[0, 0, "Cid"]] }, { generation: "g2", sequence: 4 }));
    expect(early.notified.slice(3)).toEqual([
      `problem ${code}`,
      "problem internal",
      "rebound g1 g2",
      "rows of g2",
      "rows of g2",
    ]);
    expect(wire.news()).toEqual(["subscribe 0"]);
  });

  it("of a limit leave nothing behind: the server may have the view", () => {
    const [, subscription] = look();
    take(error("limit", 0));
    subscription.unsubscribe();
    expect(wire.news()).toEqual(["subscribe 0", "unsubscribe 0"]);
  });

  it("of a limit end with a new connection", () => {
    const [looker, subscription] = look();
    take(error("limit", 0));
    wire.limits = null;
    subscription.look({ size: 2 });
    wire.limits = WELCOME.limits;
    hub.restore();
    expect(wire.news()).toEqual(["subscribe 0", "subscribe 1"]);
    take(schema({ sub: 1 }), snapshot([["Ann", 1]], { sub: 1, revision: 1 }));
    expect(looker.names).toEqual(["Ann"]);
  });

  it("of a server that lost a subscription open it under another number", () => {
    const [looker, subscription] = look();
    subscription.look({ size: 2 });
    take(error("unknown_subscription", 0));
    expect(wire.news()).toEqual(["subscribe 0", "set 0", "subscribe 1"]);
    take(schema({ sub: 1 }), snapshot([["Ann", 1]], { sub: 1, revision: 1 }));
    expect(looker.notified).toEqual(["schema name,age", "rows of g1"]);
  });

  it("that the server reports without a view go to those that wait", async () => {
    const [served] = look({ size: 1 });
    take(schema(), snapshot([["Ann", 1]]));
    const [waiting] = look({ size: 10_001 });
    hub.refused(error("limit") as unknown as ErrorFrame);
    await settled();
    expect([served.notified, waiting.notified]).toEqual([["schema name,age", "rows of g1"], ["problem limit"]]);
  });

  it("of a frame that is too long are reported here: it would close the connection", async () => {
    wire.limits = { ...WELCOME.limits, frame_bytes: 300 };
    const filters = [
      { column: "name", op: "in", value: Array.from({ length: 50 }, (_, index) => `é ${index}`) },
    ] as const;
    const [looker, subscription] = look({ filters });
    await settled();
    expect(looker.notified).toEqual(["problem limit"]);
    expect(wire.news()).toEqual([]);
    subscription.look({ filters: [] });
    take(error("unknown_subscription", 0));
    expect(wire.news()).toEqual(["set 0", "subscribe 1"]);
  });

  it("of a name that no table can have are reported here, once, and leave nothing to close", async () => {
    const [other, leaving] = look({ size: 1 });
    const [looker, subscription] = look({}, "users ui");
    await settled();
    leaving.unsubscribe();
    await settled();
    subscription.unsubscribe();
    expect([other.notified, looker.notified]).toEqual([[], ["problem bad_name"]]);
    expect(wire.news()).toEqual(["subscribe 0", "unsubscribe 0"]);
  });

  it.each<[ViewOptions, string]>([
    [{ size: 10_002 }, "limit"],
    [{ offset: 0.5 }, "bad_frame"],
    [{ offset: -1 }, "bad_frame"],
    [{ offset: NaN }, "bad_frame"],
    [{ size: 10.5 }, "bad_frame"],
    [{ size: -1 }, "bad_frame"],
    [{ size: Infinity }, "bad_frame"],
    [{ interval_ms: 9 }, "bad_frame"],
    [{ interval_ms: 10_001 }, "bad_frame"],
    [{ interval_ms: 20.5 }, "bad_frame"],
    [{ quick: "𝄞".repeat(1_001) }, "limit"],
    [{ sort: Array.from({ length: 9 }, () => ({ column: "age" })) }, "limit"],
    [{ filters: Array.from({ length: 33 }, () => ({ column: "age", op: "is_null" as const })) }, "limit"],
  ])("of a view that no server takes, %o, are reported here, and to nobody else", async (options, code) => {
    const [waiting] = look({
      size: 10_001,
      quick: "𝄞".repeat(1_000),
      sort: Array.from({ length: 8 }, () => ({ column: "age" })),
      filters: Array.from({ length: 32 }, () => ({ column: "age", op: "is_null" })),
      interval_ms: 10,
    });
    const [looker] = look(options);
    await settled();
    expect([waiting.notified, looker.notified]).toEqual([[], [`problem ${code}`]]);
    expect(wire.news()).toEqual(["subscribe 0"]);
  });

  it("of too many rows are none if the page looks elsewhere at once", async () => {
    const [looker, subscription] = look();
    subscription.look({ size: 10_002 });
    subscription.look({ size: 2 });
    await settled();
    expect(looker.notified).toEqual([]);
    expect(wire.news()).toEqual(["subscribe 0", "unsubscribe 0", "subscribe 1"]);
  });

  it("of too many rows end with fewer of them", async () => {
    const [looker, subscription] = look();
    take(schema(), snapshot([["Ann", 1]]));
    subscription.look({ size: 10_002 });
    await settled();
    expect(looker.notified).toEqual(["schema name,age", "rows of g1", "problem limit"]);
    subscription.look({ size: 2 });
    expect(wire.news()).toEqual(["subscribe 0", "unsubscribe 0", "subscribe 1"]);
    take(schema({ sub: 1 }), snapshot([["Bob", 2]], { sub: 1, revision: 2 }));
    expect(looker.names).toEqual(["Bob"]);
  });

  it("with a subscription that nobody has concern nobody", () => {
    const [looker] = look();
    take(error("unknown_subscription", 17));
    expect(looker.notified).toEqual([]);
    expect(wire.news()).toEqual(["subscribe 0"]);
  });
});

describe("checksums", () => {
  /** A patch to the age of the only row, with the checksum of what comes of it, or of something else. */
  function aged(sequence: number, age: number, isRight = true): SubscriptionFrame {
    const checksum = nodeChecksum(1, [[0, ["Ann", isRight ? age : age + 1]]]);
    return patch({ total: 1, updated: [[0, 1, age]], checksum }, { sequence });
  }

  function ages({ windows }: Looker): unknown[] {
    return windows.map(({ rows }) => rows[0]?.["age"]);
  }

  beforeEach(() => {
    wire.hasChecksums = true;
  });

  it("are asked for where the server knows of them", () => {
    look();
    wire.hasChecksums = false;
    look({ size: 1 });
    expect(wire.sent).toMatchObject([{ type: "subscribe", checksum: true }, { type: "subscribe" }]);
    expect(wire.sent[1]).not.toHaveProperty("checksum");
  });

  it("are compared with the first patch after a snapshot, and then once a second", () => {
    look();
    take(schema(), snapshot([["Ann", 1]]), aged(2, 2), aged(3, 3));
    expect(hub.comparisons).toEqual({ compared: 1, different: 0 });
    wire.time += COMPARE_MS - 1;
    take(aged(4, 4));
    expect(hub.comparisons.compared).toBe(1);
    wire.time += 1;
    take(aged(5, 5), aged(6, 6));
    expect(hub.comparisons.compared).toBe(2);
    take(snapshot([["Ann", 1]], { sequence: 7 }), aged(8, 8));
    expect(hub.comparisons).toEqual({ compared: 3, different: 0 });
  });

  it("that were left are compared at the next heartbeat, once", () => {
    const [looker] = look();
    take(schema(), snapshot([["Ann", 1]]), aged(2, 2), aged(3, 3, false));
    expect(ages(looker)).toEqual([1, 2, 3]);
    wire.news();
    hub.compare();
    hub.compare();
    expect(wire.news()).toEqual(["resync 0"]);
    expect(hub.comparisons).toEqual({ compared: 2, different: 1 });
  });

  it("that differ cost a resync with the reason, and what is wrong is not shown", async () => {
    const [looker] = look();
    take(schema(), snapshot([["Ann", 1]]));
    wire.sent = [];
    take(aged(2, 2, false), aged(3, 3));
    expect(wire.sent).toEqual([{ type: "resync", sub: 0, reason: "checksum" }]);
    const [late] = look();
    await settled();
    expect([ages(looker), ages(late)]).toEqual([[1], [1]]);
    take(snapshot([["Ann", 3]], { sequence: 3 }));
    expect(ages(looker)).toEqual([1, 3]);
    expect(hub.comparisons).toEqual({ compared: 1, different: 1 });
  });

  it("that never agree cause one resync a second, and no storm", () => {
    look();
    take(schema(), snapshot([["Ann", 1]]), aged(2, 2, false));
    wire.news();
    for (let sequence = 3; sequence < 50; sequence += 2) {
      take(snapshot([["Ann", 1]], { sequence }), aged(sequence + 1, 2, false));
    }
    expect(wire.news()).toEqual([]);
    wire.time += COMPARE_MS;
    take(snapshot([["Ann", 1]], { sequence: 60 }), aged(61, 2, false));
    expect(wire.news()).toEqual(["resync 0"]);
  });

  it("are not missed in frames that have none", () => {
    look();
    take(schema(), snapshot([["Ann", 1]]), patch({ updated: [[0, 1, 2]] }, { sequence: 2 }));
    hub.compare();
    expect(hub.comparisons).toEqual({ compared: 0, different: 0 });
  });

  it("of a window that was left are not compared", () => {
    const [, subscription] = look();
    take(schema(), snapshot([["Ann", 1]]), aged(2, 2), aged(3, 3, false));
    subscription.look({ offset: 1 });
    wire.news();
    hub.compare();
    expect(wire.news()).toEqual([]);
  });

  it("do not hide a gap, whose reason is reported too", () => {
    look();
    take(schema(), snapshot([["Ann", 1]]));
    wire.sent = [];
    take(aged(3, 3));
    expect(wire.sent).toEqual([{ type: "resync", sub: 0, reason: "gap" }]);
  });
});

describe("receipts", () => {
  const receipt = { kafka: 1_000_000 - 28, spark: 1_000_000 - 14, applied: 1_000_000 - 8, sent: 1_000_000 - 7 };

  it("are counted for the view and for all, once the rows are here", () => {
    const [, first] = look();
    const [, second] = look({ size: 1 });
    take(schema(), snapshot([["Ann", 1]]));
    take(schema({ sub: 1 }), { ...snapshot([["Ann", 1]], { sub: 1 }), receipt: null });
    expect([first.latency(), hub.latency()]).toEqual([null, null]);
    take(patch({ receipt }, { sequence: 2 }), patch({ receipt }, { sequence: 3 }));
    take(patch({ receipt }, { sub: 1, sequence: 2 }));
    expect([first.latency()?.frames, second.latency()?.frames, hub.latency()?.frames]).toEqual([2, 1, 3]);
    expect(first.latency()?.total.p50).toBeCloseTo(28, 0);
    wire.time += 61_000;
    expect([first.latency(), hub.latency()]).toEqual([null, null]);
  });

  it("of frames that nobody is shown do not count", () => {
    const [, subscription] = look();
    take(schema(), snapshot([["Ann", 1]]), patch({ receipt }, { sequence: 7 }));
    take(snapshot([["Ann", 1]], { sequence: 7 }));
    subscription.look({ offset: 1 });
    take(patch({ receipt }, { sequence: 8 }));
    expect(hub.latency()).toBeNull();
  });
});

describe("a view's own state", () => {
  const live = { state: "live", why: "live" } as const;

  function states(options: ViewOptions = {}): [string[], Subscription] {
    const seen: string[] = [];
    const rows = vi.fn();
    const state = ({ name, why, hasWindow }: ViewState): void => {
      seen.push(`${name}${hasWindow ? "" : " without rows"}${why && `: ${why}`}`);
    };
    return [seen, hub.subscribe("users_ui", options, { rows, state })];
  }

  it("is reported soon, and whenever it changes, after the rows that changed it", async () => {
    const [seen] = states();
    expect(seen).toEqual([]);
    await settled();
    hub.setHealth({ state: "reconnecting", why: "on the way" });
    hub.setHealth(live);
    take(schema(), snapshot([["Ann", 1]]), patch({ hint: "only 20 rows" }, { sequence: 2 }));
    take(patch({ hint: "only 20 rows" }, { sequence: 3 }), patch({}, { sequence: 4 }));
    hub.setHealth({ state: "stale", why: "catching up" });
    hub.setHealth({ state: "reconnecting", why: "lost" });
    expect(seen).toEqual([
      "closed without rows: not connected",
      "connecting without rows: on the way",
      "loading without rows: waiting for the first rows",
      "live",
      "limited: only 20 rows",
      "live",
      "stale: catching up",
      "reconnecting: lost",
    ]);
  });

  it("is each view's own: a problem of one is none of the others", async () => {
    hub.setHealth(live);
    const [wrong] = states({ columns: ["nme"] });
    const [right] = states();
    take(error("unknown_column", 0), schema({ sub: 1 }), snapshot([["Ann", 1]], { sub: 1 }));
    await settled();
    expect([wrong, right]).toEqual([["failed without rows: problem: unknown_column: fix it"], ["live"]]);
  });

  it("is that of what is still shown, when the page looks elsewhere", async () => {
    hub.setHealth(live);
    const [seen, subscription] = states({ columns: ["nme"] });
    take(error("unknown_column", 0));
    subscription.look({ columns: ["name"] });
    take(schema({ revision: 1 }), snapshot([["Ann"]], { revision: 1 }));
    subscription.look({ offset: 10 });
    await settled();
    expect(seen).toEqual([
      "failed without rows: problem: unknown_column: fix it",
      "loading without rows: waiting for the first rows",
      "live",
    ]);
  });

  it("is reported to a late looker, and not to one that has left", async () => {
    hub.setHealth(live);
    look();
    take(schema(), snapshot([["Ann", 1]]));
    const [late] = states();
    const [gone, subscription] = states();
    subscription.unsubscribe();
    await settled();
    hub.setHealth({ state: "stale", why: "old" });
    expect([late, gone]).toEqual([["live", "stale: old"], []]);
  });

  it("is reported to the others though one throws", async () => {
    hub.setHealth(live);
    const thrown = new Error("a mistake of the page");
    hub.subscribe("users_ui", {}, { rows: vi.fn(), state: vi.fn().mockThrow(thrown) });
    const [seen] = states();
    await settled();
    expect([seen.length, reported]).toEqual([1, [thrown]]);
  });
});
