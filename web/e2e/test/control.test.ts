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

test("the page waits for the outcome of its own message, whatever is at its place", async ({ browsing }) => {
  const page = await browsing.opened();
  const asked = page.sent("subscribe");
  await page.page.reload();
  await page.showTab("Control");
  const request = page.page.waitForRequest("**/api/control");
  await page.fillControl(await stack.topics());
  await page.sendControl();
  const value = await (await request).headerValue("idempotency-key");
  await expect.poll(() => page.outcomeName()).toBe("unchanged");
  const filters: unknown = expect.arrayContaining([{ column: "raw", op: "contains", value }]);
  expect(asked).toContainEqual(
    expect.objectContaining({ table: "control_raw", view: expect.objectContaining({ filters }) as unknown }),
  );
});

test("a message that something else answers is not on its way for ever, and the next one is applied", async ({
  browsing,
}) => {
  const page = await browsing.opened();
  await page.showTab("Control");
  await page.page.route("**/api/control", (route) => route.fulfill({ contentType: "text/html", body: "<html>" }));
  await page.fillControl(await stack.topics());
  await page.sendControl();
  await expect.poll(() => page.outcomeName()).toBe("unanswered");
  expect(await page.outcome.innerText()).toContain("may have been published");
  await page.page.unroute("**/api/control");
  await page.sendControl();
  await expect.poll(() => page.outcomeName()).toBe("unchanged");
});
