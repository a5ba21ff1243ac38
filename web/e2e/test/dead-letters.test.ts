import { expect } from "vitest";
import { stack, test } from "../support/test.js";

test("a record that became no row is shown as it was sent", async ({ browsing }) => {
  await stack.send({ accounts: 100, seed: 6, badShare: 0.2 });
  const { rows } = await stack.httpClient.rows("dead_letters", { sort: "ts:desc", limit: 50 });
  const letter = rows.find(({ raw }) => /account of \w+ opened/.test(String(raw)));
  const place = `${String(letter?.["topic"])} · ${String(letter?.["partition"])}:${String(letter?.["offset"])}`;
  const page = await browsing.opened();
  await page.showTab("Dead letters");

  const shown = page.page
    .getByTestId("dead-letters")
    .getByRole("button")
    .filter({ has: page.page.getByText(place, { exact: true }) });
  await expect.poll(() => shown.innerText()).toContain(letter?.["reason"]);
  await shown.click();
  await expect.poll(() => page.page.getByTestId("dead-letter-raw").innerText()).toBe(letter?.["raw"]);
});
