import { expect } from "vitest";
import type { LivePage } from "../support/page.js";
import { stack, test } from "../support/test.js";

const CYCLES = 10;

test("logging out and in ten times leaves one socket and as many viewports as before", async ({ browsing }) => {
  const page = await browsing.opened();
  await expect.poll(() => isAtRest(page)).toBe(true);
  const { clients, viewports } = await stack.httpClient.status();

  for (let cycle = 0; cycle < CYCLES; cycle++) {
    await page.page.getByRole("button", { name: "Log out" }).click();
    await page.logIn(stack.key);
    await expect.poll(() => isAtRest(page)).toBe(true);
  }

  expect(page.openSockets).toBe(1);
  await expect.poll(async () => (await stack.httpClient.status()).viewports).toBe(viewports);
  expect((await stack.httpClient.status()).clients).toBe(clients);
});

/** Whether all three tables are drawn. */
async function isAtRest(page: LivePage): Promise<boolean> {
  const drawn = await Promise.all(["users_ui", "accounts_ui", "final_ui"].map((table) => page.panel(table).hasRows()));
  return drawn.every(Boolean);
}
