import { expect } from "vitest";
import { expectSame } from "../support/comparison.js";
import { stack, test } from "../support/test.js";

test("the button rolls back to the generation before", async ({ browsing }) => {
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
