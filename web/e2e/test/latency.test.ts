import { expect, onTestFinished } from "vitest";
import { stack, test } from "../support/test.js";

const FIGURE = /^Kafka to your screen:\s+(\d[\d.]* (?:ms|s|min))\s+p99 \d[\d.]* (?:ms|s|min)$/;

test("the page shows how long records take to it, while they come", async ({ browsing }) => {
  const page = await browsing.opened();
  const { stop } = await stack.stream({ rate: 50, seed: 21 });
  onTestFinished(stop);
  await expect.poll(() => page.latency.innerText()).toMatch(FIGURE);
});

test("each phase is a key away, and Escape closes it again", async ({ browsing }) => {
  const page = await browsing.opened();
  const { stop } = await stack.stream({ rate: 50, seed: 22 });
  onTestFinished(stop);
  await expect.poll(() => page.latency.innerText()).toMatch(FIGURE);
  expect(await page.latencyPhases.isVisible()).toBe(false);
  await page.latency.focus();
  await page.page.keyboard.press("Enter");
  await page.latencyPhases.waitFor();
  const figures = await page.latencyPhases.locator("tbody td").allInnerTexts();
  expect(figures).toEqual(Array(10).fill(expect.stringMatching(/^-?\d[\d.]* (ms|s|min)$/)));
  expect(await page.latencyPhases.locator(".bar [data-phase]").count()).toBe(4);
  await page.page.keyboard.press("Escape");
  await page.latencyPhases.waitFor({ state: "hidden" });
});

test("the plot of latency is by the server's clock too", async ({ browsing }) => {
  const page = await browsing.made();
  await page.page.addInitScript(() => {
    const { now } = Date;
    Date.now = () => now() + 3_600_000;
  });
  await page.open(stack.key);
  await page.showTab("Plots");
  const median = page.page.locator("lt-plots-panel section", { hasText: "Latency" }).locator(".now strong").first();
  const { stop } = await stack.stream({ rate: 50, seed: 24 });
  onTestFinished(stop);
  await expect.poll(() => median.innerText()).toMatch(/^\d[\d,]*$/);
  expect(Number((await median.innerText()).replaceAll(",", ""))).toBeLessThan(3_000_000); // and not an hour
});

test("a clock that differs is shown, and taken out of the figures", async ({ browsing }) => {
  const page = await browsing.made();
  await page.page.addInitScript(() => {
    const { now } = Date;
    Date.now = () => now() - 3_600_000;
  });
  await page.open(stack.key);
  const { stop } = await stack.stream({ rate: 50, seed: 23 });
  onTestFinished(stop);
  await expect.poll(() => page.latency.innerText()).toMatch(FIGURE); // and not an hour before it was in Kafka
  await page.latency.click();
  await expect.poll(() => page.latencyPhases.getByTestId("clock").innerText()).toContain("60 min ahead of this one");
});
