/** The client against a real server process, over real sockets. Spark is played by a script that feeds the server. */
import { afterAll, beforeAll, describe, expect, it, onTestFinished, vi } from "vitest";
import { WebSocket } from "ws";
import { LiveTablesClient } from "../src/index.js";
import type { Health, SocketConstructor, ViewOptions, Window } from "../src/index.js";
import { AccountComponent, UserAccountComponent, UserComponent } from "./support/old-page.js";
import { poorSockets } from "./support/poor-sockets.js";
import { RealServer, TOKEN } from "./support/real-server.js";
import type { FeedTable } from "./support/real-server.js";

const USER = { userId: "string", name: "string", email: "string", age: "int64", ts: "timestamp" };
const ACCOUNT = { userId: "string", accountType: "string", balance: "double", ts: "timestamp" };
const TABLES: Record<string, FeedTable> = {
  users_ui: { columns: USER, aliases: ["user"] },
  accounts_ui: { columns: ACCOUNT, aliases: ["account"] },
  user_account: { columns: { ...USER, accountType: "string", balance: "double" } },
};

let server: RealServer;
let generations = 0;

beforeAll(async () => {
  server = await RealServer.started();
});

afterAll(async () => {
  await server.end();
});

function user(id: number, age: number | string = id): Record<string, unknown> {
  return { _id: id, userId: `u${id}`, name: `name ${id}`, email: null, age, ts: "2026-01-31T12:00:00.123Z" };
}

function account(id: number): Record<string, unknown> {
  return { _id: id, userId: `u${id}`, accountType: "basic", balance: id / 4, ts: "2026-01-31T12:00:00.123456Z" };
}

/** A generation with these users, an account each, and their join; published in one step. */
async function published(ids: readonly number[], tables = TABLES): Promise<string> {
  const generation = `g${++generations}`;
  await server.feed(
    { do: "begin", generation, tables },
    {
      do: "put",
      generation,
      tables: {
        users_ui: { rows: ids.map((id) => user(id)) },
        accounts_ui: { rows: ids.map(account) },
        user_account: { rows: ids.map((id) => ({ ...user(id), ...account(id) })) },
      },
    },
    { do: "publish", generation },
  );
  return generation;
}

async function put(generation: string, rows: Record<string, unknown>[], deletes: number[] = []): Promise<void> {
  await server.feed({ do: "put", generation, tables: { users_ui: { rows, deletes } } });
}

/** The orchestrator's row names the generation that serves. */
async function putStatus(serving: string): Promise<void> {
  const tables = { orchestrator_status: { rows: [{ _id: 0, generation: serving }] } };
  await server.feed({ do: "put", generation: "status", tables });
}

async function connected(sockets: SocketConstructor = WebSocket): Promise<LiveTablesClient> {
  const client = new LiveTablesClient({ url: server.url, token: TOKEN, WebSocket: sockets });
  onTestFinished(() => {
    client.close();
  });
  await client.connect();
  return client;
}

/** Wait for something that other processes bring about; a generous limit, for busy machines. */
async function eventually(condition: () => unknown): Promise<void> {
  await vi.waitFor(
    async () => {
      if (!(await condition())) throw new Error(`it did not come about: ${condition.toString()}`);
    },
    { timeout: 40_000, interval: 20 },
  );
}

/** Soon: the server may not have noticed yet that the client of an earlier test has gone. */
async function serverHas(expected: { viewports: number; clients: number }): Promise<void> {
  for (const [name, value] of Object.entries(expected)) {
    await eventually(async () => (await server.metric(`livetables_${name}`)) === value);
  }
}

/** What one looker sees, all of it. */
class Seen {
  readonly windows: Window[] = [];
  readonly kinds: string[] = [];
  readonly look: (options: ViewOptions) => void;
  readonly end: () => void;

  constructor(client: LiveTablesClient, table: string, options: ViewOptions) {
    const { look, unsubscribe } = client.hub.subscribe(table, options, {
      rows: (window) => this.windows.push(window),
      rebound: (before, generation) => this.kinds.push(`rebound ${before} ${generation}`),
      schema: (columns) => this.kinds.push(`schema ${columns.length}`),
      problem: ({ code }) => this.kinds.push(code),
    });
    this.look = look;
    this.end = unsubscribe;
  }

  get newest(): Window {
    const window = this.windows.at(-1);
    if (!window) throw new Error("nothing was shown yet");
    return window;
  }

  get ids(): unknown[] {
    return this.windows.at(-1)?.rows.map((row) => row["_id"]) ?? [];
  }
}

describe("rows", () => {
  it("arrive typed, and follow what changes by patches", async () => {
    const generation = await published([1, 2, 3]);
    const client = await connected();
    const seen = new Seen(client, "user", { sort: [{ column: "age", descending: true }], size: 3 });
    await eventually(() => seen.ids.length === 3);
    expect(seen.newest).toMatchObject({ table: "user", generation, total: 3, offset: 0 });
    expect(seen.newest.columns.map(({ type }) => type)).toEqual([
      "int64",
      "string",
      "string",
      "string",
      "int64",
      "timestamp",
    ]);
    expect(seen.newest.rows[0]).toEqual({ ...user(3), _row: expect.any(Number) as number });

    const before = new Map(seen.newest.rows.map((row) => [row["_id"], row]));
    await put(generation, [user(2, 50)]);
    await eventually(() => seen.ids.join() === "2,3,1");
    expect(seen.newest.rows[1]).toBe(before.get(3)); // a patch leaves what did not change
    await put(generation, [user(4, "9007199254740993")], [1]);
    await eventually(() => seen.ids.join() === "4,2,3");
    expect(seen.newest.rows.map((row) => row["age"])).toEqual(["9007199254740993", 50, 3]);
  });

  it("of all views of a page come over one socket, and one viewport serves many", async () => {
    await published([1, 2, 3]);
    const client = await connected();
    const all = Array.from({ length: 20 }, () => new Seen(client, "user", { quick: "name" }));
    await eventually(() => all.every(({ ids }) => ids.length === 3));
    const late = new Seen(client, "user", { quick: "name" });
    await Promise.resolve();
    await Promise.resolve();
    expect(late.ids).toHaveLength(3);
    await serverHas({ viewports: 1, clients: 1 });
  });

  it("of another place come when the page looks there, over the whole table", async () => {
    await published(Array.from({ length: 1000 }, (_, index) => index));
    const client = await connected();
    const seen = new Seen(client, "users_ui", { size: 2 });
    await eventually(() => seen.ids.join() === "0,1");
    seen.look({ sort: [{ column: "age", descending: true }] });
    seen.look({ offset: 10 });
    await eventually(() => seen.ids.join() === "989,988");
    seen.look({ filters: [{ column: "age", op: "between", value: [5, 7] }], offset: 0, columns: ["_id"] });
    await eventually(() => seen.ids.join() === "7,6");
    expect([seen.newest.total, Object.keys(seen.newest.rows[0] ?? {})]).toEqual([3, ["_row", "_id"]]);
    expect(client.hub.viewports).toBe(1);
    seen.look({ columns: null, filters: [], sort: [] });
    await eventually(() => seen.ids.join() === "0,1" && seen.newest.columns.length === 6);
  });

  it("come to those who ask beside somebody whose view the server does not take", async () => {
    await published([1]);
    const client = await connected();
    const culprits = [{ quick: "\ud800" }, { columns: [5 as unknown as string] }, { offset: -1 }, { size: 0.5 }];
    const all = culprits.map((options) => {
      const wrong = new Seen(client, "user", options);
      return [wrong, new Seen(client, "user", { interval_ms: 100 + culprits.indexOf(options) })] as const;
    });
    await eventually(() => all.every(([wrong, right]) => wrong.kinds.length > 0 && right.windows.length > 0));
    expect(all.map(([wrong, right]) => [wrong.kinds, right.kinds])).toEqual(
      culprits.map(() => [["bad_frame"], ["schema 6"]]),
    );
  });

  it("that cannot come have a reason, and come when it is fixed", async () => {
    await published([1]);
    const client = await connected();
    const wrong = new Seen(client, "user", { columns: ["nme"] });
    const large = new Seen(client, "user", { size: 10_002 });
    await eventually(() => wrong.kinds.includes("unknown_column") && large.kinds.includes("limit"));
    wrong.look({ columns: ["name"] });
    large.look({ size: 10_000 });
    await eventually(() => wrong.windows.length === 1 && large.windows.length === 1);
  });

  it("that a limit keeps back come when the filter is corrected, and leave nothing on the server", async () => {
    await published([1, 2]);
    const client = await connected();
    const long = new Seen(client, "user", { filters: [{ column: "name", op: "contains", value: "x".repeat(1_001) }] });
    const many = new Seen(client, "user", { filters: [{ column: "age", op: "in", value: [] }] });
    const left = new Seen(client, "account", { filters: [{ column: "userId", op: "in", value: [] }] });
    await eventually(() => [long, many, left].every(({ kinds }) => kinds.includes("limit")));
    left.end();
    long.look({ filters: [{ column: "name", op: "contains", value: "name 1" }] });
    many.look({ filters: [{ column: "age", op: "in", value: [2] }] });
    await eventually(() => long.ids.join() === "1" && many.ids.join() === "2");
    await serverHas({ viewports: 2, clients: 1 });
  });
});

describe("another generation", () => {
  it("takes over under an open view: sort, filter and range stay, and nothing is empty or mixed", async () => {
    const first = await published([1, 2, 3, 4, 5, 6]);
    const client = await connected();
    const view = { sort: [{ column: "age", descending: true }], quick: "name", offset: 1, size: 2 };
    const seen = new Seen(client, "user", view);
    await eventually(() => seen.ids.join() === "5,4");
    const second = await published([10, 20, 30, 40]);
    await eventually(() => seen.ids.join() === "30,20");
    await put(second, [user(50)]);
    await eventually(() => seen.ids.join() === "40,30");
    expect(seen.kinds).toEqual(["schema 6", `rebound ${first} ${second}`]);
    for (const { rows, generation, offset } of seen.windows) {
      expect([rows.length, offset]).toEqual([2, 1]);
      expect(rows.every((row) => Number(row["_id"]) < 10 === (generation === first))).toBe(true);
    }
    expect(client.hub.viewports).toBe(1);
    await serverHas({ viewports: 1, clients: 1 });
  });

  it("with other columns arrives as an event", async () => {
    await published([1]);
    const client = await connected();
    const seen = new Seen(client, "user", {});
    await eventually(() => seen.ids.join() === "1");
    await published([2], { ...TABLES, users_ui: { columns: { name: "string" }, aliases: ["user"] } });
    await eventually(() => seen.ids.join() === "2");
    expect(seen.kinds.at(-1)).toBe("schema 2");
    expect(seen.newest.rows).toEqual([{ _row: expect.any(Number) as number, _id: 2, name: "name 2" }]);
  });
});

describe("a server that is killed and started again", () => {
  it("is found again by itself, with every view as it was", async () => {
    const generation = await published([1, 2, 3]);
    const client = await connected();
    const states: Health["state"][] = [];
    client.health$.subscribe(({ state }) => states.push(state));
    const seen = new Seen(client, "user", { sort: [{ column: "age", descending: true }], offset: 1, size: 2 });
    const other = new Seen(client, "account", { columns: ["_id"] });
    await eventually(() => seen.ids.join() === "2,1" && other.ids.length === 3);
    await server.kill();
    await eventually(() => client.health.state === "reconnecting");
    expect(seen.ids).toEqual([2, 1]); // what is in view stays
    await server.start();
    await put(generation, [user(4)]);
    await eventually(() => seen.ids.join() === "3,2");
    expect(client.hub.viewports).toBe(2);
    await serverHas({ viewports: 2, clients: 1 });
    await server.feed({
      do: "report",
      generation,
      sources: [{ table: "users_ui", topic: "user", lag_records: 50_000 }],
    });
    await eventually(() => client.health.state === "stale" && client.health.why.includes("50,000 records"));
    await server.feed({ do: "report", generation, sources: [{ table: "users_ui", topic: "user", lag_records: 0 }] });
    await eventually(() => client.health.state === "live");
    expect(states).toContain("reconnecting");
  });
});

describe("checksums", () => {
  it("are the server's, of every window through patches, other places and a swap", async () => {
    const generation = await published([1, 2, 3]);
    const client = await connected();
    const all = new Seen(client, "users_ui", { sort: [{ column: "age", descending: true }] });
    const few = new Seen(client, "user_account", { columns: ["name", "balance", "ts"], size: 2 });
    await eventually(() => all.ids.length === 3 && few.windows.length > 0);
    await put(generation, [{ ...user(4, "9007199254740993"), name: "Zoë 𝄞" }, user(2, 50)], [1]);
    await eventually(() => all.ids.join() === "4,2,3" && client.comparisons.compared >= 1);
    all.look({ offset: 1 });
    await eventually(() => all.ids.join() === "2,3");
    await put(generation, [user(5, -1)]);
    await eventually(() => all.ids.join() === "2,3,5" && client.comparisons.compared >= 2);
    const next = await published([7, 8]);
    await eventually(() => all.newest.generation === next);
    await put(next, [user(9)]);
    await eventually(() => all.newest.total === 3 && client.comparisons.compared >= 3);
    expect(client.comparisons.different).toBe(0);
    expect(await server.metric("livetables_checksum_mismatches_total")).toBe(0);
  });

  it("hold through patches that get lost, a page that does not read, and a killed server", async () => {
    const large = "x".repeat(200_000); // a few such frames are more than the sockets' buffers take
    let isLossy = true;
    let arrived = 0;
    let lost = 0;
    const sockets = poorSockets((frame) => {
      if (frame.type === "snapshot" || frame.type === "patch") arrived++;
      if (frame.type !== "patch" || !isLossy || arrived % 3) return frame;
      lost++;
      return null;
    });
    const generation = await published([1, 2, 3]);
    const client = await connected(sockets.Socket);
    const seen = new Seen(client, "users_ui", { sort: [{ column: "age", descending: true }], size: 5 });
    await eventually(() => seen.ids.join() === "3,2,1");

    for (let id = 4; id <= 20; id++) {
      const before = arrived;
      await put(generation, [user(id), user(id - 2, 1000 + id)]);
      await eventually(() => arrived > before);
    }
    expect(lost).toBeGreaterThan(0);
    isLossy = false; // a loss is only found by the frame that follows it
    sockets.pause();
    for (let id = 21; id <= 60; id++) await put(generation, [{ ...user(id, 1000 + id), name: large }]);
    sockets.resume();
    await eventually(() => seen.ids.join() === "60,59,58,57,56");
    const unlike = await server.metric("livetables_checksum_mismatches_total");

    await server.kill();
    await server.start();
    await eventually(() => client.isReady);
    const { compared } = client.comparisons;
    for (let id = 61; id <= 70; id++) {
      await put(generation, [user(id, 1000 + id)]);
      await eventually(() => seen.newest.total === id);
    }
    await eventually(() => client.comparisons.compared > compared);
    expect(seen.newest.rows.map((row) => row["name"])).toEqual([70, 69, 68, 67, 66].map((id) => `name ${id}`));
    expect(client.comparisons.different).toBe(0);
    expect([unlike, await server.metric("livetables_checksum_mismatches_total")]).toEqual([0, 0]);
  });

  it("find a patch that was changed on its way: it is not shown, and the whole window replaces it", async () => {
    let changed = 0;
    const sockets = poorSockets((frame) => {
      const inserted = frame.type === "patch" && changed === 0 ? frame.inserted[0] : undefined;
      if (frame.type !== "patch" || !inserted) return frame;
      changed++;
      const [position, id, values] = inserted;
      const others = values.map((value) => (value === "name 4" ? "somebody else" : value));
      return { ...frame, inserted: [[position, id, others], ...frame.inserted.slice(1)] };
    });
    const before = await server.metric("livetables_checksum_mismatches_total");
    const generation = await published([1, 2, 3]);
    const client = await connected(sockets.Socket);
    const seen = new Seen(client, "users_ui", { sort: [{ column: "age", descending: true }] });
    await eventually(() => seen.ids.join() === "3,2,1");
    await put(generation, [user(4)]);
    await eventually(() => seen.ids.join() === "4,3,2,1");
    await put(generation, [user(5)]);
    await eventually(() => seen.ids.join() === "5,4,3,2,1");
    expect([changed, client.comparisons.different]).toEqual([1, 1]);
    expect(seen.windows.flatMap(({ rows }) => rows.map((row) => row["name"]))).not.toContain("somebody else");
    expect(await server.metric("livetables_checksum_mismatches_total")).toBe(before + 1);
  });
});

describe("a login", () => {
  it("with a wrong key is refused, and works with the right one", async () => {
    const client = new LiveTablesClient({ url: server.url, token: "wrong", WebSocket });
    onTestFinished(() => {
      client.close();
    });
    await expect(client.connect()).rejects.toMatchObject({ code: "unauthorized", cure: /key/ });
    await client.login(TOKEN);
    expect(client.isReady).toBe(true);
  });
});

describe("over HTTP", () => {
  it("SQL is answered, a control message is checked, and a table is to be had as CSV", async () => {
    await published([1, 2]);
    const client = await connected();
    expect(await client.sql("select count(*) as n from users_ui")).toMatchObject({ rows: [[2]], truncated: false });
    await expect(client.sql("select nonsense")).rejects.toMatchObject({ code: "bad_sql" });
    await expect(client.sendControl({ nonsense: "x" })).rejects.toMatchObject({ problem: /not a control field/ });
    const csv = await client.request("api/tables/users_ui/rows?columns=name", { headers: { Accept: "text/csv" } });
    expect((await csv.text()).split(/\r?\n/).slice(0, 2)).toEqual(['"name"', '"name 1"']);
  });
});

describe("a page of the service before", () => {
  it("shows its three tables, through a swap, and leaves nothing behind", async () => {
    const status = { orchestrator_status: { columns: { generation: "string" } } };
    await server.feed({ do: "begin", generation: "status", tables: status });
    await putStatus(await published([1, 2, 3]));
    await server.feed({ do: "publish", generation: "status" });
    const tables = new LiveTablesClient({ url: server.url, token: TOKEN, WebSocket });
    onTestFinished(() => {
      tables.close();
    });
    for (let cycle = 0; cycle < 10; cycle++) {
      const page = [new UserComponent(tables), new AccountComponent(tables), new UserAccountComponent(tables)] as const;
      const [users, accounts, joined] = page;
      joined.ngOnInit();
      await Promise.all([users.ngOnInit(), accounts.ngOnInit()]);
      await eventually(() => users.rows.length === 2 && accounts.rows.length === 3 && joined.rows.length === 3);
      expect(users.columns).toEqual(["_id", ...Object.keys(USER)]);
      expect(accounts.rows[0]).toMatchObject({ userId: "u1", accountType: "basic", balance: 0.25 });
      expect(joined.rows[0]).toMatchObject({ userId: "u1", name: "name 1", accountType: "basic" });
      users.show(2);
      await eventually(() => users.rows.map(({ userId }) => userId).join() === "u3");
      if (cycle === 0) {
        await putStatus(await published([7, 8, 9]));
        await eventually(() => [accounts.rows[0], joined.rows[0]].every((row) => row?.userId === "u7"));
        await eventually(() => users.rows[0]?.userId === "u9");
        accounts.handle?.close(); // somebody else's mistake: the adapter acquires another one
        await published([1, 2, 3]);
        await eventually(() => accounts.rows[0]?.userId === "u1");
      }
      expect(tables.hub.viewports).toBe(4); // three tables, and the orchestrator's status
      for (const component of page) component.ngOnDestroy();
      expect(tables.hub.viewports).toBe(0);
    }
    await serverHas({ viewports: 0, clients: 1 });
  });
});
