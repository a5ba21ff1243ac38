import { expect } from "vitest";
import { expectSame } from "../support/comparison.js";
import { stack, test } from "../support/test.js";

test("the quick filter leaves the rows that the server finds for the same text", async ({ browsing }) => {
  const panel = (await browsing.opened()).panel("final_ui");
  await panel.quick("müller");
  await expectSame(panel, stack.httpClient, { q: "müller" });
});

test("the quick filter finds numbers too", async ({ browsing }) => {
  const panel = (await browsing.opened()).panel("final_ui");
  await panel.quick("17.");
  await expectSame(panel, stack.httpClient, { q: "17." });
});

test("a quick filter that nothing passes leaves no row", async ({ browsing }) => {
  const panel = (await browsing.opened()).panel("final_ui");
  await panel.quick("nobody is called this");
  await expect.poll(() => panel.found()).toBe(0);
  await expect.poll(() => panel.rows()).toEqual([]);
});

test("a quick filter that is cleared brings all rows back", async ({ browsing }) => {
  const panel = (await browsing.opened()).panel("final_ui");
  await panel.quick("müller");
  await expectSame(panel, stack.httpClient, { q: "müller" });
  await panel.quick("");
  await expectSame(panel, stack.httpClient);
});

test("the quick filter of one table leaves the others alone", async ({ browsing }) => {
  const page = await browsing.opened();
  await page.panel("final_ui").quick("müller");
  await expectSame(page.panel("final_ui"), stack.httpClient, { q: "müller" });
  await expectSame(page.panel("users_ui"), stack.httpClient);
});

test("a column's filter leaves the rows of the whole table that pass it", async ({ browsing }) => {
  const panel = (await browsing.opened()).panel("final_ui");
  await panel.filterColumn("accountType", "mortgage");
  await expectSame(panel, stack.httpClient, { filter: [{ column: "accountType", op: "contains", value: "mortgage" }] });
});

test("a column's filter and the quick filter work together", async ({ browsing }) => {
  const panel = (await browsing.opened()).panel("final_ui");
  await panel.filterColumn("accountType", "mortgage");
  await panel.quick("example.org");
  const filter = [{ column: "accountType", op: "contains", value: "mortgage" }];
  await expectSame(panel, stack.httpClient, { q: "example.org", filter });
});
