import { expect } from "vitest";
import { expectSame } from "../support/comparison.js";
import { stack, test } from "../support/test.js";

test("two tabs show the same", async ({ browsing }) => {
  const one = await browsing.opened();
  const other = await browsing.beside(one);
  await expectSame(one.panel("final_ui"), stack.httpClient);
  await expect.poll(() => other.panel("final_ui").rows()).toEqual(await one.panel("final_ui").rows());
});

test("a tab that is closed leaves the other one live", async ({ browsing }) => {
  const one = await browsing.opened();
  const other = await browsing.beside(one);
  const { clients } = await stack.httpClient.status();
  await one.page.close();
  await expect.poll(async () => (await stack.httpClient.status()).clients).toBe(clients - 1);
  await stack.send({ accounts: 20, seed: 5 });
  await expectSame(other.panel("accounts_ui"), stack.httpClient);
});
