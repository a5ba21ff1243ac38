import fc from "fast-check";
import { describe, expect, it } from "vitest";
import {
  ANSWER_MS,
  DELAY_MS_MAX,
  dueMs,
  FIRST_DELAY_MS,
  IDLE,
  next,
  PROBE_MS,
  SILENT_MS,
} from "../src/connection-state.js";
import type { ConnectionEvent, ConnectionState } from "../src/connection-state.js";
import { WELCOME } from "./support/frames.js";

const PROBLEM = { code: "unauthorized", problem: "the key is wrong", cure: "log in" };
const EVENTS: Record<ConnectionEvent["name"], ConnectionEvent> = {
  connect: { name: "connect" },
  close: { name: "close" },
  key: { name: "key" },
  opened: { name: "opened" },
  welcome: { name: "welcome", welcome: WELCOME },
  refused: { name: "refused", problem: PROBLEM },
  lost: { name: "lost", code: 1006, why: "", random: 0.5 },
  due: { name: "due", silentMs: 0, random: 0.5 },
  woke: { name: "woke", asleepMs: 60_000 },
};
const STATES: Record<ConnectionState["name"], ConnectionState> = {
  idle: IDLE,
  connecting: { name: "connecting", attempt: 1, why: "" },
  authenticating: { name: "authenticating", attempt: 1, why: "" },
  open: { name: "open", attempt: 1, welcome: WELCOME, isProbing: false },
  waiting: { name: "waiting", attempt: 1, why: "", delayMs: 500 },
  refused: { name: "refused", problem: PROBLEM },
  closed: { name: "closed" },
};

/** Where every event leads from every state, and what is done on the way. A dash: nothing happens. */
const EXPECTED: Record<ConnectionState["name"], Record<ConnectionEvent["name"], string>> = {
  idle: { connect: "connecting open", close: "closed drop", key: "-", opened: "-", welcome: "-", refused: "-", lost: "-", due: "-", woke: "-" }, // prettier-ignore
  connecting: { connect: "-", close: "closed drop", key: "connecting open", opened: "authenticating login", welcome: "-", refused: "refused drop", lost: "waiting drop", due: "waiting drop", woke: "-" }, // prettier-ignore
  authenticating: { connect: "-", close: "closed drop", key: "connecting open", opened: "-", welcome: "open restore", refused: "refused drop", lost: "waiting drop", due: "waiting drop", woke: "-" }, // prettier-ignore
  open: { connect: "-", close: "closed drop", key: "connecting open", opened: "-", welcome: "-", refused: "refused drop", lost: "waiting drop", due: "open heartbeat", woke: "open resync" }, // prettier-ignore
  waiting: { connect: "-", close: "closed drop", key: "connecting open", opened: "-", welcome: "-", refused: "-", lost: "-", due: "connecting open", woke: "connecting open" }, // prettier-ignore
  refused: { connect: "-", close: "closed drop", key: "connecting open", opened: "-", welcome: "-", refused: "-", lost: "-", due: "-", woke: "-" }, // prettier-ignore
  closed: { connect: "connecting open", close: "-", key: "-", opened: "-", welcome: "-", refused: "-", lost: "-", due: "-", woke: "-" }, // prettier-ignore
};

describe.each(Object.entries(EXPECTED))("%s", (state, row) => {
  it.each(Object.entries(row))(`and %s: %s`, (event, expected) => {
    const before = STATES[state as ConnectionState["name"]];
    const after = next(before, EVENTS[event as ConnectionEvent["name"]]);
    if (expected === "-") expect(after).toEqual({ state: before, effect: "none" });
    else expect(`${after.state.name} ${after.effect}`).toBe(expected);
  });
});

it.each([
  [4401, "unauthorized"],
  [4400, "unsupported_protocol"],
])("a login that is closed with %i is refused, even without a word", (code, problem) => {
  const { state } = next(STATES.authenticating, { name: "lost", code, why: "", random: 0 });
  expect(state).toMatchObject({ name: "refused", problem: { code: problem } });
});

it("an open connection whose key was changed is refused: the key would be wrong again", () => {
  const { state } = next(STATES.open, { name: "lost", code: 4401, why: "the key was changed", random: 0 });
  expect(state).toMatchObject({ name: "refused", problem: { code: "unauthorized", problem: "the key was changed" } });
});

it.each([4408, 4429, 1009, 1012, 1013, 1006])("a connection that is closed with %i is made again", (code) => {
  for (const state of [STATES.connecting, STATES.authenticating, STATES.open]) {
    expect(next(state, { name: "lost", code, why: "", random: 0 }).state.name).toBe("waiting");
  }
});

it("a silent server is left, a talking one gets heartbeats", () => {
  const due = (silentMs: number) => next(STATES.open, { name: "due", silentMs, random: 0 });
  expect(due(SILENT_MS)).toMatchObject({ state: { name: "waiting", why: "the server is silent" }, effect: "drop" });
  expect(due(SILENT_MS - 1)).toMatchObject({ state: { name: "open", attempt: 0 }, effect: "heartbeat" });
});

it("after a sleep the server has less time to answer", () => {
  const probing = next(STATES.open, { name: "woke", asleepMs: 10_000 }).state;
  expect(dueMs(probing)).toBe(PROBE_MS);
  expect(next(probing, { name: "due", silentMs: PROBE_MS, random: 0 }).state.name).toBe("waiting");
  expect(next(probing, { name: "due", silentMs: 10, random: 0 }).state).toMatchObject({
    name: "open",
    isProbing: false,
  });
});

it("a short look away is no sleep", () => {
  expect(next(STATES.open, { name: "woke", asleepMs: 9_999 })).toEqual({ state: STATES.open, effect: "none" });
});

it("waiting grows with each attempt, up to a limit, and differs between clients", () => {
  const delays = (random: number): number[] => {
    let state: ConnectionState = STATES.connecting;
    return Array.from({ length: 8 }, (_, attempt) => {
      state = next({ name: "connecting", attempt, why: "" }, { name: "lost", code: 1006, why: "", random }).state;
      return dueMs(state) ?? NaN;
    });
  };
  expect(delays(0)).toEqual([250, 500, 1000, 2000, 4000, 5000, 5000, 5000]);
  expect(delays(1)).toEqual([500, 1000, 2000, 4000, 8000, 10_000, 10_000, 10_000]);
  expect([FIRST_DELAY_MS, DELAY_MS_MAX]).toEqual([500, 10_000]);
});

it("only what lasts has no time limit", () => {
  const limits = Object.fromEntries(Object.entries(STATES).map(([name, state]) => [name, dueMs(state)]));
  const [connecting, authenticating] = [ANSWER_MS, ANSWER_MS];
  expect(limits).toEqual({
    idle: null,
    connecting,
    authenticating,
    open: 10_000,
    waiting: 500,
    refused: null,
    closed: null,
  });
});

it("whatever happens, the page can close, and connect again with another key", () => {
  const event = fc.constantFrom(...Object.values(EVENTS));
  fc.assert(
    fc.property(fc.array(event), (events) => {
      const state = events.reduce((before, each) => next(before, each).state, IDLE);
      const closed = next(state, EVENTS.close).state;
      expect(closed.name).toBe("closed");
      expect(next(closed, EVENTS.connect)).toMatchObject({ state: { name: "connecting" }, effect: "open" });
      if (state.name !== "idle" && state.name !== "closed") {
        expect(next(state, EVENTS.key)).toMatchObject({ state: { name: "connecting", attempt: 0 }, effect: "open" });
      }
    }),
  );
});
