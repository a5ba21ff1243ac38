/**
 * From a record's Kafka timestamp to its row being painted: `npm run painted -w e2e -- --seconds 60 --rate 1000`.
 *
 * The newest row of final_ui is at the top of its grid. In every animation frame its time is read from what the grid
 * has drawn; when it is another one, its age is taken in the frame after, when that has been painted.
 *
 * On a screen of less than 760 pixels, as `--screen 700x1000`, the page shows one grid and not three. `--trace FILE`
 * writes what Chromium does in the seconds after that, for its developer tools' Performance panel.
 */
import { writeFileSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import { parseArgs } from "node:util";
import { chromium } from "playwright-core";
import type { CDPSession } from "playwright-core";
import { browserServer } from "./support/browser.js";
import { CoreUse } from "./support/cores.js";
import type { Shares } from "./support/cores.js";
import { Stack } from "./support/stack.js";

/** Users are sent first, and rows of final_ui come after them: 20 seconds, which `--settle` has to exceed. */
const USERS_SECONDS = 20;
const COLUMN = "accounts_ts";
const TRACED_MS = 5_000;
const TRACED = ["devtools.timeline", "disabled-by-default-devtools.timeline", "disabled-by-default-v8.cpu_profiler"];

interface Ages extends Window {
  ages?: number[];
}

interface Measured {
  /** Of each newest row when it has been painted, in ms. */
  readonly ages: readonly number[];
  /** What the page itself says of the way to it. */
  readonly receipts: string;
  readonly cores: Shares;
  /** ms of each second that the page's main thread was at it. */
  readonly mainThread: Readonly<Record<string, number>>;
}

const { values } = parseArgs({
  options: {
    seconds: { type: "string", default: "60" },
    settle: { type: "string", default: "30" },
    rate: { type: "string", default: "1000" },
    screen: { type: "string", default: "1600x1000" },
    trace: { type: "string" },
  },
});
const seconds = Number(values.seconds);
const settle = Number(values.settle);
const rate = Number(values.rate);
if (!(settle > USERS_SECONDS))
  throw new Error(`give --settle more than ${USERS_SECONDS}: rows of final_ui come after that`);

const ends: (() => Promise<unknown>)[] = [];
try {
  const { ages, receipts, cores, mainThread } = await measured();
  const sorted = ages.toSorted((one, other) => one - other);
  const share = (part: number): number => Math.round(sorted[Math.floor(sorted.length * part)] ?? NaN);
  print(`Kafka to painted: p50 ${share(0.5)} ms, p90 ${share(0.9)} ms, p99 ${share(0.99)} ms`);
  print(`newest rows painted a second: ${(ages.length / seconds).toFixed(1)}`);
  print(`Kafka to the page, p50 and p99: ${receipts}`);
  print(`cores in use: ${formatted(cores, 2)}`);
  print(`the page's main thread, ms a second: ${formatted(mainThread, 0)}`);
} finally {
  for (const end of ends.reverse()) await end();
}

async function measured(): Promise<Measured> {
  const stack = await Stack.started();
  ends.push(() => stack.end());
  const server = await browserServer();
  ends.push(() => server.close());
  const browser = await chromium.connect(server.wsEndpoint());
  const [width = NaN, height = NaN] = values.screen.split("x").map(Number);
  const context = await browser.newContext({ viewport: { width, height }, timezoneId: "UTC" });
  const page = await context.newPage();
  await page.goto(`${stack.url}/#key=${encodeURIComponent(stack.key)}`);
  await page.locator(".ag-row:visible").first().waitFor();
  const stream = await stack.stream({ rate, users: USERS_SECONDS * rate });
  ends.push(() => stream.stop());
  await pause(settle * 1000);
  await page.getByTestId("panel-final_ui").evaluate((root, column) => {
    const ages: number[] = ((window as Ages).ages = []);
    const selector = `.ag-grid-scrolling-container .ag-row[row-index="0"] [col-id="${column}"]`;
    let before = "";
    const look = (): void => {
      const text = root.querySelector(selector)?.textContent.trim() ?? "";
      if (text !== before && /^\d\d:\d\d:\d\d\.\d{3}$/.test(text)) {
        before = text;
        const day = new Date().toISOString().slice(0, 10);
        const sent = Date.parse(`${day}T${text}Z`);
        requestAnimationFrame(() => ages.push(Date.now() - sent));
      }
      requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
  }, COLUMN);

  const session = await context.newCDPSession(page);
  await session.send("Performance.enable");
  const before = await durations(session);
  const cores = new CoreUse({
    ...stack.pids,
    ...(stream.pid !== undefined && { producer: stream.pid }),
    browser: server.process().pid ?? NaN,
    "this script": process.pid,
  });
  await pause(seconds * 1000);
  const shares = cores.shares();
  const after = await durations(session);
  const ages = await page.evaluate(() => (window as Ages).ages ?? []);
  const phases = await page.getByTestId("latency-phases").locator("tbody tr").allTextContents();
  if (values.trace !== undefined) {
    await browser.startTracing(page, { categories: TRACED });
    await pause(TRACED_MS);
    writeFileSync(values.trace, await browser.stopTracing());
  }
  return {
    ages,
    receipts: phases.map((phase) => phase.trim().replaceAll(/([a-z])(?=\d)/g, "$1 ")).join("; "),
    cores: shares,
    mainThread: Object.fromEntries(
      Object.entries(after).map(([name, ms]) => [name, (ms - (before[name] ?? 0)) / seconds]),
    ),
  };
}

/** How long the main thread has been at what, in ms. */
async function durations(session: CDPSession): Promise<Record<string, number>> {
  const { metrics } = await session.send("Performance.getMetrics");
  const ms = (name: string): number => 1000 * (metrics.find((each) => each.name === name)?.value ?? NaN);
  return {
    "in all": ms("TaskDuration"),
    scripts: ms("ScriptDuration"),
    styles: ms("RecalcStyleDuration"),
    layout: ms("LayoutDuration"),
  };
}

function formatted(figures: Readonly<Record<string, number>>, digits: number): string {
  return Object.entries(figures)
    .map(([name, figure]) => `${name} ${figure.toFixed(digits)}`)
    .join(", ");
}

function print(line: string): void {
  process.stdout.write(`${line}\n`);
}
