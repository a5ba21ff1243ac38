import { beforeAll, expect, inject, onTestFinished } from "vitest";
import { buildOldPages, OldPages } from "../support/old-pages.js";
import { stack, test } from "../support/test.js";
import { until } from "../support/until.js";

beforeAll(async () => {
  await buildOldPages();
});

/** Returns when all of them show what the server has. */
async function expectCurrent(pages: OldPages): Promise<void> {
  await expect
    .poll(async () => {
      const [shown, wanted] = [await pages.shown(), await pages.wanted(stack.httpClient)];
      return Object.keys(wanted).filter((page) => {
        const key = page as keyof typeof wanted;
        return wanted[key].length === 0 || JSON.stringify(shown[key]) !== JSON.stringify(wanted[key]);
      });
    })
    .toEqual([]);
}

test("pages written for the old client show rows, and follow a swap", async ({ browsing }) => {
  const page = await browsing.made();
  const pages = new OldPages(page.page);
  await pages.open(inject("apps"), stack.url, stack.key);
  await expectCurrent(pages);
  const before = await pages.shown();
  expect((await stack.swap())["outcome"]).toBe("applied");
  await expectCurrent(pages);
  const after = await pages.shown();
  for (const key of Object.keys(before) as (keyof typeof before)[]) expect(after[key]).not.toEqual(before[key]);
  expect(page.openSockets).toBe(1);
});

test("pages written for the old client outlast a server that was killed", async ({ browsing }) => {
  const page = await browsing.made();
  const pages = new OldPages(page.page);
  await pages.open(inject("apps"), stack.url, stack.key);
  await expectCurrent(pages);
  const before = await pages.shown();

  const bringBack = stack.takeServerDown();
  onTestFinished(bringBack);
  await expect.poll(() => pages.ready()).toBe("not ready");
  await expect.poll(async () => (await pages.problems()).join()).toContain("Reconnecting");
  expect(await pages.shown()).toEqual(before);

  bringBack();
  await until("the system is live again", () => stack.isLive());
  await expect.poll(() => pages.ready()).toBe("ready");
  await expect.poll(async () => (await pages.problems()).join("")).toBe("");
  await stack.send({ users: 3, accounts: 3 });
  await expectCurrent(pages);
  expect(await pages.shown()).not.toEqual(before);
});

test("pages written for the old client tell of a wrong key", async ({ browsing }) => {
  const page = await browsing.made();
  const pages = new OldPages(page.page);
  await pages.open(inject("apps"), stack.url, "a wrong key");
  // Adapter, stream and handle in their own words, and the two tables.
  await expect.poll(async () => (await pages.problems()).filter((text) => text.includes("key")).length).toBe(5);
  expect(await pages.ready()).toBe("not ready");
  // The page with arrays has no place for it: the console has.
  expect(page.errors.splice(0)).toEqual([expect.stringMatching(/key/)]);
});
