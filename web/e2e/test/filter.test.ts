import { expect } from "vitest";
import { expectSame } from "../support/comparison.js";
import { stack, test } from "../support/test.js";

const TYPING_MS = 300; // more than the page waits for another letter

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

test("a quick filter that nothing passes leaves no row, and the next ones find theirs", async ({ browsing }) => {
  const panel = (await browsing.opened()).panel("final_ui");
  await panel.quick("nobody is called this");
  await expect.poll(() => panel.found()).toBe(0);
  await expect.poll(() => panel.rows()).toEqual([]);
  await panel.quick("müller");
  await expectSame(panel, stack.httpClient, { q: "müller" });
  await panel.quick("nobody is called this");
  await expect.poll(() => panel.rows()).toEqual([]);
  await panel.quick("");
  await expectSame(panel, stack.httpClient);
});

test("a quick filter that is cleared brings all rows back", async ({ browsing }) => {
  const panel = (await browsing.opened()).panel("final_ui");
  await panel.quick("müller");
  await expectSame(panel, stack.httpClient, { q: "müller" });
  await panel.quick("");
  await expectSame(panel, stack.httpClient);
});

test("what is typed before the grid is there is found in its rows", async ({ browsing }) => {
  const page = await browsing.made();
  let release: () => void = () => undefined;
  const released = new Promise<void>((resolve) => {
    release = resolve;
  });
  await page.onItsWay(async (frame) => {
    if (frame["table"] === "final_ui") await released;
    return frame;
  });
  await page.open(stack.key);
  const panel = page.panel("final_ui");
  await panel.quick("müller");
  await page.page.waitForTimeout(TYPING_MS); // of the page, which no condition shows
  release();
  await expectSame(panel, stack.httpClient, { q: "müller" });
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

test("a column's filter stays open while somebody types in it, wherever the mouse is", async ({ browsing }) => {
  const page = await browsing.opened();
  const panel = page.panel("final_ui");
  const input = await panel.openFilter("name");
  await input.hover();
  await input.pressSequentially("müller", { delay: 100 }); // as people do
  await expectSame(panel, stack.httpClient, { filter: [{ column: "name", op: "contains", value: "müller" }] });
  await page.page.mouse.move(0, 0);
  await input.press("Control+a");
  await input.pressSequentially("becker", { delay: 100 });
  await expectSame(panel, stack.httpClient, { filter: [{ column: "name", op: "contains", value: "becker" }] });
});

test("a whole number that JavaScript does not have is asked for by its digits", async ({ browsing }) => {
  const page = await browsing.made();
  const sent = page.sent("set");
  await page.open(stack.key);
  const panel = page.panel("users_ui");
  await panel.filterColumn("age", "9007199254740993");
  await expect
    .poll(() => sent.map(({ filters }) => filters))
    .toContainEqual([{ column: "age", op: "equals", value: "9007199254740993" }]);
  await expect.poll(() => panel.rows()).toEqual([]);
  await panel.filterColumn("age", "30");
  await expectSame(panel, stack.httpClient, { filter: [{ column: "age", op: "equals", value: 30 }] });
});

test("whole numbers are filtered by a range", async ({ browsing }) => {
  const panel = (await browsing.opened()).panel("users_ui");
  await panel.filterColumn("age", "9", "Between", "30");
  await expectSame(panel, stack.httpClient, { filter: [{ column: "age", op: "between", value: [9, 30] }] });
  await panel.filterColumn("age", "100", "Less than");
  await expectSame(panel, stack.httpClient, { filter: [{ column: "age", op: "<", value: 100 }] });
});

test("a column's filter and the quick filter work together", async ({ browsing }) => {
  const panel = (await browsing.opened()).panel("final_ui");
  await panel.filterColumn("accountType", "mortgage");
  await panel.quick("example.org");
  const filter = [{ column: "accountType", op: "contains", value: "mortgage" }];
  await expectSame(panel, stack.httpClient, { q: "example.org", filter });
});
