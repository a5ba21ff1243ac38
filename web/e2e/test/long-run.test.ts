import { setTimeout as pause } from "node:timers/promises";
import { expect, onTestFinished } from "vitest";
import { stack, test } from "../support/test.js";
import { described, VitalSigns } from "../support/vitals.js";

const RATE = 1000;
const USERS = 5000; // with fewer, the join would make many more rows than there are records
const WARM_UP_MS = 5_000;
const RUN_MS = 10_000; // the time itself is what is tested: `npm run long` has more of it

test("ten seconds of new rows leave the page with as many nodes and listeners", async ({ browsing }) => {
  const page = await browsing.opened();
  const { stop } = await stack.stream({ rate: RATE, users: USERS, seed: 7 });
  onTestFinished(stop);
  const signs = await VitalSigns.of(page.page);
  await pause(WARM_UP_MS);
  const first = await signs.look();
  await pause(RUN_MS);
  const last = await signs.look();

  process.stdout.write(
    `after ${WARM_UP_MS / 1000} s: ${described(first)}\nafter ${RUN_MS / 1000} s more: ${described(last)}\n`,
  );
  expect(last.nodes).toBeLessThan(1.2 * first.nodes + 500);
  expect(last.listeners).toBeLessThan(1.2 * first.listeners + 50);
});
