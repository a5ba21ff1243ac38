import { expect, onTestFinished } from "vitest";
import { expectSame } from "../support/comparison.js";
import { stack, test } from "../support/test.js";
import { until } from "../support/until.js";

test("a killed server is shown, and the page recovers by itself with the same sort and filter", async ({
  browsing,
}) => {
  const question = { q: "example.org", sort: "balance:desc" };
  const page = await browsing.opened();
  const panel = page.panel("final_ui");
  await panel.quick(question.q);
  await panel.sortBy("balance", "descending");
  await expectSame(panel, stack.httpClient, question);
  expect(await page.banner.count()).toBe(0);
  const before = await panel.rows();

  const bringBack = stack.takeServerDown();
  onTestFinished(bringBack);
  expect(await page.banner.innerText()).toMatch(/connection|server/i);
  const kept = await panel.rows(); // the banner takes the room of a row
  expect(kept.length).toBeGreaterThan(before.length / 2);
  expect(kept).toEqual(before.slice(0, kept.length));

  bringBack();
  await expect.poll(() => page.banner.count()).toBe(0);
  await expect.poll(() => page.health.innerText()).toMatch(/live/i);
  await until("the system is live again", () => stack.isLive());
  await expectSame(panel, stack.httpClient, question);
  expect(await panel.quickText()).toBe(question.q);
  expect(await panel.direction("balance")).toBe("descending");
  expect(page.openSockets).toBe(1);
});
