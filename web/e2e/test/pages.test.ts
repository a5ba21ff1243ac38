import { expect } from "vitest";
import type { Locator } from "playwright-core";
import { stack, test } from "../support/test.js";

const PAGE_ROWS = 300;

test("a table shown page by page turns to the next one, by button and at the end of the scroll", async ({
  browsing,
}) => {
  const page = await browsing.opened();
  const { root } = page.panel("accounts_ui");
  await root.getByRole("button", { name: "Columns" }).click();
  await root.getByLabel("page by page").check();
  const table = root.locator("live-table");

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

/** Returns when the table shows all rows of the page that begins there, as the server has them. */
async function expectPage(table: Locator, offset: number): Promise<void> {
  const { rows } = await stack.httpClient.rows("accounts_ui", { offset, limit: PAGE_ROWS });
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
