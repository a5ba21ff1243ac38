import { expect } from "vitest";
import { expectSame } from "../support/comparison.js";
import type { Frame } from "../support/page.js";
import { stack, test } from "../support/test.js";

test("the button rolls back to the previous generation", async ({ browsing }) => {
  const { generation } = await stack.orchestrator();
  await stack.swap();
  const page = await browsing.opened();
  await page.showTab("Generations");
  await page.page.getByTestId(`generation-${String(generation)}`).waitFor();
  await page.page.getByRole("button", { name: "Roll back" }).click();
  await expect.poll(async () => (await stack.orchestrator())["generation"]).toBe(generation);
  await expect.poll(() => page.page.getByTestId(`generation-${String(generation)}`).innerText()).toMatch(/\blive\b/i);
  await expectSame(page.panel("final_ui"), stack.httpClient);
});

test("a generation that is kept is offered too when none lingers", async ({ browsing }) => {
  const { generation } = await stack.orchestrator();
  await stack.swap();
  const page = await browsing.made();
  // Only records that Kafka has deleted make the server keep one, so the state of those that linger is changed.
  await page.onItsWay((frame) => JSON.parse(JSON.stringify(frame).replaceAll('"lingering"', '"kept"')) as Frame);
  await page.open(stack.key);
  await page.showTab("Generations");
  await expect.poll(() => page.page.getByTestId(`generation-${String(generation)}`).innerText()).toMatch(/\bkept\b/i);
  await expect.poll(() => page.page.getByTestId("roll-back").innerText()).toContain(String(generation));
  await page.page.getByRole("button", { name: "Roll back" }).click();
  await expect.poll(() => page.outcomeName()).toBe("applied");
  expect((await stack.orchestrator())["generation"]).toBe(generation);
});
