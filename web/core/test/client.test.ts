import { afterEach, beforeEach, describe, expect, expectTypeOf, it, vi } from "vitest";
import { LiveTablesClient } from "../src/client.js";
import { UnansweredError } from "../src/http.js";
import type { SocketConstructor } from "../src/surroundings.js";
import { nodeChecksum } from "./support/checksum.js";
import { FakeSurroundings, settled } from "./support/fake.js";
import { COLUMNS, error, patch, schema, snapshot, status, WELCOME } from "./support/frames.js";

let world: FakeSurroundings;
let client: LiveTablesClient;
let fetch: ReturnType<typeof vi.fn<typeof globalThis.fetch>>;

beforeEach(() => {
  world = new FakeSurroundings();
  fetch = vi.fn<typeof globalThis.fetch>();
  client = new LiveTablesClient({ url: "http://host:8080/below", token: "the key", fetch, surroundings: world });
});

afterEach(() => {
  vi.unstubAllGlobals();
});

async function connected(state: Parameters<typeof status>[0] = "live"): Promise<void> {
  const connecting = client.connect();
  world.socket.open();
  world.socket.receive(WELCOME);
  world.socket.receive(status(state));
  await connecting;
}

describe("the role of the key", () => {
  it.each([
    ["viewer", "viewer"],
    ["operator", "operator"],
    [undefined, "operator"], // an older server
  ] as const)("%s at login is reported as %s, and null without a connection", async (sent, expected) => {
    const roles: unknown[] = [];
    client.role$.subscribe((role) => roles.push(role));
    const connecting = client.connect();
    world.socket.open();
    world.socket.receive({ ...WELCOME, role: sent });
    await connecting;
    expect(client.role).toBe(expected);
    client.close();
    expect(client.role).toBeNull();
    expect(roles).toEqual([null, expected, null]);
  });

  it("that may not read is a refusal", async () => {
    const connecting = client.connect();
    world.socket.open();
    world.socket.receive(error("forbidden"));
    await expect(connecting).rejects.toMatchObject({ code: "forbidden" });
  });
});

describe("a handle", () => {
  it("has the columns of its table, and keeps no viewport open", async () => {
    await connected();
    const acquiring = Promise.all([client.getTableHandle("user"), client.getTableHandle("user")]);
    world.socket.receive(schema());
    world.socket.receive(snapshot([]));
    const [user] = await acquiring;
    expect([user.name, user.columns]).toEqual(["user", COLUMNS]);
    expect(world.socket.of("subscribe")).toMatchObject([{ table: "user", view: { size: 0 } }]);
    expect(client.hub.viewports).toBe(0);
  });

  it("is waited for until there is a connection", async () => {
    const acquiring = client.getTableHandle("user");
    await connected();
    world.socket.receive(schema());
    world.socket.receive(snapshot([]));
    expect((await acquiring).columns).toEqual(COLUMNS);
  });

  it("of a table that is not there is an error that names the cure", async () => {
    await connected();
    const acquiring = client.getTableHandle("usr");
    world.socket.receive(error("unknown_table", 0));
    await expect(acquiring).rejects.toMatchObject({ code: "unknown_table", cure: "fix it" });
    expect(client.hub.viewports).toBe(0);
  });

  it.each(["starting", "pipeline_down"] as const)(
    "of a table that is not there is waited for while %s",
    async (state) => {
      await connected(state);
      const acquiring = client.getTableHandle("user");
      world.socket.receive(error("unknown_table", 0));
      await settled();
      world.socket.receive(schema());
      world.socket.receive(snapshot([]));
      expect((await acquiring).columns).toEqual(COLUMNS);
    },
  );

  it("of a table that is still not there when something serves is an error, by another answer of the server", async () => {
    await connected("starting");
    const [one, other] = [client.getTableHandle("user"), client.getTableHandle("usr")];
    world.socket.receive(error("unknown_table", 0));
    world.socket.receive(error("unknown_table", 1));
    await settled();
    world.socket.receive(status("pipeline_down"));
    expect(world.socket.of("subscribe")).toHaveLength(2);
    world.socket.receive(status("live"));
    expect(world.socket.of("unsubscribe").map(({ sub }) => sub)).toEqual([0, 1]);
    expect(world.socket.of("subscribe").map(({ sub }) => sub)).toEqual([0, 1, 2, 3]);
    world.socket.receive(schema({ sub: 2 }));
    world.socket.receive(snapshot([], { sub: 2 }));
    world.socket.receive(error("unknown_table", 3));
    expect((await one).columns).toEqual(COLUMNS);
    await expect(other).rejects.toMatchObject({ code: "unknown_table" });
    expect(client.hub.viewports).toBe(0);
  });

  it("cannot be had with a wrong key", async () => {
    const acquiring = client.getTableHandle("user");
    client.connect().catch(() => undefined);
    world.socket.open();
    world.socket.receive(error("unauthorized"));
    await expect(acquiring).rejects.toMatchObject({ code: "unauthorized" });
    expect(client.hub.viewports).toBe(0);
  });

  it("that is closed reports it once, and is replaced for whoever is bound to it", async () => {
    await connected();
    const acquiring = client.getTableHandle("user");
    world.socket.receive(schema());
    world.socket.receive(snapshot([]));
    const user = await acquiring;
    const seen: unknown[] = [];
    await client.createLiveAdapter().bind(user, (rows: { name: string }[]) => seen.push(rows[0]?.name));
    world.socket.receive(schema({ sub: 1 }));
    world.socket.receive(snapshot([["Ann", 1]], { sub: 1 }));
    user.close();
    user.close();
    expect([user.isClosed, client.hub.viewports]).toEqual([true, 0]);
    await world.pass(150);
    world.socket.receive(schema({ sub: 2 }));
    world.socket.receive(snapshot([], { sub: 2 }));
    await settled();
    world.socket.receive(schema({ sub: 3 }));
    world.socket.receive(snapshot([["Bob", 1]], { sub: 3 }));
    expect(seen).toEqual(["Ann", "Bob"]);
    expect(client.hub.viewports).toBe(1);
  });
});

describe("a subscription", () => {
  it("ends by calling what it returned, or its method", async () => {
    await connected();
    const first = client.subscribe("user", () => undefined, { offset: 10, size: 5 });
    const { unsubscribe } = client.subscribe("user", () => undefined, { offset: 10, size: 5 });
    expect(world.socket.of("subscribe")).toMatchObject([{ table: "user", view: { offset: 10, size: 5 } }]);
    first();
    expect(client.hub.viewports).toBe(1);
    unsubscribe();
    expect(client.hub.viewports).toBe(0);
  });

  it("reports why no rows come", async () => {
    await connected();
    const problems: string[] = [];
    client.subscribe("usr", () => undefined, { onProblem: ({ code }) => problems.push(code) });
    world.socket.receive(error("unknown_table", 0));
    client.subscribe("user", () => undefined, { size: 10_001, onProblem: ({ code }) => problems.push(code) });
    world.socket.receive(error("limit"));
    expect(problems).toEqual(["unknown_table", "limit"]);
  });

  it("gives each receiver an array that it may change", async () => {
    await connected();
    const seen: number[] = [];
    for (let times = 0; times < 2; times++) {
      client.subscribe("user", (rows) => {
        seen.push(rows.length);
        rows.pop();
      });
    }
    world.socket.receive(schema());
    world.socket.receive(snapshot([["Ann", 1]]));
    expect(seen).toEqual([1, 1]);
  });

  it("can be iterated, and is left with the loop", async () => {
    await connected();
    const names: unknown[] = [];
    const watching = (async () => {
      for await (const { rows, total } of client.watch("user", { size: 1 })) {
        names.push([rows[0]?.["name"], total]);
        break;
      }
    })();
    world.socket.receive(schema());
    world.socket.receive(snapshot([["Ann", 1]]));
    await watching;
    expect(names).toEqual([["Ann", 1]]);
    expect(client.hub.viewports).toBe(0);
  });
});

describe("the server's clock", () => {
  const now = (aheadMs: number): string => new Date(world.now() + aheadMs).toISOString();

  it("is measured at the hello", async () => {
    expect(client.clockDifference).toBeNull();
    const connecting = client.connect();
    world.socket.open();
    await world.pass(40);
    world.socket.receive({ ...WELCOME, time: now(5_000 - 20) });
    await connecting;
    expect(client.clockDifference).toEqual({ aheadMs: 5_000, uncertaintyMs: 20 });
  });

  it("is measured again at heartbeats that are answers", async () => {
    await connected();
    await world.pass(9_900);
    world.socket.receive(status("live"));
    await world.pass(100);
    expect(world.socket.of("heartbeat")).toHaveLength(1);
    world.socket.receive({ type: "heartbeat", time: now(70) });
    expect(client.clockDifference).toEqual({ aheadMs: 70, uncertaintyMs: 0 });
  });

  it("is not measured at one that a silent server may have sent by itself", async () => {
    await connected();
    await world.pass(10_000);
    world.socket.receive({ type: "heartbeat", time: now(70) });
    expect(client.clockDifference).toEqual({ aheadMs: 0, uncertaintyMs: 0 });
  });

  it("of a server that does not send it is taken for this one", async () => {
    const connecting = client.connect();
    world.socket.open();
    world.socket.receive({ ...WELCOME, time: undefined });
    await connecting;
    expect(client.clockDifference).toBeNull();
    client.subscribe("user", () => undefined);
    expect(world.socket.of("subscribe")[0]).not.toHaveProperty("checksum");
  });

  it("is what latency is measured by, once a second, while somebody wants to know", async () => {
    const connecting = client.connect();
    world.socket.open();
    world.socket.receive({ ...WELCOME, time: now(60_000) });
    await connecting;
    const seen: (number | undefined)[] = [];
    const { unsubscribe } = client.latency$.subscribe((latency) => seen.push(latency?.total.p50));
    client.subscribe("user", () => undefined);
    const sent = world.now() + 60_000 - 8;
    const receipt = { kafka: sent - 20, spark: sent - 10, applied: sent - 1, sent };
    world.socket.receive(schema());
    world.socket.receive(snapshot([["Ann", 1]]));
    world.socket.receive(patch({ receipt }, { sequence: 2 }));
    await world.pass(5_000);
    expect(seen).toEqual([undefined, expect.closeTo(28, 0)]);
    const timers = world.timers;
    unsubscribe();
    expect(world.timers).toBe(timers - 1);
  });
});

it("checksums are compared at a heartbeat, and reported", async () => {
  await connected();
  client.subscribe("user", () => undefined);
  world.socket.receive(schema());
  world.socket.receive(snapshot([["Ann", 1]]));
  world.socket.receive(patch({ checksum: nodeChecksum(0, [[0, ["Ann", 1]]]) }, { sequence: 2 }));
  world.socket.receive(patch({ checksum: "00000000" }, { sequence: 3 }));
  expect(client.comparisons).toEqual({ compared: 1, different: 0 });
  world.socket.receive({ type: "heartbeat", time: "" });
  expect(client.comparisons).toEqual({ compared: 2, different: 1 });
  expect(world.socket.of("resync")).toEqual([{ type: "resync", sub: 0, reason: "checksum" }]);
});

describe("over HTTP", () => {
  it("a control message is published, with the key in a header", async () => {
    const receipt = { topic: "control", partition: 0, offset: 7 };
    fetch.mockResolvedValue(Response.json(receipt, { status: 202 }));
    const { messageId, ...received } = await client.sendControl({ joinType: "inner" });
    expect(received).toEqual(receipt);
    const [url, init] = fetch.mock.calls[0] ?? [];
    expect(new Headers(init?.headers).get("idempotency-key")).toBe(messageId);
    expect(url).toEqual(new URL("http://host:8080/below/api/control"));
    expect(init).toMatchObject({ method: "POST", body: '{"joinType":"inner"}' });
    expect(new Headers(init?.headers).get("authorization")).toBe("Bearer the key");
  });

  it("a control message whose answer got lost is sent again with the same id", async () => {
    const receipt = { topic: "control", partition: 0, offset: 7 };
    fetch.mockRejectedValueOnce(new TypeError("reset")).mockResolvedValue(Response.json(receipt, { status: 202 }));
    const sending = client.sendControl({ joinType: "inner" });
    await settled();
    await world.pass(500);
    expect(await sending).toMatchObject(receipt);
    const ids = fetch.mock.calls.map(([, init]) => new Headers(init?.headers).get("idempotency-key"));
    expect(ids).toHaveLength(2);
    expect(ids[0]).toMatch(/^[0-9a-f]{32}$/);
    expect(ids[1]).toBe(ids[0]);
  });

  it("a control message whose answer breaks off, or is something else's, is sent again too", async () => {
    const receipt = { topic: "control", partition: 0, offset: 7 };
    const broken = new ReadableStream({
      start: (body) => {
        body.enqueue(new TextEncoder().encode('{"topic":"con'));
        body.error(new TypeError("terminated"));
      },
    });
    fetch
      .mockResolvedValueOnce(new Response(broken, { status: 202 }))
      .mockResolvedValueOnce(new Response("<html>"))
      .mockResolvedValue(Response.json(receipt, { status: 202 }));
    const sending = client.sendControl({ joinType: "inner" });
    await settled();
    await world.pass(500);
    await world.pass(500);
    expect(await sending).toMatchObject(receipt);
    const ids = fetch.mock.calls.map(([, init]) => new Headers(init?.headers).get("idempotency-key"));
    expect([ids.length, new Set(ids).size]).toEqual([3, 1]);
  });

  it("a control message that nobody answers is an error, and it is not known what has become of it", async () => {
    fetch.mockImplementation(() => Promise.resolve(new Response("<html>")));
    const sending = expect(client.sendControl({ joinType: "inner" })).rejects.toBeInstanceOf(UnansweredError);
    await settled();
    await world.pass(500);
    await world.pass(500);
    await sending;
  });

  it("a key that HTTP cannot carry is an error, and nothing is sent", async () => {
    client = new LiveTablesClient({ url: "http://host:8080", token: "ключ", fetch, surroundings: world });
    await expect(client.sendControl({ joinType: "inner" })).rejects.toMatchObject({
      code: "unauthorized",
      cure: /key/,
    });
    expect(fetch).not.toHaveBeenCalled();
  });

  it("a control message that is refused is sent once", async () => {
    const problem = { code: "forbidden", problem: "control messages needs the role operator", cure: "send its key" };
    fetch.mockResolvedValue(Response.json(problem, { status: 403 }));
    await expect(client.sendControl({ joinType: "inner" })).rejects.toMatchObject(problem);
    expect(fetch).toHaveBeenCalledTimes(1);
  });

  it("two control messages have two ids", async () => {
    fetch.mockImplementation(() => Promise.resolve(Response.json({}, { status: 202 })));
    world.chance = 0.25;
    await client.sendControl({ joinType: "inner" });
    world.chance = 0.5;
    await client.sendControl({ joinType: "inner" });
    const ids = fetch.mock.calls.map(([, init]) => new Headers(init?.headers).get("idempotency-key"));
    expect(new Set(ids).size).toBe(2);
  });

  it("a question in SQL is answered", async () => {
    const answer = { columns: [{ name: "n", type: "int64" }], rows: [[1]], truncated: false };
    fetch.mockResolvedValue(Response.json(answer));
    expect(await client.sql("select 1 as n")).toEqual(answer);
  });

  it("the key of the last login is used", async () => {
    fetch.mockImplementation(() => Promise.resolve(Response.json({})));
    client.login("another key").catch(() => undefined);
    await client.request("/api/tables");
    const [url, init] = fetch.mock.calls[0] ?? [];
    expect(url).toEqual(new URL("http://host:8080/below/api/tables"));
    expect(new Headers(init?.headers).get("authorization")).toBe("Bearer another key");
  });

  it("a refusal is an error with its cure", async () => {
    const problem = { code: "unauthorized", problem: "the key is wrong", cure: "log in" };
    fetch.mockResolvedValue(Response.json(problem, { status: 401 }));
    await expect(client.sql("select 1")).rejects.toMatchObject(problem);
  });

  it("an answer from something else is shown as it is", async () => {
    fetch.mockResolvedValue(new Response("<html>", { status: 502, statusText: "Bad Gateway" }));
    await expect(client.sql("select 1")).rejects.toMatchObject({ problem: "the answer is 502 Bad Gateway" });
  });

  it("an answer that cannot be read is an error with its cure", async () => {
    fetch.mockResolvedValue(new Response("<html>"));
    await expect(client.sql("select 1")).rejects.toMatchObject({ code: "unavailable", problem: /cannot be read/ });
  });

  it("no answer is an error too", async () => {
    fetch.mockRejectedValue(new TypeError("fetch failed"));
    await expect(client.sql("select 1")).rejects.toMatchObject({ code: "unavailable", problem: /fetch failed/ });
  });
});

describe("the address", () => {
  it.each([
    ["http://host:8080", "ws://host:8080/ws"],
    ["https://host/below/", "wss://host/below/ws"],
    ["wss://host/below?x=1#y", "wss://host/below/ws"],
  ])("%s is connected to at %s", (url, expected) => {
    new LiveTablesClient({ url, surroundings: world }).connect().catch(() => undefined);
    expect(world.socket.url).toBe(expected);
  });

  it("is that of the page unless given", () => {
    vi.stubGlobal("document", { baseURI: "https://host/app/index.html" });
    new LiveTablesClient({ surroundings: world }).connect().catch(() => undefined);
    expect(world.socket.url).toBe("wss://host/app/ws");
  });

  it("and a WebSocket must be had from somewhere", () => {
    expect(() => new LiveTablesClient()).toThrow("no address of a server");
    vi.stubGlobal("WebSocket", undefined);
    expect(() => new LiveTablesClient({ url: "http://host" })).toThrow("no WebSocket");
  });
});

describe("in a browser", () => {
  it("its own WebSocket will do", () => {
    expectTypeOf<typeof globalThis.WebSocket>().toExtend<SocketConstructor>();
  });

  it("a page that was hidden for long resyncs when it is seen again", async () => {
    const page = Object.assign(new EventTarget(), { visibilityState: "visible", baseURI: "http://host/" });
    vi.stubGlobal("document", page);
    const network = new EventTarget();
    vi.stubGlobal("addEventListener", network.addEventListener.bind(network));
    vi.stubGlobal("removeEventListener", network.removeEventListener.bind(network));
    const { surroundings } = await import("../src/surroundings.js");
    const sleeps: number[] = [];
    const stop = surroundings(class { send = vi.fn(); close = vi.fn(); addEventListener = vi.fn(); }).onWake((ms) => sleeps.push(ms)); // prettier-ignore
    const turn = (state: string): void => {
      page.visibilityState = state;
      page.dispatchEvent(new Event("visibilitychange"));
    };
    const clock = vi.spyOn(Date, "now").mockReturnValue(0);
    turn("hidden");
    clock.mockReturnValue(60_000);
    turn("visible");
    turn("visible");
    network.dispatchEvent(new Event("online"));
    stop();
    turn("hidden");
    turn("visible");
    network.dispatchEvent(new Event("online"));
    clock.mockRestore();
    expect(sleeps).toEqual([60_000, Infinity]);
  });
});
