import { expect } from "vitest";
import type { Locator } from "playwright-core";
import { expectSame } from "../support/comparison.js";
import type { Question } from "../support/http-client.js";
import { stack, test } from "../support/test.js";

const PAGE_ROWS = 300;

test("a table shown page by page turns to the next one, by button and at the end of the scroll", async ({
  browsing,
}) => {
  const panel = (await browsing.opened()).panel("accounts_ui");
  await panel.showPages(true);
  const table = panel.root.locator("live-table");

  await expectPage(table, 0);
  await table.getByRole("button", { name: "Next" }).click();
  await expectPage(table, PAGE_ROWS);
  await table.locator(".rows").evaluate((rows) => {
    rows.scrollTop = rows.scrollHeight;
  });
  await expectPage(table, 2 * PAGE_ROWS);
  await table.getByRole("button", { name: "Prev" }).click();
  await expectPage(table, PAGE_ROWS);
  await table.getByRole("button", { name: "First" }).click();
  await expectPage(table, 0);
});

test("what is found in a grid is found page by page too, and the other way round", async ({ browsing }) => {
  const panel = (await browsing.opened()).panel("accounts_ui");
  const table = panel.root.locator("live-table");
  await panel.quick("checking");
  await expectSame(panel, stack.httpClient, { q: "checking" });

  await panel.showPages(true);
  await expectPage(table, 0, { q: "checking" });
  await table.getByRole("button", { name: "Next" }).click();
  await expectPage(table, PAGE_ROWS, { q: "checking" });
  await panel.quick("retirement");
  await expectPage(table, 0, { q: "retirement" });
  expect(await panel.root.getByTestId("shown").innerText()).toBe(""); // the pages have their own count

  await panel.showPages(false);
  await expectSame(panel, stack.httpClient, { q: "retirement" });
  expect(await panel.quickText()).toBe("retirement");
});

test("a column that is not wanted is in no page and in no grid", async ({ browsing }) => {
  const panel = (await browsing.opened()).panel("accounts_ui");
  const headers = panel.root.locator("live-table th");
  await panel.showColumn("balance", false);
  await expect.poll(() => panel.header("balance").count()).toBe(0);

  await panel.showPages(true);
  await expect.poll(() => headers.allInnerTexts()).toEqual(["userId", "accountType", "ts"]);
  await panel.showColumn("userId", false);
  await expect.poll(() => headers.allInnerTexts()).toEqual(["accountType", "ts"]);

  await panel.showPages(false);
  await expectSame(panel, stack.httpClient);
  expect(await Promise.all(["userId", "balance", "ts"].map((name) => panel.header(name).count()))).toEqual([0, 0, 1]);
});

/** Returns when the table shows all rows of the page that begins there, as the server has them. */
async function expectPage(table: Locator, offset: number, question: Question = {}): Promise<void> {
  const { rows } = await stack.httpClient.rows("accounts_ui", { ...question, offset, limit: PAGE_ROWS });
  const wanted = rows.map(({ userId, accountType, balance }) =>
    [userId, accountType, balance].map((value) => String(value ?? "")),
  );
  await expect
    .poll(() =>
      table
        .locator("tbody tr")
        .evaluateAll((shown) => shown.map((row) => [...row.querySelectorAll("td")].map((cell) => cell.innerText))),
    )
    .toEqual(wanted.map((cells) => [...cells, expect.any(String) as string]));
}
