import { expect } from "vitest";
import { expectSame } from "../support/comparison.js";
import { stack, test } from "../support/test.js";

test("who has no key is asked for it", async ({ browsing }) => {
  const page = await browsing.made();
  await page.open();
  await page.login.waitFor();
  await page.logIn(stack.key);
  await page.login.waitFor({ state: "hidden" });
  await expectSame(page.panel("final_ui"), stack.httpClient);
});

test("a wrong key is shown with the reason, and the right one works afterwards", async ({ browsing }) => {
  const page = await browsing.made();
  await page.open("a wrong key");
  const problem = page.login.getByTestId("login-problem");
  await problem.waitFor();
  expect(await problem.innerText()).toMatch(/key/i);
  await page.logIn(stack.key);
  await page.login.waitFor({ state: "hidden" });
  await expectSame(page.panel("final_ui"), stack.httpClient);
});

test("the key is kept for the tab only, and not in its address", async ({ browsing }) => {
  const page = await browsing.opened();
  expect(await page.stored("sessionStorage")).toContain(stack.key);
  expect(await page.stored("localStorage")).not.toContain(stack.key);
  expect(page.page.url()).not.toContain(stack.key);
});

test("who reloads the page is still logged in", async ({ browsing }) => {
  const page = await browsing.opened();
  await page.page.reload();
  await expectSame(page.panel("final_ui"), stack.httpClient);
  expect(await page.login.isVisible()).toBe(false);
});

test("an address with an empty key is as one without", async ({ browsing }) => {
  const page = await browsing.made();
  await page.open("");
  await page.login.waitFor();
  await page.logIn(stack.key);
  await expectSame(page.panel("final_ui"), stack.httpClient);
});

test("a browser that keeps nothing shows the page all the same", async ({ browsing }) => {
  const page = await browsing.made();
  // As where cookies are blocked, which no option of the driver does.
  await page.page.addInitScript(() => {
    for (const name of ["localStorage", "sessionStorage"]) {
      Object.defineProperty(window, name, {
        get: () => {
          throw new DOMException("access is denied", "SecurityError");
        },
      });
    }
  });
  await page.open();
  await page.login.waitFor();
  await page.logIn(stack.key);
  await expectSame(page.panel("final_ui"), stack.httpClient);
  await page.page.getByRole("button", { name: "Log out" }).click();
  await page.login.waitFor();
});
