import { beforeEach, describe, expect, it } from "vitest";
import { LiveTablesClient } from "../src/client.js";
import type { Health } from "../src/health.js";
import { FakeSurroundings, settled } from "./support/fake.js";
import { error, schema, snapshot, status, WELCOME } from "./support/frames.js";

let world: FakeSurroundings;
let client: LiveTablesClient;

beforeEach(() => {
  world = new FakeSurroundings();
  client = new LiveTablesClient({
    url: "https://host/tables",
    token: "the key",
    surroundings: world,
    onError: (error) => {
      throw error;
    },
  });
});

async function connected(): Promise<void> {
  const connecting = client.connect();
  world.socket.open();
  world.socket.receive(WELCOME);
  world.socket.receive(status("live"));
  await connecting;
}

async function reconnected(): Promise<void> {
  await world.pass(10_000);
  world.socket.open();
  world.socket.receive(WELCOME);
  world.socket.receive(status("live"));
}

describe("logging in", () => {
  it("sends the key in the first frame and not in the address", async () => {
    await connected();
    expect(world.socket.url).toBe("wss://host/tables/ws");
    expect(world.socket.sent).toEqual([{ type: "hello", protocol: 1, token: "the key" }]);
    expect(client.isReady).toBe(true);
    expect(client.tables).toEqual(["users_ui"]);
  });

  it("makes one socket for any number of calls", async () => {
    const calls = [client.connect(), client.connect(), client.connect()];
    world.socket.open();
    world.socket.receive(WELCOME);
    await Promise.all([...calls, client.connect()]);
    expect(world.sockets).toHaveLength(1);
  });

  it("waits for a server that is not there", async () => {
    const connecting = client.connect();
    for (let attempt = 0; attempt < 5; attempt++) {
      world.socket.drop();
      await world.pass(10_000);
    }
    expect(world.sockets).toHaveLength(6);
    world.socket.open();
    world.socket.receive(WELCOME);
    await connecting;
  });

  it("with a wrong key is refused for good, until there is another one", async () => {
    const connecting = client.connect();
    world.socket.open();
    world.socket.receive(error("unauthorized"));
    world.socket.drop(4401, "the key is wrong");
    await expect(connecting).rejects.toMatchObject({ code: "unauthorized", cure: "fix it" });
    await expect(client.connect()).rejects.toMatchObject({ code: "unauthorized" });
    await world.pass(3_600_000);
    world.wake(3_600_000);
    expect(world.sockets).toHaveLength(1);
    expect([world.timers, world.wakeListeners]).toEqual([0, 0]);
    expect(client.health).toEqual({ state: "refused", why: "problem: unauthorized" });

    const again = client.login("another key");
    world.socket.open();
    expect(world.socket.sent).toEqual([{ type: "hello", protocol: 1, token: "another key" }]);
    world.socket.receive(WELCOME);
    await again;
  });

  it("may be tried with another key after the first one was refused", async () => {
    let again: Promise<void> | undefined;
    client.health$.subscribe(({ state }) => {
      if (state === "refused") again = client.login("another key");
    });
    client.connect().catch(() => undefined);
    world.socket.open();
    world.socket.receive(error("unauthorized"));
    expect(world.openSockets).toHaveLength(1);
    await settled();
    world.socket.open();
    world.socket.receive(WELCOME);
    await again;
    expect(client.isReady).toBe(true);
  });

  it("ends when the page closes meanwhile", async () => {
    const connecting = client.connect();
    client.close();
    await expect(connecting).rejects.toMatchObject({ code: "closed" });
    expect(world.openSockets).toHaveLength(0);
  });

  it("without an answer is tried again", async () => {
    void client.connect();
    world.socket.open();
    await world.pass(10_000);
    expect(client.health.why).toBe("the server does not answer the login");
    await world.pass(500);
    expect(world.sockets).toHaveLength(2);
    expect(world.openSockets).toHaveLength(1);
  });
});

describe("a connection", () => {
  it("sends a heartbeat every ten seconds", async () => {
    await connected();
    for (let beat = 1; beat <= 3; beat++) {
      await world.pass(10_000);
      expect(world.socket.of("heartbeat")).toHaveLength(beat);
      world.socket.receive({ type: "heartbeat", time: "2026-01-31T12:00:00.123Z" });
    }
    expect(world.sockets).toHaveLength(1);
  });

  it("that hears nothing for thirty seconds is made again", async () => {
    await connected();
    await world.pass(30_000);
    expect(client.health).toEqual({ state: "reconnecting", why: "the server is silent" });
    await world.pass(500);
    expect(world.openSockets).toEqual([world.sockets[1]]);
  });

  it("ignores events of a socket that it has left", async () => {
    await connected();
    const [first] = world.sockets;
    await world.pass(30_500);
    first?.open();
    first?.receive(WELCOME);
    first?.drop();
    expect(client.isReady).toBe(false);
    expect(world.openSockets).toEqual([world.sockets[1]]);
    world.socket.open();
    world.socket.receive(WELCOME);
    client.subscribe("users_ui", () => {
      throw new Error("rows of a socket that was left");
    });
    first?.receive(schema());
    first?.receive(snapshot([["Ann", 1]]));
    first?.receive(error("unauthorized"));
    expect(client.isReady).toBe(true);
  });

  it("is made again when the server sends what is no frame", async () => {
    await connected();
    world.socket.receiveText("<html>");
    expect(client.health).toMatchObject({ state: "reconnecting", why: expect.stringContaining("no frame") as string });
    expect(world.openSockets).toHaveLength(0);
  });

  it("backs off from a server that takes everybody and drops them", async () => {
    await connected();
    const delays = [];
    for (let attempt = 0; attempt < 4; attempt++) {
      world.socket.drop(1013);
      const before = world.now();
      const sockets = world.sockets.length;
      while (world.sockets.length === sockets) await world.pass(125);
      delays.push(world.now() - before);
      world.socket.open();
      world.socket.receive(WELCOME);
    }
    expect(delays).toEqual([375, 750, 1500, 3000]);
  });

  it("that has lasted is made again without delay growing", async () => {
    await connected();
    for (let attempt = 0; attempt < 3; attempt++) {
      await world.pass(10_000);
      world.socket.receive({ type: "heartbeat", time: "" });
      world.socket.drop();
      await world.pass(375);
      expect(world.sockets).toHaveLength(attempt + 2);
      world.socket.open();
      world.socket.receive(WELCOME);
    }
  });

  it("leaves nothing behind when it is closed", async () => {
    await connected();
    client.close();
    expect([world.openSockets.length, world.timers, world.wakeListeners]).toEqual([0, 0, 0]);
    expect(client.health).toEqual({ state: "closed", why: "not connected" });
  });
});

describe("a tab that wakes", () => {
  it("connects at once when it was waiting", async () => {
    await connected();
    world.socket.drop();
    world.wake(1);
    expect(world.sockets).toHaveLength(2);
  });

  it("asks for every window again, and for a sign of life", async () => {
    await connected();
    client.subscribe("users_ui", () => undefined);
    world.socket.receive(schema());
    world.socket.receive(snapshot([["Ann", 1]]));
    world.wake(60_000);
    expect(world.socket.sent.slice(-2)).toEqual([{ type: "heartbeat" }, { type: "resync", sub: 0 }]);
    world.socket.receive(snapshot([["Ann", 2]]));
    await world.pass(5_000);
    expect(world.sockets).toHaveLength(1);
  });

  it("finds out soon that its connection is dead", async () => {
    await connected();
    world.wake(60_000);
    await world.pass(5_500);
    expect(world.sockets).toHaveLength(2);
  });
});

describe("what the page shows", () => {
  it("is live, stale with the cause, and reconnecting", async () => {
    const seen: Health[] = [];
    client.health$.subscribe((health) => seen.push(health));
    await connected();
    world.socket.receive(status("catching_up", "12,000 records are still to be read"));
    world.socket.receive(status("pipeline_down", "the pipeline was last heard at noon"));
    world.socket.receive(status("idle", "no new records"));
    world.socket.drop(1012, "the server restarts");
    await reconnected();
    expect(seen.map(({ state, why }) => `${state}: ${why}`)).toEqual([
      "closed: not connected",
      "reconnecting: connecting to the server",
      "reconnecting: waiting for the server's first status",
      "live: live",
      "stale: 12,000 records are still to be read",
      "stale: the pipeline was last heard at noon",
      "live: no new records",
      "reconnecting: the server restarts",
      "reconnecting: waiting for the server's first status",
      "live: live",
    ]);
  });

  it("does not repeat itself", async () => {
    await connected();
    let changes = -1; // the first is what it is now
    client.health$.subscribe(() => changes++);
    await world.pass(10_000);
    world.socket.receive(status("live"));
    await settled();
    expect(changes).toBe(0);
  });
});
