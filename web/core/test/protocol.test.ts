import { readdirSync, readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { LivetablesError } from "../src/errors.js";
import { decode, encode } from "../src/protocol.js";
import type { ClientFrame } from "../src/protocol.js";
import { viewOf } from "../src/view.js";
import { moved, setFrame, subscribeFrame, viewport } from "../src/viewport.js";

const GOLDEN = new URL("../../../tests/golden/", import.meta.url);

function golden(name: string): Record<string, unknown> {
  return JSON.parse(readFileSync(new URL(`${name}.json`, GOLDEN), "utf8")) as Record<string, unknown>;
}

const names = readdirSync(GOLDEN).map((file) => file.replace(".json", ""));

describe("golden frames from the server", () => {
  const fromServer = names.filter((name) => name.startsWith("server-"));

  it("are of all kinds that this client knows", () => {
    const kinds = ["error", "heartbeat", "hello", "patch", "rebound", "schema", "snapshot", "status"];
    expect(fromServer.sort()).toEqual(kinds.map((kind) => `server-${kind}`));
  });

  it.each(fromServer)("%s is understood as it is", (name) => {
    const frame = golden(name);
    expect(decode(JSON.stringify(frame))).toEqual(frame);
  });

  it.each(fromServer.filter((name) => name !== "server-heartbeat"))("%s without any one field is no frame", (name) => {
    const frame = golden(name);
    const optional = ["type", "sub", "idle_seconds", "role", "spark_ui", "time", "receipt", "checksum"];
    for (const field of Object.keys(frame).filter((each) => !optional.includes(each))) {
      expect(() => decode(JSON.stringify({ ...frame, [field]: undefined })), field).toThrow(LivetablesError);
    }
  });
});

describe("golden frames from the client", () => {
  const view = {
    columns: ["name", "age"],
    sort: [{ column: "age", descending: true }],
    filters: [
      { column: "age", op: "between", value: [18, "9007199254740993"] },
      { column: "email", op: "is_null" },
    ],
    quick: "ann",
    offset: 100,
    size: 50,
  } as const;

  const made: Record<string, ClientFrame> = {
    "client-hello": { type: "hello", protocol: 1, token: "the key" },
    "client-subscribe": subscribeFrame(viewport("users_ui", viewOf(view), 3), true),
    "client-set": { type: "set", sub: 3, revision: 1, offset: 150, sort: [] },
    "client-resync": { type: "resync", sub: 3, reason: "checksum" },
    "client-unsubscribe": { type: "unsubscribe", sub: 3 },
    "client-heartbeat": { type: "heartbeat" },
  };

  it.each(names.filter((name) => name.startsWith("client-")))("%s is what this client makes", (name) => {
    const frame = made[name];
    if (!frame) throw new Error(`this client makes no ${name}`);
    expect(JSON.parse(encode(frame))).toEqual(golden(name));
  });

  it("a set names everything, so that it does not matter what the server took before", () => {
    const before = viewport("users_ui", viewOf(view), 3);
    expect(setFrame(moved(before, viewOf({ ...view, columns: null, offset: 150 })))).toEqual({
      ...{ type: "set", sub: 3, revision: 1 },
      ...view,
      ...{ columns: null, offset: 150 },
    });
  });
});

it("an interval is asked for with the subscription, and stays: no set has it", () => {
  const before = viewport("users_ui", viewOf({ interval_ms: 20 }), 3);
  expect(subscribeFrame(before, true).view).toHaveProperty("interval_ms", 20);
  expect(setFrame(before)).not.toHaveProperty("interval_ms");
});

describe("what an older server does not send", () => {
  it.each(["server-hello", "server-snapshot", "server-patch"])("is not missed in %s", (name) => {
    const older = { ...golden(name), time: undefined, receipt: undefined, checksum: undefined };
    expect(decode(JSON.stringify(older))).toEqual(older);
  });

  it("is not asked for", () => {
    const frame = subscribeFrame(viewport("users_ui", viewOf({ interval_ms: 20 }), 3), false);
    expect(frame).not.toHaveProperty("checksum");
    expect(frame.view).not.toHaveProperty("interval_ms");
  });
});

it.each([{}, [], 3, { kafka: 1, spark: 2, applied: 3 }, { kafka: 1, spark: 2, applied: 3, sent: null }])(
  "a frame with the receipt %j is no frame",
  (receipt) => {
    expect(() => decode(JSON.stringify({ ...golden("server-patch"), receipt }))).toThrow("no fitting receipt");
  },
);

it("a frame may have a hint, which is text", () => {
  const frame = { ...golden("server-patch"), hint: "only 20 rows are shown, as they are large" };
  expect(decode(JSON.stringify(frame))).toEqual(frame);
  expect(() => decode(JSON.stringify({ ...frame, hint: 3 }))).toThrow("no fitting hint");
});

it("a frame of a kind that came later is passed over", () => {
  expect(decode('{"type": "news", "text": "x"}')).toBeUndefined();
  expect(decode('{"type": "toString"}')).toBeUndefined();
});

it.each(["", "{", "[]", "null", "3", '{"sub": 1}', new ArrayBuffer(4)])("%s is no frame", (text) => {
  expect(() => decode(text)).toThrow("no frame");
});

it("a snapshot with more rows than ids is no frame", () => {
  const frame = golden("server-snapshot");
  expect(() => decode(JSON.stringify({ ...frame, ids: [1] }))).toThrow("one id for each row");
});

it("a key in an error would be a leak: what is no frame is not repeated", () => {
  expect(() => decode("the key")).toThrow(
    expect.not.objectContaining({ message: expect.stringContaining("the key") as string }) as Error,
  );
});
