import { beforeAll, expect, inject, onTestFinished } from "vitest";
import { buildFreshApp, openFreshApp } from "../support/fresh-app.js";
import { OldPages } from "../support/old-pages.js";
import { stack, test } from "../support/test.js";
import { until } from "../support/until.js";

const BUILD_MS_MAX = 1_200_000; // another Angular is installed first, on a machine that may be busy

beforeAll(buildFreshApp, BUILD_MS_MAX);

/** Returns when all old pages show what the server has. */
async function expectCurrent(pages: OldPages, offset = 0): Promise<void> {
  await expect
    .poll(async () => {
      const [shown, wanted] = [await pages.shown(), await pages.wanted(stack.httpClient, offset)];
      return Object.keys(wanted).filter((page) => {
        const key = page as keyof typeof wanted;
        return wanted[key].length === 0 || JSON.stringify(shown[key]) !== JSON.stringify(wanted[key]);
      });
    })
    .toEqual([]);
}

test("the README's table is live in a fresh app with the packed packages", async ({ browsing }) => {
  const { page } = await browsing.made();
  await openFreshApp(page, inject("apps"), "table", stack.url, stack.key);
  const rows = page.locator("app-live-table tbody tr");
  await expect.poll(() => rows.count()).toBe(300);
  const [joined] = (await stack.httpClient.rows("final_ui", { limit: 1 })).rows;
  expect(await rows.first().innerText()).toContain(String(joined?.["email"]));
  const place = page.locator("app-live-table .place");
  const before = await place.innerText();
  await page.getByRole("button", { name: "Next" }).click();
  await expect.poll(() => place.innerText()).toMatch(/^rows 301 to 600 of /);
  await page.getByRole("button", { name: "First" }).click();
  await expect.poll(() => place.innerText()).toBe(before);
  await stack.send({ users: 3, accounts: 3 });
  const { total } = await stack.httpClient.rows("final_ui", { limit: 1 });
  await expect.poll(() => place.innerText()).toBe(`rows 1 to 300 of ${total.toLocaleString("en")}`);
});

test("the README's grid is live in a fresh app with the packed packages", async ({ browsing }) => {
  const { page } = await browsing.made();
  await openFreshApp(page, inject("apps"), "grid", stack.url, stack.key);
  const cell = page.locator(".ag-row[row-index='0'] .ag-cell[col-id='email']");
  const expectFirst = async (): Promise<string> => {
    const [joined] = (await stack.httpClient.rows("final_ui", { limit: 1 })).rows;
    const email = String(joined?.["email"]);
    await expect.poll(() => cell.innerText()).toBe(email);
    return email;
  };
  const before = await expectFirst();
  expect((await stack.swap())["outcome"]).toBe("applied");
  expect(await expectFirst()).not.toBe(before);
});

test("pages written for the old client show rows, turn pages, and follow a swap", async ({ browsing }) => {
  const page = await browsing.made();
  const pages = new OldPages(page.page);
  await pages.open(inject("apps"), stack.url, stack.key);
  await expectCurrent(pages);
  await pages.turn();
  await expectCurrent(pages, 2);
  const before = await pages.shown();
  expect((await stack.swap())["outcome"]).toBe("applied");
  await expectCurrent(pages, 2);
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

test("pages written for the old client show that a key is wrong", async ({ browsing }) => {
  const page = await browsing.made();
  const pages = new OldPages(page.page);
  await pages.open(inject("apps"), stack.url, "a wrong key");
  // Adapter, stream and handle in their own words, and the two tables.
  await expect.poll(async () => (await pages.problems()).filter((text) => text.includes("key")).length).toBe(5);
  expect(await pages.ready()).toBe("not ready");
  // The page with arrays has no place for it: the console has.
  expect(page.errors.splice(0)).toEqual([expect.stringMatching(/key/)]);
});
