import { cpSync, existsSync, mkdirSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { beforeAll, expect, inject } from "vitest";
import { BUILT, openBuilt, run, WEB } from "../support/built-app.js";
import { stack, test } from "../support/test.js";

/** Below the workspace, so that Angular itself is found there; our packages are only those that were packed. */
const FRESH = join(BUILT, "fresh-app");

beforeAll(async () => {
  rmSync(FRESH, { recursive: true, force: true });
  cpSync(join(WEB, "e2e/fresh-app"), FRESH, { recursive: true });
  await install("@livetables/client", "core");
  await install("@livetables/angular", "angular");
  await run(FRESH, join(WEB, "node_modules/.bin/ng"), "build");
});

async function install(name: string, source: string): Promise<void> {
  const { version } = JSON.parse(readFileSync(join(WEB, source, "package.json"), "utf-8")) as { version: string };
  const tarball = join(WEB, `../dist/${name.slice(1).replace("/", "-")}-${version}.tgz`);
  if (!existsSync(tarball)) throw new Error(`there is no ${tarball}: run \`make npm\`, which packs it`);
  const place = join(FRESH, "node_modules", name);
  mkdirSync(place, { recursive: true });
  await run(place, "tar", "--extract", "--gzip", "--strip-components=1", "--file", tarball);
}

test("the packed packages show live tables in a fresh app", async ({ browsing }) => {
  const { page } = await browsing.made();
  await openBuilt(page, inject("apps"), "fresh-app/dist", stack.url, stack.key);
  const [user] = (await stack.httpClient.rows("user", { limit: 1 })).rows;
  const table = page.locator("app-live-table tbody tr");
  await expect.poll(() => table.count()).toBe(5);
  expect(await table.first().innerText()).toContain(String(user?.["email"]));
  const [joined] = (await stack.httpClient.rows("final_ui", { limit: 1 })).rows;
  const cell = page.locator(".ag-row[row-index='0'] .ag-cell[col-id='email']");
  await expect.poll(() => cell.innerText()).toBe(String(joined?.["email"]));
});
