import { expect } from "vitest";
import { VIEWERS_KEY } from "../support/stack.js";
import { stack, test } from "../support/test.js";

test("a viewer sees the tables, and nothing to control them with", async ({ browsing }) => {
  const page = await browsing.made();
  await page.open(VIEWERS_KEY);
  await expect.poll(() => page.panel("final_ui").hasRows()).toBe(true);
  const tabs = page.page.getByRole("tab");
  await expect.poll(() => tabs.allInnerTexts()).toEqual(["Status", "Generations", "Dead letters", "Plots"]);
  await page.showTab("Generations");
  await expect.poll(() => page.page.getByTestId(/^generation-/).count()).toBeGreaterThan(0);
  expect(await page.page.getByRole("button", { name: "Roll back" }).count()).toBe(0);
});

test("a viewer who comes back to the tab of the control form gets the status", async ({ browsing }) => {
  const page = await browsing.opened();
  await page.showTab("Control");
  const viewers = await browsing.made({ storageState: await page.page.context().storageState() });
  await viewers.open(VIEWERS_KEY);
  const chosen = viewers.page.getByRole("tab", { selected: true });
  await expect.poll(() => chosen.allInnerTexts()).toEqual(["Status"]);
});

test("a control message with a viewer's key is refused, and the refusal names the role", async () => {
  const answer = await fetch(`${stack.url}/api/control`, {
    method: "POST",
    headers: { Authorization: `Bearer ${VIEWERS_KEY}`, "Content-Type": "application/json" },
    body: JSON.stringify({ joinType: "inner" }),
  });
  expect(answer.status).toBe(403);
  expect(await answer.json()).toMatchObject({ code: "forbidden" });
});
