import { expect, it } from "vitest";
import { best, measured } from "../src/clock.js";

const SERVER = "2026-01-31T12:00:00.500Z";
const serverMs = Date.parse(SERVER);

it("takes the server's time for the middle between question and answer", () => {
  expect(best(measured([], serverMs - 2_010, serverMs - 1_990, SERVER))).toEqual({ aheadMs: 2_000, uncertaintyMs: 10 });
  expect(best(measured([], serverMs + 3_000, serverMs + 3_000, SERVER))).toEqual({ aheadMs: -3_000, uncertaintyMs: 0 });
});

it("believes the quickest answer of the last minute, and of equals the latest", () => {
  let all = measured([], serverMs - 500, serverMs + 100, SERVER); // a page that was busy
  all = measured(all, serverMs - 2, serverMs + 2, SERVER);
  all = measured(all, serverMs - 3, serverMs + 1, SERVER);
  all = measured(all, serverMs - 90, serverMs + 10, SERVER);
  expect(best(all)).toEqual({ aheadMs: 1, uncertaintyMs: 2 });
  for (let more = 0; more < 6; more++) all = measured(all, serverMs - 30, serverMs + 10, SERVER);
  expect(best(all)).toEqual({ aheadMs: 10, uncertaintyMs: 20 });
  expect(all).toHaveLength(6);
});

it("measures nothing by a time that cannot be read, nor when this clock was set back meanwhile", () => {
  expect(measured([], 0, 1, "noon")).toEqual([]);
  expect(measured([], 1, 0, SERVER)).toEqual([]);
  expect(best([])).toBeNull();
});
