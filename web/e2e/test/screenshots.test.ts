import { mkdirSync, mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished } from "vitest";
import { expectSame } from "../support/comparison.js";
import type { LivePage } from "../support/page.js";
import { stack, test } from "../support/test.js";

const DESKTOP = { width: 1280, height: 720 };
const PHONE = { width: 390, height: 844 };
const DIRECTORY = process.env["LIVETABLES_SCREENSHOTS"] ?? mkdtempSync(join(tmpdir(), "livetables-screenshots-"));

async function take(page: LivePage, name: string): Promise<void> {
  mkdirSync(DIRECTORY, { recursive: true });
  await page.page.screenshot({ path: join(DIRECTORY, `page-${name}.png`) });
}

for (const theme of ["light", "dark"] as const) {
  test(`the page is ${theme} where the system is, and fits into a small screen`, async ({ browsing }) => {
    const page = await browsing.opened({ viewport: DESKTOP, colorScheme: theme });
    for (const table of ["users_ui", "accounts_ui", "final_ui"]) await expectSame(page.panel(table), stack.httpClient);
    await expect.poll(() => page.page.getByTestId("status-lag").innerText()).toBe("0");
    await take(page, theme);
    expect(await page.page.evaluate(() => document.documentElement.dataset["theme"])).toBe(theme);
    expect(await overflow(page)).toEqual({ right: 0, bottom: 0 });
  });
}

test("the page fits a phone", async ({ browsing }) => {
  const page = await browsing.made({ viewport: PHONE, isMobile: true, hasTouch: true, deviceScaleFactor: 2 });
  await page.open(stack.key);
  await page.page.locator('.ag-row:visible [col-id="userId"]').filter({ hasText: /\w/ }).first().waitFor();
  await take(page, "phone");
  expect((await overflow(page)).right).toBe(0);
});

test("old data is shown with the reason while the pipeline is away", async ({ browsing }) => {
  const page = await browsing.opened({ viewport: DESKTOP });
  await expectSame(page.panel("final_ui"), stack.httpClient);
  onTestFinished(() => {
    stack.resumePipeline();
  });
  stack.pausePipeline();
  await page.banner.waitFor();
  await take(page, "stale");
  expect(await page.banner.innerText()).toContain("pipeline");
  stack.resumePipeline();
  await page.banner.waitFor({ state: "detached" });
});

/** How far the page reaches beyond the window. */
async function overflow(page: LivePage): Promise<{ right: number; bottom: number }> {
  return await page.page.evaluate(() => ({
    right: document.documentElement.scrollWidth - window.innerWidth,
    bottom: document.documentElement.scrollHeight - window.innerHeight,
  }));
}
