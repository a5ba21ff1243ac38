import { expect } from "vitest";
import { expectSame } from "../support/comparison.js";
import { startWatching, stopWatching } from "../support/drawing.js";
import type { LivePage } from "../support/page.js";
import { stack, test } from "../support/test.js";

const QUESTION = { q: "example.com", sort: "balance:desc" };
const ROW = 400;

/** Each points the tables to other topics, and returns when that has been applied. */
const WAYS: Readonly<Record<string, (page: LivePage) => Promise<void>>> = {
  "the command line": async () => {
    expect((await stack.swap())["outcome"]).toBe("applied");
  },
  "the page's own form": async (page) => {
    await page.showTab("Control");
    await page.fillControl(await stack.otherTopics());
    await page.sendControl();
    await expect.poll(() => page.outcomeName()).toBe("applied");
  },
};

for (const [name, swap] of Object.entries(WAYS)) {
  test(`a swap by ${name} shows the other rows, and never blanks, moves or forgets`, async ({ browsing }) => {
    const page = await browsing.opened();
    const panel = page.panel("final_ui");
    await panel.quick(QUESTION.q);
    await panel.sortBy("balance", "descending");
    await expectSame(panel, stack.httpClient, QUESTION);
    await panel.scrollTo(ROW);
    await expectSame(panel, stack.httpClient, QUESTION);
    const before = await panel.rows();
    const scrollTop = await panel.scrollTop();

    await startWatching(page.page, panel.table);
    await swap(page);
    await expectSame(panel, stack.httpClient, QUESTION);
    const { frames, fewestRows } = await stopWatching(page.page);

    expect(await panel.rows()).not.toEqual(before);
    expect(frames).toBeGreaterThan(10);
    expect(fewestRows).toBeGreaterThanOrEqual(before.length);
    expect(await panel.scrollTop()).toBe(scrollTop);
    expect(await panel.quickText()).toBe(QUESTION.q);
    expect(await panel.direction("balance")).toBe("descending");
    expect(page.openSockets).toBe(1);
  });
}
