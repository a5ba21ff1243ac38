import { expect, onTestFinished } from "vitest";
import { expectSame } from "../support/comparison.js";
import type { Frame, LivePage } from "../support/page.js";
import { stack, test } from "../support/test.js";

/** How many windows the page has compared, and how many were others. */
async function comparisons(page: LivePage): Promise<{ compared: number; different: number }> {
  const text = (await page.page.getByTestId("checksums").textContent()) ?? "";
  const [compared = NaN, different = NaN] = text.match(/\d[\d,]*/g)?.map((each) => Number(each.replace(",", ""))) ?? [];
  return { compared, different };
}

test("windows are the server's, by its own checksums, while rows arrive", async ({ browsing }) => {
  const page = await browsing.opened();
  const { stop } = await stack.stream({ rate: 100, seed: 31 });
  onTestFinished(stop);
  await expect.poll(async () => (await comparisons(page)).compared).toBeGreaterThan(10);
  expect((await comparisons(page)).different).toBe(0);
});

test("a wrong value in a patch is noticed, and healed", async ({ browsing }) => {
  const page = await browsing.made();
  let faults = 0;
  await page.onItsWay((frame) => {
    if (faults > 0 || frame["table"] !== "accounts_ui") return frame;
    const wrong = withFault(frame);
    if (wrong) faults++;
    return wrong ?? frame;
  });
  await page.open(stack.key);
  await expectSame(page.panel("accounts_ui"), stack.httpClient);
  await stack.send({ accounts: 20, seed: 32 });
  await expect.poll(() => comparisons(page)).toMatchObject({ different: 1 });
  expect(faults).toBe(1);
  await expectSame(page.panel("accounts_ui"), stack.httpClient);
});

/** The frame with a wrong value in its first inserted row; null if it is no patch that inserts. */
function withFault(frame: Frame): Frame | null {
  const [first, ...others] = (frame["inserted"] ?? []) as [number, number, unknown[]][];
  if (!first) return null;
  const [position, id, values] = first;
  const wrong = values.map((value) => (typeof value === "string" ? `${value}!` : value));
  return { ...frame, inserted: [[position, id, wrong], ...others] };
}
