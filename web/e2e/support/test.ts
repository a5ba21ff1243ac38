/** What every test starts from: the system that runs, and pages in fresh profiles that are closed at its end. */
import { chromium } from "playwright-core";
import type { BrowserContextOptions } from "playwright-core";
import { expect, inject, test as base } from "vitest";
import { LivePage } from "./page.js";
import { Stack } from "./stack.js";

const SCREEN = { viewport: { width: 1600, height: 1000 }, timezoneId: "UTC" };

export const stack = new Stack(inject("directory"));

export interface Browsing {
  /** A page that nobody has opened yet. */
  readonly made: (options?: BrowserContextOptions) => Promise<LivePage>;
  /** A page that is logged in and shows rows. */
  readonly opened: (options?: BrowserContextOptions) => Promise<LivePage>;
  /** Another tab beside a page, logged in. */
  readonly beside: (page: LivePage) => Promise<LivePage>;
}

export const test = base.extend<{ browsing: Browsing }>({
  browsing: async ({ task }, use) => {
    const browser = await chromium.connect(inject("browser"));
    const pages: LivePage[] = [];
    const made: Browsing["made"] = async (options = {}) => {
      const context = await browser.newContext({ ...SCREEN, ...options });
      const page = await LivePage.made(context, stack.url);
      pages.push(page);
      return page;
    };
    const shown = async (page: LivePage): Promise<LivePage> => {
      await page.open(stack.key);
      await expect.poll(() => page.panel("final_ui").hasRows()).toBe(true);
      return page;
    };
    await use({
      made,
      opened: async (options) => await shown(await made(options)),
      beside: async (page) => {
        const other = await LivePage.made(page.page.context(), stack.url);
        pages.push(other);
        return await shown(other);
      },
    });
    if (task.result?.state === "fail") await showPages(pages);
    await browser.close();
    expect(pages.flatMap(({ errors }) => errors)).toEqual([]);
  },
});

/** Print what the pages of a test that has failed show. */
async function showPages(pages: readonly LivePage[]): Promise<void> {
  for (const { page, errors } of pages) {
    const text = page.isClosed() ? "closed" : await page.locator("body").innerText();
    console.error(`a page of the failed test, ${page.url()}, errors: ${errors.join("; ") || "none"}\n${text}`);
  }
}
