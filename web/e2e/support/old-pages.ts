/** The pages that were written for the old client, as somebody sees them, and what they should show. */
import type { Page } from "playwright-core";
import { openFreshApp } from "./fresh-app.js";
import type { HttpClient, Row } from "./http-client.js";

/** What all of them show. */
export interface Shown {
  readonly raw: readonly (readonly string[])[];
  readonly paging: readonly string[];
  readonly adapter: readonly string[];
  readonly rebind: readonly string[];
  readonly component: readonly string[];
}

export class OldPages {
  readonly #page: Page;

  constructor(page: Page) {
    this.#page = page;
  }

  async open(origin: string, url: string, key: string): Promise<void> {
    await openFreshApp(this.#page, origin, "old-pages", url, key);
  }

  async ready(): Promise<string> {
    return await this.#page.locator("old-paging .ready").innerText();
  }

  /** The problems that the pages show. */
  async problems(): Promise<string[]> {
    return await this.#page.locator(".error, live-state").allInnerTexts();
  }

  /** Turn to the next page of the page with arrays. */
  async turn(): Promise<void> {
    await this.#page.locator("old-paging").getByRole("button", { name: "On" }).click();
  }

  async shown(): Promise<Shown> {
    return await this.#page.evaluate(() => {
      const texts = (selector: string, root: ParentNode = document): string[] =>
        [...root.querySelectorAll(selector)].map((element) => element.textContent.trim());
      return {
        raw: [...document.querySelectorAll("old-raw-handle tbody tr")].map((row) => texts("td", row)),
        paging: texts("old-paging li"),
        adapter: texts("old-adapter .ag-row[row-index='0'] .ag-cell"),
        rebind: texts("old-rebind ol li"),
        component: texts("old-rebind app-live-table:first-of-type tbody tr:first-child td"),
      };
    });
  }

  /** The same as `shown`, as the server has it; the page with arrays may be at another offset. */
  async wanted(httpClient: HttpClient, offset = 0): Promise<Shown> {
    const [users, accounts, joined] = await Promise.all([
      httpClient.rows("user", { limit: 10_001 }),
      httpClient.rows("account", { limit: 1 }),
      httpClient.rows("final_ui", { limit: 1_000 }),
    ]);
    const all = users.rows.map(cells);
    return {
      raw: all,
      paging: all.slice(offset, offset + 2).map((row) => row.map((cell) => `${cell}|`).join("")),
      adapter: accounts.rows.flatMap(cells),
      rebind: joined.rows.map(({ name, balance }) => `${text(name)} ${text(balance)}`.trim()),
      component: joined.rows.slice(0, 1).flatMap(cells),
    };
  }
}

function cells(row: Row): string[] {
  return Object.entries(row)
    .filter(([name]) => !name.startsWith("_"))
    .map(([, value]) => text(value));
}

function text(value: Row[string] | undefined): string {
  return String(value ?? "");
}
