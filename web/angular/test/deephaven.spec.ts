/**
 * Pages written for the old service, on a model of the server over fake sockets, so that a swap, a restart or a wrong key
 * comes exactly when a test wants it; e2e/ has the real server and browser.
 */
import { inputBinding } from "@angular/core";
import type { Type } from "@angular/core";
import type { ComponentFixture } from "@angular/core/testing";
import { TestBed } from "@angular/core/testing";
import { beforeEach, describe, expect, it, vi } from "vitest";
import { FakeSurroundings, settled } from "../../core/test/support/fake.js";
import { COLUMNS, ModelServer } from "../../core/test/support/model-server.js";
import { DeephavenService, LiveTableComponent } from "../deephaven/src/index";
import type { DhTable, NamedRow, ViewportData } from "../deephaven/src/index";
import { LiveTableService, provideLiveTables } from "../src/index";
import { AdapterPage } from "./old-pages/adapter.page";
import { PagingPage } from "./old-pages/paging.page";
import { RawHandlePage } from "./old-pages/raw-handle.page";
import { RebindPage } from "./old-pages/rebind.page";

vi.setConfig({ testTimeout: 120_000 }); // a hang guard: AG Grid takes its time in jsdom on a busy machine

let world: FakeSurroundings;
let server: ModelServer;
let dh: DeephavenService;

beforeEach(() => {
  world = new FakeSurroundings();
  server = new ModelServer(() => world.now());
  for (const table of ["user", "account", "final_ui"]) server.publish(table, 3, false);
  world.onSocket = (socket) => {
    queueMicrotask(() => {
      server.connect(socket);
    });
  };
  TestBed.configureTestingModule({
    providers: [provideLiveTables({ url: "http://host:8080", token: "the key", surroundings: world })],
  });
  dh = TestBed.inject(DeephavenService);
});

/** Let the server read and answer all that there is. */
async function served(): Promise<void> {
  do await settled();
  while (server.read() || server.write() || server.deliver());
}

async function opened<T>(page: Type<T>): Promise<ComponentFixture<T>> {
  const fixture = TestBed.createComponent(page);
  await drawn(fixture);
  return fixture;
}

async function drawn(fixture: ComponentFixture<unknown>): Promise<void> {
  fixture.detectChanges();
  await served();
  fixture.detectChanges();
  await served(); // a table that is in the page only now asks for its rows
  fixture.detectChanges();
}

/** The server goes away and comes back, with other rows. */
async function restarted(...tables: string[]): Promise<void> {
  server.stop();
  await settled();
  for (const table of tables) server.publish(table, 1, false);
  server.start();
  await world.pass(10_000);
  await served();
}

async function handle(name = "user"): Promise<DhTable> {
  const acquiring = dh.getTableHandle(name);
  await served();
  return await acquiring;
}

function texts(fixture: ComponentFixture<unknown>, selector: string): string[] {
  const found = (fixture.nativeElement as HTMLElement).querySelectorAll(selector);
  return [...found].map((element) => element.textContent.trim());
}

function table(bindings: Readonly<Record<string, unknown>>): ComponentFixture<LiveTableComponent> {
  return TestBed.createComponent(LiveTableComponent, {
    bindings: Object.entries(bindings).map(([name, value]) => inputBinding(name, () => value)),
  });
}

/** `user` has a column that the page does not have. */
function publishWithIds(): void {
  server.tables.set("user", {
    generation: "with ids",
    columns: [{ name: "_id", type: "int64" }, ...COLUMNS, { name: "_left_id", type: "int64" }],
    rows: [{ id: 0, values: { _id: 7, name: "Ann", age: 30, _left_id: 8 } }],
  });
}

describe("DeephavenService", () => {
  const FIRST_USES: Readonly<Record<string, () => unknown>> = {
    getTableHandle: () => dh.getTableHandle("user"),
    subscribe: () => dh.subscribe("user", () => undefined),
    streamTableWithRebind: () => dh.streamTableWithRebind("user"),
    "a component": () => table({ tableName: "user" }),
  };

  for (const [name, use] of Object.entries(FIRST_USES)) {
    it(`connects by itself with ${name}, once`, async () => {
      expect([dh.isReady, world.sockets.length]).toEqual([false, 0]);
      use();
      use();
      await served();
      expect([dh.isReady, world.sockets.length]).toEqual([true, 1]);
    });
  }

  it("connects by itself with bind", async () => {
    const user = await handle();
    TestBed.inject(LiveTableService).close();
    await served();
    expect(dh.isReady).toBe(false);
    await dh.createLiveAdapter().bind(user, () => undefined);
    await served();
    expect([dh.isReady, world.sockets.length]).toEqual([true, 2]);
  });

  it("is not ready while the connection is lost", async () => {
    await handle();
    server.stop();
    await settled();
    expect(dh.isReady).toBe(false);
    server.start();
    await world.pass(10_000);
    await served();
    expect(dh.isReady).toBe(true);
  });

  it("shares the connection of the main service", async () => {
    await handle();
    expect(TestBed.inject(LiveTableService).isReady).toBe(true);
  });

  it("rejects an unknown table", async () => {
    const acquiring = expect(dh.getTableHandle("usr")).rejects.toThrow(/unknown_table/);
    await served();
    await acquiring;
  });

  it("rejects a name that no table can have, and asks nobody", async () => {
    await expect(dh.getTableHandle("user; drop")).rejects.toThrow(/not a table's name/);
    expect(() => dh.subscribe("1user", () => undefined)).toThrow(/not a table's name/);
    expect(errorOf("final-ui")).toMatch(/not a table's name/);
    await served();
    expect(world.socket.of("subscribe")).toEqual([]);
  });

  function errorOf(name: string): string {
    let problem = "";
    dh.streamTableWithRebind(name).rows$.subscribe({ error: (error: unknown) => (problem = String(error)) });
    return problem;
  }

  it("shows internal ids neither as columns, nor in arrays, nor in objects", async () => {
    publishWithIds();
    const user = await handle();
    expect(user.columns).toEqual([
      { name: "name", type: "java.lang.String", index: 0 },
      { name: "age", type: "long", index: 1 },
    ]);
    const arrays: unknown[] = [];
    const objects: unknown[] = [];
    dh.subscribe("user", (rows) => arrays.push(rows));
    await dh.createLiveAdapter().bind(user, (rows) => objects.push(rows));
    dh.streamTableWithRebind("user").rows$.subscribe((rows) => objects.push(rows));
    await served();
    expect(arrays).toEqual([[["Ann", 30]]]);
    expect(objects).toEqual([[], [{ name: "Ann", age: 30 }], [{ name: "Ann", age: 30 }]]);
  });

  it("reports why a subscription has no rows, on the console by default", async () => {
    const reported = vi.spyOn(console, "error").mockImplementation(() => undefined);
    const problems: string[] = [];
    dh.subscribe("usr", () => undefined);
    dh.subscribe("usr", () => undefined, { size: 1, onProblem: ({ code }) => problems.push(code) });
    await served();
    expect(String(reported.mock.calls)).toContain("unknown_table");
    expect(problems).toEqual(["unknown_table"]);
    reported.mockRestore();
  });
});

describe("a page with a raw handle", () => {
  it("shows its rows, in a viewport of 10,001 rows", async () => {
    const page = await opened(RawHandlePage);
    expect(texts(page, "th")).toEqual(["name", "age"]);
    expect(texts(page, "tbody tr:first-child td")).toEqual(["row 0", "0"]);
    expect(texts(page, "tbody tr")).toHaveLength(3);
    expect(world.socket.of("subscribe").map(({ view }) => view.size)).toContain(10_001);
  });

  it("follows its rows", async () => {
    const page = await opened(RawHandlePage);
    server.insert("user", 77);
    await drawn(page);
    expect(texts(page, "tbody tr:last-child td").at(-1)).toBe("77");
    expect(page.componentInstance.updates).toBe(2);
  });

  it("follows a swap, and columns that are others", async () => {
    const page = await opened(RawHandlePage);
    server.publish("user", 2, true);
    await drawn(page);
    expect(texts(page, "th")).toEqual(["name", "age", "email"]);
    expect(texts(page, "tbody tr")).toHaveLength(2);
    expect(texts(page, "tbody tr:first-child td")).toHaveLength(3);
  });

  it("outlasts a restart of the server", async () => {
    const page = await opened(RawHandlePage);
    await restarted("user");
    await drawn(page);
    expect(texts(page, "tbody tr")).toHaveLength(1);
  });

  it("gets the reason of a wrong key", async () => {
    server.key = "another key";
    const page = await opened(RawHandlePage);
    expect(texts(page, ".error")[0]).toContain("the key is wrong");
  });

  it("leaves nothing behind", async () => {
    const page = await opened(RawHandlePage);
    page.destroy();
    await served();
    expect(server.subscriptions).toBe(0);
  });
});

describe("DhTable", () => {
  it("moves its viewport", async () => {
    const user = await handle();
    user.setViewport(0, 0);
    const moving = user.getViewportData();
    user.setViewport(1, 2, ["age"]);
    await served();
    const { offset, columns, rows } = await user.getViewportData();
    expect([offset, columns.map(({ name }) => name), rows.map(({ index }) => index)]).toEqual([1, ["age"], [1, 2]]);
    expect((await moving).offset).toBe(1); // whoever waited gets what is looked at now
    expect(rows[0]?.get("age")).toBe(1);
    expect(rows[0]?.get("name")).toBeNull();
    expect(server.subscriptions).toBe(1);
  });

  it("gives its rows to whoever listens after they came, and not to who has left", async () => {
    const user = await handle();
    user.setViewport(0, 9);
    await served();
    const seen: ViewportData[] = [];
    user.addEventListener("update", ({ detail }) => seen.push(detail));
    const leave = user.addEventListener("updated", ({ detail }) => seen.push(detail));
    leave();
    await served();
    expect(seen).toHaveLength(1);
    server.insert("user", 4);
    await served();
    expect(seen.map(({ rows }) => rows.length)).toEqual([3, 4]);
  });

  it("notifies the others though one listener throws", async () => {
    const reported = vi.spyOn(console, "error").mockImplementation(() => undefined);
    const user = await handle();
    let notified = 0;
    user.addEventListener("update", () => {
      throw new Error("a mistake of the page");
    });
    user.addEventListener("update", () => (notified += 1));
    user.setViewport(0, 9);
    await served();
    expect([notified, reported.mock.calls.length]).toEqual([1, 1]);
    reported.mockRestore();
  });

  it("reports changed columns without a viewport, to listeners only", async () => {
    const user = await handle();
    const seen: string[][] = [];
    const stop = user.addEventListener("schema_changed", ({ detail }) =>
      seen.push(detail.columns.map(({ name }) => name)),
    );
    await served();
    server.publish("user", 3, true);
    await served();
    expect(seen).toEqual([["name", "age", "email"]]);
    stop();
    await served();
    expect(server.subscriptions).toBe(0);
  });

  it("has a snapshot of the viewport in the columns asked for, and of the first rows without one", async () => {
    const user = await handle();
    const first = user.snapshot();
    await served();
    expect((await first).rows).toHaveLength(3);
    user.setViewport(1, 1);
    const second = user.snapshot(user.columns.slice(0, 1));
    await served();
    const { rows, columns } = await second;
    expect([rows.map((row) => row.get("name")), columns.length]).toEqual([["row 1"], 1]);
    expect(server.subscriptions).toBe(1);
  });

  it("reports why no rows come: by event, and to those that wait for them", async () => {
    const user = await handle();
    const problems: string[] = [];
    user.addEventListener(dh.getDhNs().Table.EVENT_REQUEST_FAILED, ({ detail }) => problems.push(detail.code));
    user.setViewport(0, 10_001);
    const waiting = expect(user.getViewportData()).rejects.toThrow(/10,002 rows are too many/);
    await served();
    await waiting;
    expect(problems).toEqual(["limit"]);
  });

  it("refuses a viewport without rows", async () => {
    const user = await handle();
    expect(() => user.setViewport(5, 4)).toThrow(/no rows/);
    await expect(user.getViewportData()).rejects.toThrow(/setViewport first/);
  });

  it("is of no use when it is closed", async () => {
    const user = await handle();
    user.setViewport(0, 9);
    const waiting = expect(user.getViewportData()).rejects.toThrow(/closed/);
    user.close();
    await waiting;
    await served();
    expect([user.isClosed, server.subscriptions]).toEqual([true, 0]);
    expect(() => user.setViewport(0, 9)).toThrow(/closed/);
  });
});

describe("a page with rows as arrays", () => {
  it("shows them, and turns pages", async () => {
    const page = await opened(PagingPage);
    expect(texts(page, "li")).toEqual(["row 0|0|", "row 1|1|"]);
    expect(texts(page, ".ready")).toEqual(["ready"]);
    const [, on] = (page.nativeElement as HTMLElement).querySelectorAll("button");
    on?.click();
    await drawn(page);
    expect(texts(page, "li")).toEqual(["row 2|2|"]);
    expect(server.subscriptions).toBe(1);
  });

  it("follows a swap and a restart", async () => {
    const page = await opened(PagingPage);
    server.publish("user", 1, false);
    await drawn(page);
    expect(texts(page, "li")).toHaveLength(1);
    server.stop();
    await settled();
    page.detectChanges();
    expect(texts(page, ".ready")).toEqual(["not ready"]);
    await restarted();
    server.publish("user", 2, false);
    await drawn(page);
    expect(texts(page, "li")).toHaveLength(2);
    expect(texts(page, ".ready")).toEqual(["ready"]);
  });

  it("reports a wrong key", async () => {
    const reported = vi.spyOn(console, "error").mockImplementation(() => undefined);
    server.key = "another key";
    const page = await opened(PagingPage);
    expect(texts(page, ".ready")).toEqual(["not ready"]);
    expect(String(reported.mock.calls)).toContain("the key is wrong");
    reported.mockRestore();
  });
});

describe("a page with an adapter", () => {
  it("binds once, and follows its rows, which stay the same objects", async () => {
    const page = await opened(AdapterPage);
    expect(page.componentInstance.times).toBe(1);
    const [first] = page.componentInstance.rows;
    server.insert("account", 4);
    await drawn(page);
    expect(page.componentInstance.rows).toHaveLength(4);
    expect(page.componentInstance.rows[0]).toBe(first);
  });

  it("follows a swap and a restart, and gets another handle for one that was closed", async () => {
    const page = await opened(AdapterPage);
    const { componentInstance } = page;
    server.publish("account", 2, false);
    await drawn(page);
    expect(componentInstance.rows).toHaveLength(2);
    await restarted("account");
    expect(componentInstance.rows).toHaveLength(1);
    componentInstance.handle?.close();
    await served();
    expect(server.subscriptions).toBe(0);
    await world.pass(150);
    await served();
    server.insert("account", 9);
    await served();
    expect(componentInstance.rows).toHaveLength(2);
  });

  it("gets the reason of a wrong key", async () => {
    server.key = "another key";
    const page = await opened(AdapterPage);
    expect(texts(page, ".error")[0]).toContain("the key is wrong");
  });

  it("leaves nothing behind", async () => {
    const page = await opened(AdapterPage);
    page.destroy();
    await served();
    expect(server.subscriptions).toBe(0);
  });
});

describe("a page with a stream that rebinds", () => {
  it("begins with no rows, and follows a swap and a restart", async () => {
    const fixture = TestBed.createComponent(RebindPage);
    fixture.detectChanges();
    expect(texts(fixture, ".count")).toEqual(["0 rows"]);
    await drawn(fixture);
    expect(texts(fixture, ".count")).toEqual(["3 rows"]);
    expect(texts(fixture, "ol li")).toHaveLength(3);
    server.publish("final_ui", 2, false);
    await drawn(fixture);
    expect(texts(fixture, ".count")).toEqual(["2 rows"]);
    await restarted("final_ui");
    await drawn(fixture);
    expect(texts(fixture, ".count")).toEqual(["1 rows"]);
  });

  it("gets the reason of a wrong key", async () => {
    server.key = "another key";
    const page = await opened(RebindPage);
    expect([texts(page, ".count"), texts(page, ".error")[0]]).toEqual([
      ["no rows"],
      expect.stringContaining("the key is wrong"),
    ]);
  });

  it("leaves nothing behind", async () => {
    const page = await opened(RebindPage);
    page.destroy();
    await served();
    expect(server.subscriptions).toBe(0);
  });
});

describe("rows$", () => {
  interface Seen {
    rows: NamedRow[][];
    error: string;
    isComplete: boolean;
  }

  function seen(name: string, maxRows?: number): Seen & { dispose: () => Promise<void> } {
    const { rows$, dispose } = dh.streamTableWithRebind(name, maxRows);
    const all = { rows: [] as NamedRow[][], error: "", isComplete: false, dispose };
    rows$.subscribe({
      next: (rows) => all.rows.push(rows),
      error: (error: unknown) => (all.error = String(error)),
      complete: () => (all.isComplete = true),
    });
    return all;
  }

  it("has the first 1,000 rows by default, and follows orchestrator_status", async () => {
    seen("user");
    await served();
    expect(world.socket.of("subscribe").map((frame) => [frame.table, frame.view.size])).toEqual([
      ["user", 1000],
      ["orchestrator_status", 1],
    ]);
  });

  it("fails for a table that is not there, and for too many rows, and the others go on", async () => {
    const unknown = seen("usr");
    const tooMany = seen("user", 10_002);
    const good = seen("user", 10_001);
    await served();
    expect([unknown.rows, unknown.error]).toEqual([[[]], expect.stringContaining("unknown_table")]);
    expect([tooMany.rows, tooMany.error]).toEqual([[[]], expect.stringContaining("10,002 rows are too many")]);
    expect([good.rows.map((rows) => rows.length), good.error]).toEqual([[0, 3], ""]);
  });

  it("fails for a table that is still not there when the server has started", async () => {
    server.setState("starting");
    const waiting = seen("late");
    await served();
    expect(waiting.error).toBe("");
    server.setState("live");
    await served();
    expect([waiting.rows, waiting.error]).toEqual([[[]], expect.stringContaining("unknown_table")]);
  });

  it("waits for a table while the server starts", async () => {
    server.setState("starting");
    const waiting = seen("late");
    await served();
    expect(waiting.error).toBe("");
    server.publish("late", 2, false);
    await served();
    expect(waiting.rows.map((rows) => rows.length)).toEqual([0, 2]);
  });

  it("ends for everybody when it is disposed of, also for who comes after", async () => {
    const all = seen("user");
    await served();
    await all.dispose();
    await served();
    expect([all.isComplete, server.subscriptions]).toEqual([true, 0]);
  });
});

describe("<app-live-table>", () => {
  it("takes the table's name by tableName, or by varName", async () => {
    for (const inputs of [{ tableName: "user" }, { varName: "user" }, { tableName: "user", varName: "usr" }]) {
      const fixture = table({ ...inputs, pageSize: 2, initialOffset: 1 });
      await drawn(fixture);
      expect(texts(fixture, "td")).toEqual(["row 1", "1", "row 2", "2"]);
      fixture.destroy();
    }
  });

  it("shows nothing while it has no name", async () => {
    const fixture = table({});
    await drawn(fixture);
    expect((fixture.nativeElement as HTMLElement).textContent.trim()).toBe("");
  });

  it("shows a wrong key", async () => {
    server.key = "another key";
    const fixture = table({ tableName: "user" });
    await drawn(fixture);
    expect(texts(fixture, "live-state")).toEqual(["Refused: the key is wrong"]);
  });

  it("shows that there is no such table, and that no table can have the name", async () => {
    for (const [tableName, problem] of [
      ["usr", "unknown_table"],
      ["final-ui", "is not a table's name"],
    ]) {
      const fixture = table({ tableName });
      await drawn(fixture);
      expect(texts(fixture, "live-state")[0]).toContain(problem);
      fixture.destroy();
    }
  });

  it("shows that the connection is lost, and that it is back", async () => {
    const fixture = table({ tableName: "user" });
    await drawn(fixture);
    server.stop();
    await settled();
    fixture.detectChanges();
    expect(texts(fixture, "live-state")[0]).toContain("Reconnecting");
    await restarted();
    await drawn(fixture);
    expect(texts(fixture, "live-state")).toEqual([""]);
  });
});
