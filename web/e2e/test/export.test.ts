import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect } from "vitest";
import { expectSame } from "../support/comparison.js";
import { stack, test } from "../support/test.js";

test("the CSV has exactly the rows of the whole table that pass the filter", async ({ browsing }) => {
  const page = await browsing.opened();
  const panel = page.panel("final_ui");
  await panel.quick("müller");
  await expectSame(panel, stack.httpClient, { q: "müller" });

  const [download] = await Promise.all([
    page.page.waitForEvent("download"),
    panel.root.getByRole("button", { name: "CSV" }).click(),
  ]);
  const file = join(stack.directory, "export.csv");
  await download.saveAs(file);
  const text = readFileSync(file, "utf-8");

  expect(download.suggestedFilename()).toMatch(/^final_ui.*\.csv$/);
  const columns = (text.split("\n")[0] ?? "").replaceAll(/["\r]/g, "").split(",");
  expect(columns).toEqual(expect.arrayContaining(["userId", "name", "accountType", "balance"]));
  expect(text).toBe(await stack.httpClient.csv("final_ui", { q: "müller", sort: "accounts_ts:desc", columns }));
});
