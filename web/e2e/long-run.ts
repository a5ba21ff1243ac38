/** A page under steady load: `npm run long -w e2e -- --minutes 10 --rate 1000`. Fails if memory does not stay. */
import { setTimeout as pause } from "node:timers/promises";
import { parseArgs } from "node:util";
import { chromium } from "playwright-core";
import { browserServer } from "./support/browser.js";
import { Stack } from "./support/stack.js";
import { described, VitalSigns } from "./support/vitals.js";
import type { Vitals } from "./support/vitals.js";

const MINUTE_MS = 60_000;
const USERS = 20_000; // so many that the pairs of the join grow with the records, and not with their square
const SCREEN = { width: 1600, height: 1000 };

const { values } = parseArgs({
  options: { minutes: { type: "string", default: "10" }, rate: { type: "string", default: "1000" } },
});
const minutes = Number(values.minutes);
const rate = Number(values.rate);
if (!(minutes >= 2) || !(rate > 0)) throw new Error("give --minutes 2 or more, and --rate greater than 0");

const ends: (() => Promise<unknown>)[] = [];
try {
  const { first, last } = await watched();
  const allowed = 1.2 * first.heapMegabytes + 5;
  const verdict = last.heapMegabytes <= allowed ? "stays" : "does not stay";
  print(`memory ${verdict}: ${last.heapMegabytes.toFixed(1)} MB at the end, ${allowed.toFixed(1)} MB allowed`);
  if (last.heapMegabytes > allowed) process.exitCode = 1;
} finally {
  for (const end of ends.reverse()) await end();
}

/** The page after a minute, and at the end. */
async function watched(): Promise<{ readonly first: Vitals; readonly last: Vitals }> {
  const stack = await Stack.started();
  ends.push(() => stack.end());
  const server = await browserServer();
  ends.push(() => server.close());
  const browser = await chromium.connect(server.wsEndpoint());
  const page = await browser.newPage({ viewport: SCREEN });
  await page.goto(`${stack.url}/#key=${encodeURIComponent(stack.key)}`);
  await page.locator(".ag-row").first().waitFor();
  const stream = await stack.stream({ rate, users: USERS });
  ends.push(() => stream.stop());

  const signs = await VitalSigns.of(page);
  let first: Vitals | undefined;
  let last: Vitals | undefined;
  for (let minute = 1; minute <= minutes; minute++) {
    await pause(MINUTE_MS);
    last = await signs.look();
    first ??= last;
    const rows = (await stack.httpClient.total("final_ui")).toLocaleString("en");
    print(`minute ${minute}: ${described(last)}, ${rows} rows in final_ui`);
  }
  if (!first || !last) throw new Error("nobody looked");
  return { first, last };
}

function print(line: string): void {
  process.stdout.write(`${line}\n`);
}
