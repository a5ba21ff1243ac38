import { expectSame } from "../support/comparison.js";
import { stack, test } from "../support/test.js";

test("a click on a header sorts the whole table", async ({ browsing }) => {
  const panel = (await browsing.opened()).panel("final_ui");
  await panel.sortBy("balance", "ascending");
  await expectSame(panel, stack.httpClient, { sort: "balance:asc" });
});

test("a second click sorts it the other way", async ({ browsing }) => {
  const panel = (await browsing.opened()).panel("final_ui");
  await panel.sortBy("balance", "descending");
  await expectSame(panel, stack.httpClient, { sort: "balance:desc" });
});

test("what is filtered is sorted too", async ({ browsing }) => {
  const panel = (await browsing.opened()).panel("users_ui");
  await panel.quick("example.net");
  await panel.sortBy("age", "descending");
  await expectSame(panel, stack.httpClient, { q: "example.net", sort: "age:desc" });
});
