import { join } from "node:path";
import { expect } from "vitest";
import { expectSame } from "../support/comparison.js";
import { stack, test } from "../support/test.js";

test("the CSV has exactly the rows of the whole table that pass the filter", async ({ browsing }) => {
  const panel = (await browsing.opened()).panel("final_ui");
  await panel.quick("müller");
  await expectSame(panel, stack.httpClient, { q: "müller" });

  const { text, columns } = await panel.csv(join(stack.directory, "export.csv"));

  expect(columns).toEqual(expect.arrayContaining(["userId", "name", "accountType", "balance"]));
  expect(text).toBe(await stack.httpClient.csv("final_ui", { q: "müller", sort: "accounts_ts:desc", columns }));
});

test("the CSV of a table shown page by page has the rows and columns that its pages have", async ({ browsing }) => {
  const panel = (await browsing.opened()).panel("accounts_ui");
  await panel.filterColumn("accountType", "mortgage");
  await panel.showColumn("ts", false);
  await panel.showPages(true);
  await panel.quick("12");
  const total = await stack.httpClient.total("accounts_ui", { q: "12" });
  await panel.root.locator("live-table .place", { hasText: ` of ${total.toLocaleString("en")}` }).waitFor();

  const { text, columns } = await panel.csv(join(stack.directory, "pages.csv"));

  expect(columns).toEqual(["userId", "accountType", "balance"]);
  expect(text).toBe(await stack.httpClient.csv("accounts_ui", { q: "12", columns }));
});

test("the CSV of another table has nothing to do with how the one before was sorted", async ({ browsing }) => {
  const page = await browsing.opened();
  await page.panel("accounts_ui").sortBy("balance", "descending");
  await page.panel("accounts_ui").showPages(true);
  await page.panel("accounts_ui").root.getByLabel("Table").selectOption("dead_letters");
  const panel = page.panel("dead_letters");
  await panel.root.locator("live-table th", { hasText: "reason" }).waitFor();

  const { text, columns } = await panel.csv(join(stack.directory, "other.csv"));

  expect(text).toBe(await stack.httpClient.csv("dead_letters", { columns }));
});
