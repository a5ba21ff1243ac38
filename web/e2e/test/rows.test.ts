import { expect, onTestFinished } from "vitest";
import { expectSame } from "../support/comparison.js";
import { stack, test } from "../support/test.js";

for (const table of ["users_ui", "accounts_ui", "final_ui"]) {
  test(`${table} shows the rows that the table has`, async ({ browsing }) => {
    const page = await browsing.opened();
    await expectSame(page.panel(table), stack.httpClient);
  });
}

test("rows that arrive are counted while they do", async ({ browsing }) => {
  const panel = (await browsing.opened()).panel("accounts_ui");
  const before = await stack.httpClient.total("accounts_ui");
  const { stop } = await stack.stream({ rate: 100, seed: 3 });
  onTestFinished(stop);
  await expect.poll(() => panel.total()).toBeGreaterThan(before);
  const later = await panel.total();
  await expect.poll(() => panel.total()).toBeGreaterThan(later);
});

test("the newest rows come to the top", async ({ browsing }) => {
  const panel = (await browsing.opened()).panel("accounts_ui");
  await expectSame(panel, stack.httpClient);
  const before = await panel.rows();
  await stack.send({ accounts: 50, seed: 4 });
  await expectSame(panel, stack.httpClient);
  expect(await panel.rows()).not.toEqual(before);
});

test("a row far down is the one that the table has there", async ({ browsing }) => {
  const panel = (await browsing.opened()).panel("final_ui");
  await panel.scrollTo(1234);
  await expect.poll(async () => (await panel.rows())[0]?.index).toBe(1234);
  await expectSame(panel, stack.httpClient);
});

test("the last row can be scrolled to", async ({ browsing }) => {
  const panel = (await browsing.opened()).panel("final_ui");
  const last = (await stack.httpClient.total("final_ui")) - 1;
  await panel.scrollTo(last);
  await expect.poll(async () => (await panel.rows()).at(-1)?.index).toBe(last);
  await expectSame(panel, stack.httpClient);
});
