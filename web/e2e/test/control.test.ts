import { expect } from "vitest";
import { stack, test } from "../support/test.js";

test("another join that is sent by the form is applied", async ({ browsing }) => {
  const join = (await stack.orchestrator())["joinType"] === "left" ? "inner" : "left";
  const page = await browsing.opened();
  await page.showTab("Control");
  await page.fillControl({ join });
  await page.sendControl();
  await expect.poll(() => page.outcomeName()).toBe("applied");
  expect((await stack.orchestrator())["joinType"]).toBe(join);
  await page.showTab("Status");
  await expect.poll(() => page.page.getByTestId("status-joinType").innerText()).toContain(join);
});

test("each view has a selector for its own join", async ({ browsing }) => {
  const { joinType, latest_uiJoin } = await stack.orchestrator();
  const join = latest_uiJoin === "natural" ? "inner" : "natural";
  const page = await browsing.opened();
  await page.showTab("Control");
  const selector = page.page.getByLabel("Latest ui join");
  await expect.poll(() => selector.inputValue()).toBe(latest_uiJoin);
  await selector.selectOption(join);
  await page.sendControl();
  await expect.poll(() => page.outcomeName()).toBe("applied");
  expect(await stack.orchestrator()).toMatchObject({ joinType, latest_uiJoin: join });
  await expect.poll(() => selector.inputValue()).toBe(join);
});

test("what is live already is reported as unchanged", async ({ browsing }) => {
  const { generation } = await stack.orchestrator();
  const page = await browsing.opened();
  await page.showTab("Control");
  await page.fillControl(await stack.topics());
  await page.sendControl();
  await expect.poll(() => page.outcomeName()).toBe("unchanged");
  expect((await stack.orchestrator())["generation"]).toBe(generation);
});

test("an unknown topic is rejected with the reason", async ({ browsing }) => {
  const { generation } = await stack.orchestrator();
  const page = await browsing.opened();
  await page.showTab("Control");
  await page.fillControl({ users: "no-such-topic" });
  await page.sendControl();
  await expect.poll(() => page.outcomeName()).toBe("rejected");
  expect(await page.outcome.innerText()).toContain("no-such-topic");
  expect((await stack.orchestrator())["generation"]).toBe(generation);
});
