/**
 * From a record's Kafka timestamp to its row being painted: `npm run painted -w e2e -- --seconds 60 --rate 1000`.
 *
 * The newest row of final_ui is at the top of its grid. In every animation frame its time is read from what the grid
 * has drawn; when it is another one, its age is taken in the frame after, when that has been painted.
 */
import { setTimeout as pause } from "node:timers/promises";
import { parseArgs } from "node:util";
import { chromium } from "playwright-core";
import { browserServer } from "./support/browser.js";
import { Stack } from "./support/stack.js";

const USERS = 20_000;
const SCREEN = { width: 1600, height: 1000 };
const COLUMN = "accounts_ts";

interface Ages extends Window {
  ages?: number[];
}

const { values } = parseArgs({
  options: {
    seconds: { type: "string", default: "60" },
    settle: { type: "string", default: "30" },
    rate: { type: "string", default: "1000" },
  },
});

const ends: (() => Promise<unknown>)[] = [];
try {
  const ages = await measured(Number(values.seconds), Number(values.settle), Number(values.rate));
  ages.sort((one, other) => one - other);
  const share = (part: number): number => Math.round(ages[Math.floor(ages.length * part)] ?? NaN);
  process.stdout.write(
    `Kafka to painted: p50 ${share(0.5)} ms, p90 ${share(0.9)} ms, p99 ${share(0.99)} ms, of ${ages.length} newest rows\n`,
  );
} finally {
  for (const end of ends.reverse()) await end();
}

/** The age of each newest row when it has been painted, in ms. */
async function measured(seconds: number, settle: number, rate: number): Promise<number[]> {
  const stack = await Stack.started();
  ends.push(() => stack.end());
  const server = await browserServer();
  ends.push(() => server.close());
  const browser = await chromium.connect(server.wsEndpoint());
  const context = await browser.newContext({ viewport: SCREEN, timezoneId: "UTC" });
  const page = await context.newPage();
  await page.goto(`${stack.url}/#key=${encodeURIComponent(stack.key)}`);
  await page.locator(".ag-row").first().waitFor();
  const stream = await stack.stream({ rate, users: USERS });
  ends.push(() => stream.stop());
  await pause(settle * 1000);
  await page.getByTestId("panel-final_ui").evaluate((root, column) => {
    const ages: number[] = ((window as Ages).ages = []);
    const selector = `.ag-grid-scrolling-container .ag-row[row-index="0"] [col-id="${column}"]`;
    let before = "";
    const look = (): void => {
      const text = root.querySelector<HTMLElement>(selector)?.innerText.trim() ?? "";
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
  await pause(seconds * 1000);
  return await page.evaluate(() => (window as Ages).ages ?? []);
}
