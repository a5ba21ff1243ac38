import { expect } from "vitest";
import { stack, test } from "../support/test.js";

test("a column that is not wanted leaves the grid, and comes back", async ({ browsing }) => {
  const page = await browsing.opened();
  const panel = page.panel("final_ui");
  await panel.root.getByRole("button", { name: "Columns" }).click();
  const email = panel.root.getByLabel("email", { exact: true });

  await email.uncheck();
  await expect.poll(() => panel.header("email").count()).toBe(0);
  await email.check();
  await expect.poll(() => panel.header("email").count()).toBe(1);
});

test("Ctrl+C copies a cell, and with Shift its row", async ({ browsing }) => {
  const page = await browsing.opened({ permissions: ["clipboard-read", "clipboard-write"] });
  const cell = page.panel("users_ui").cell(0, "email");
  const copied = (): Promise<string> => page.page.evaluate(() => navigator.clipboard.readText());
  await expect.poll(() => cell.innerText()).toContain("@"); // before, there is a row without values
  await cell.click();
  const email = await cell.innerText();

  await page.page.keyboard.press("Control+c");
  await expect.poll(copied).toBe(email);
  await page.page.keyboard.press("Control+Shift+C");
  await expect.poll(copied).toMatch(/\t.*\t.*\t/);
  expect(await copied()).toContain(email);
});

test("a cell that changes flashes, and the others of its row do not", async ({ browsing }) => {
  const page = await browsing.opened();
  await page.panel("users_ui").root.getByLabel("Table").selectOption("orchestrator_status");
  const status = page.panel("orchestrator_status");
  const { joinType } = await stack.orchestrator();
  await expect.poll(() => status.cell(0, "joinType").innerText()).toBe(joinType);
  const flashed = await status.root.evaluateHandle((root) => {
    const columns: string[] = [];
    new MutationObserver((changes) => {
      for (const { target } of changes) {
        if (target instanceof Element && target.classList.contains("ag-cell-data-changed")) {
          columns.push(target.getAttribute("col-id") ?? "");
        }
      }
    }).observe(root, { subtree: true, attributeFilter: ["class"] });
    return columns;
  });

  await stack.control("--join", String(joinType)); // which changes nothing but the time
  await expect.poll(() => flashed.jsonValue()).toContain("lastApplied");
  expect(await flashed.jsonValue()).not.toContain("joinType");
});

test("a slash finds, and Escape closes what was opened", async ({ browsing }) => {
  const page = await browsing.opened();
  const panel = page.panel("final_ui");
  await page.page.keyboard.press("/");
  await expect
    .poll(() => panel.root.getByLabel("Quick filter").evaluate((field) => field.matches(":focus")))
    .toBe(true);
  await panel.cell(0, "name").dblclick();
  const details = page.page.getByTestId("record-details");
  await details.waitFor();
  await page.page.keyboard.press("Escape");
  await details.waitFor({ state: "detached" });
});

test("a time has no day while it is of today, and one as soon as that is over", async ({ browsing }) => {
  const { rows } = await stack.httpClient.rows("users_ui", { sort: "ts:desc", limit: 1 });
  const midnight = Date.parse(`${String(rows[0]?.["ts"]).slice(0, "2026-01-31".length)}T24:00:00Z`);
  const page = await browsing.made();
  await page.page.clock.setSystemTime(midnight - 15_000);
  await page.open(stack.key);
  const cell = page.panel("users_ui").cell(0, "ts");
  await cell.filter({ hasText: /\d/ }).waitFor();
  await page.page.clock.setSystemTime(midnight - 3_000); // a smaller step than one after which the page connects again
  await expect.poll(() => cell.innerText()).toMatch(/^\d\d:\d\d:\d\d\.\d{3}$/);
  await expect.poll(() => cell.innerText()).toMatch(/^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}$/);
});
