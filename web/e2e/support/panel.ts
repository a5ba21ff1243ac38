/** A table on the page: its header, and the grid below. */
import { readFileSync } from "node:fs";
import { expect } from "vitest";
import type { Locator, Page } from "playwright-core";

/** A row as it is drawn: the text of each cell by its column's name. */
export interface ShownRow {
  readonly index: number;
  readonly cells: Readonly<Record<string, string>>;
}

export type Direction = "ascending" | "descending";

const FILTER_INPUT = ".ag-filter .ag-filter-body input:visible";

export class Panel {
  readonly table: string;
  readonly root: Locator;
  readonly #page: Page;

  constructor(page: Page, table: string) {
    this.#page = page;
    this.table = table;
    this.root = page.getByTestId(`panel-${table}`);
  }

  /** The rows that can be seen, from the top, with those of their cells that are drawn. */
  async rows(): Promise<ShownRow[]> {
    return await this.root.evaluate((root) => {
      const ceiling = root.querySelector(".ag-header")?.getBoundingClientRect().bottom ?? 0;
      const floor = root.querySelector(".ag-grid-viewport")?.getBoundingClientRect().bottom ?? 0;
      const rows = [...root.querySelectorAll<HTMLElement>(".ag-grid-scrolling-container .ag-row[row-index]")];
      return rows
        .filter((row) => {
          const { top, bottom } = row.getBoundingClientRect();
          return top >= ceiling - 1 && bottom <= floor + 1;
        })
        .map((row) => ({
          index: Number(row.getAttribute("row-index")),
          cells: Object.fromEntries(
            [...row.querySelectorAll<HTMLElement>("[col-id]")].map((cell) => [
              cell.getAttribute("col-id") ?? "",
              cell.innerText.trim(),
            ]),
          ),
        }))
        .sort((one, other) => one.index - other.index);
    });
  }

  /** Whether it shows a row of the table; while the first ones are awaited, the grid has one without values. */
  async hasRows(): Promise<boolean> {
    return (await this.rows()).some(({ cells }) => Object.values(cells).some((text) => text !== ""));
  }

  /** The state that it shows while its rows are not live; nothing otherwise. */
  async state(): Promise<string> {
    return await this.root.locator("live-state").innerText();
  }

  cell(row: number, column: string): Locator {
    return this.row(row).locator(`[col-id="${column}"]`);
  }

  row(index: number): Locator {
    return this.root.locator(`.ag-grid-scrolling-container .ag-row[row-index="${index}"]`);
  }

  /** How many rows there are, as it shows. */
  async total(): Promise<number> {
    return countIn(await this.root.getByTestId("total").innerText()) ?? NaN;
  }

  /** How many rows pass the filters, as it shows; without filters, all do. */
  async found(): Promise<number> {
    return countIn(await this.root.getByTestId("shown").innerText()) ?? (await this.total());
  }

  async quick(text: string): Promise<void> {
    await this.root.getByLabel("Quick filter").fill(text);
  }

  async quickText(): Promise<string> {
    return await this.root.getByLabel("Quick filter").inputValue();
  }

  header(column: string): Locator {
    return this.root.locator(`.ag-header-cell[col-id="${column}"]`);
  }

  async sortBy(column: string, direction: Direction): Promise<void> {
    const before = await this.direction(column);
    const clicks = direction === "ascending" || before === "ascending" ? 1 : 2;
    for (let click = 0; click < clicks; click++) await this.header(column).locator(".ag-header-cell-text").click();
    await expect.poll(() => this.direction(column)).toBe(direction);
  }

  async direction(column: string): Promise<string | null> {
    return await this.header(column).getAttribute("aria-sort");
  }

  /** Open a column's filter; what is returned is its first input. */
  async openFilter(column: string): Promise<Locator> {
    await this.header(column).hover();
    await this.header(column).locator(".ag-header-cell-filter-button").click();
    return this.#page.locator(FILTER_INPUT).first();
  }

  /** Only rows whose column has this text in it, or passes in another way, as the filter calls it. */
  async filterColumn(column: string, text: string, way?: string, end?: string): Promise<void> {
    const input = await this.openFilter(column);
    if (way !== undefined) {
      await this.#page.locator(".ag-filter-select:visible").click();
      await this.#page.getByRole("option", { name: way, exact: true }).click();
    }
    await input.fill(text);
    if (end !== undefined) await this.#page.locator(FILTER_INPUT).last().fill(end);
    await this.#page.keyboard.press("Escape");
  }

  /** What its button exports, as text; the columns are those of the first line. */
  async csv(file: string): Promise<{ readonly text: string; readonly columns: readonly string[] }> {
    const [download] = await Promise.all([
      this.#page.waitForEvent("download"),
      this.root.getByRole("button", { name: "CSV" }).click(),
    ]);
    expect(download.suggestedFilename()).toMatch(new RegExp(`^${this.table}.*\\.csv$`));
    await download.saveAs(file);
    const text = readFileSync(file, "utf-8");
    return { text, columns: (text.split("\n")[0] ?? "").replaceAll(/["\r]/g, "").split(",") };
  }

  /** Page by page, or as a grid. */
  async showPages(isPaged: boolean): Promise<void> {
    await this.inColumns(() => this.root.getByLabel("page by page").setChecked(isPaged));
  }

  async showColumn(name: string, isShown: boolean): Promise<void> {
    await this.inColumns(() => this.root.getByLabel(name, { exact: true }).setChecked(isShown));
  }

  /** Do something in the list of columns, which is open meanwhile. */
  async inColumns(act: () => Promise<void>): Promise<void> {
    const button = this.root.getByRole("button", { name: "Columns" });
    await button.click();
    await act();
    await button.click();
  }

  /** Brings a row to the top, as soon as the grid is as high as its rows are many. */
  async scrollTo(row: number): Promise<void> {
    const scroll = (): Promise<boolean> =>
      this.root.locator(".ag-grid-viewport").evaluate((view, index) => {
        const height = view.querySelector<HTMLElement>(".ag-grid-scrolling-container .ag-row")?.offsetHeight ?? 0;
        view.scrollTop = index * height;
        return height > 0 && view.scrollHeight >= (index + 1) * height;
      }, row);
    await expect.poll(scroll).toBe(true);
  }

  /** How far it is scrolled down, in pixels. */
  async scrollTop(): Promise<number> {
    return await this.root.locator(".ag-grid-viewport").evaluate((view) => view.scrollTop);
  }
}

/** The number in a text like "1,234 rows". */
function countIn(text: string): number | undefined {
  const digits = text.replaceAll(/\D/g, "");
  return digits === "" ? undefined : Number(digits);
}
