import { expect, onTestFinished } from "vitest";
import { expectSame } from "../support/comparison.js";
import type { LivePage } from "../support/page.js";
import { stack, test } from "../support/test.js";
import { until } from "../support/until.js";

const TABLES = ["users_ui", "accounts_ui", "final_ui"];

async function states(page: LivePage): Promise<string[]> {
  return await Promise.all(TABLES.map((table) => page.panel(table).state()));
}

test("each grid shows that its server is down, and keeps its rows until it is back", async ({ browsing }) => {
  const page = await browsing.opened();
  await expect.poll(() => states(page)).toEqual(["", "", ""]);
  const bringBack = stack.takeServerDown();
  onTestFinished(bringBack);
  const shown = expect.stringMatching(/^Reconnecting: .*(connection|server)/) as string;
  await expect.poll(() => states(page)).toEqual([shown, shown, shown]);
  expect(await page.panel("final_ui").hasRows()).toBe(true);

  bringBack();
  await until("the system is live again", () => stack.isLive());
  await expect.poll(() => states(page)).toEqual(["", "", ""]);
  await expectSame(page.panel("final_ui"), stack.httpClient);
});

test("each grid shows why its rows are old, and nothing moves for it", async ({ browsing }) => {
  const page = await browsing.opened();
  const height = (): Promise<number | undefined> =>
    page
      .panel("final_ui")
      .root.locator(".ag-root")
      .boundingBox()
      .then((box) => box?.height);
  const { root } = page.panel("final_ui");
  const before = (await root.boundingBox())?.height ?? NaN;
  const gridBefore = (await height()) ?? NaN;
  onTestFinished(() => {
    stack.resumePipeline();
  });
  stack.pausePipeline();
  const shown = expect.stringMatching(/^Not current: .*pipeline/) as string;
  await expect.poll(() => states(page)).toEqual([shown, shown, shown]);
  await page.banner.waitFor(); // which is the page's own, and takes some of its height
  await page.showTab("Status");
  await page.page.getByTestId("status-old").waitFor();
  const after = (await root.boundingBox())?.height ?? NaN;
  expect((await height()) ?? NaN).toBeCloseTo(gridBefore - (before - after), 0);
  stack.resumePipeline();
  await expect.poll(() => states(page)).toEqual(["", "", ""]);
});

test("a grid of a table that is not there shows it, and the others do not", async ({ browsing }) => {
  const page = await browsing.opened();
  const choice = page.panel("users_ui").root.getByLabel("Table");
  await choice.evaluate((select) => {
    select.append(new Option("users_gone")); // as if it had been there at login
  });
  await choice.selectOption("users_gone");
  await expect.poll(() => page.panel("users_gone").state()).toMatch(/^Cannot be shown: .*users_gone/);
  expect(await page.panel("final_ui").state()).toBe("");
});

test("a grid that the server limits shows it in the server's words, and the others do not", async ({ browsing }) => {
  const page = await browsing.made();
  const hint = "only 20 rows are shown, as they are large";
  await page.onItsWay((frame) =>
    frame["table"] === "final_ui" && frame["type"] === "snapshot" ? { ...frame, hint } : frame,
  );
  await page.open(stack.key);
  await expect.poll(() => page.panel("final_ui").state()).toBe(`Limited: ${hint}`);
  await expect.poll(() => page.panel("users_ui").state()).toBe("");
});

test("a table shown page by page has its own state", async ({ browsing }) => {
  const page = await browsing.opened();
  const { root } = page.panel("accounts_ui");
  await page.panel("accounts_ui").showPages(true);
  await root.locator("live-table tbody tr").first().waitFor();
  onTestFinished(() => {
    stack.resumePipeline();
  });
  stack.pausePipeline();
  await expect.poll(() => root.locator("live-table live-state").innerText()).toMatch(/^Not current: .*pipeline/);
  stack.resumePipeline();
  await expect.poll(() => root.locator("live-table live-state").innerText()).toBe("");
});
