/**
 * A live table for AG Grid's infinite row model: the whole table scrolls, sorts and filters on the server, and the rows in
 * view change as they change there.
 *
 * There is one viewport, which follows what the grid shows. Nothing is cleared when another filter, place or generation is
 * asked for: rows stay until the ones that replace them are here.
 */
import type { Problem, Row, Subscription, TableHub, ViewOptions, Window } from "@livetables/client";
import type { GridApi, IDatasource, IGetRowsParams } from "ag-grid-community";
import { filtersOf, isSameSelection, sortOf } from "./view";

/** The rows of one of the grid's blocks: its `cacheBlockSize`, 100 unless set. The viewport begins and ends at blocks. */
const BLOCK_ROWS = 100;
/** Blocks farther apart than this are not brought at once: those that were scrolled past are left. */
const WINDOW_ROWS_MAX = 1000;

export interface DatasourceOptions {
  /** Text to be found in any column. */
  readonly quick?: string | undefined;
  /** Told of every window: columns, total, generation, and the rows. */
  readonly onWindow?: ((window: Window) => void) | undefined;
  /** Told why no rows come. */
  readonly onProblem?: ((problem: Problem) => void) | undefined;
}

/** For `api.setGridOption("datasource", livetablesDatasource(service.hub, "final_ui", api))` when the grid is ready. */
export function livetablesDatasource(
  hub: TableHub,
  table: string,
  api: GridApi<Row>,
  options: DatasourceOptions = {},
): LivetablesDatasource {
  return new LivetablesDatasource(hub, table, api, options);
}

export class LivetablesDatasource implements IDatasource {
  readonly #hub: TableHub;
  readonly #table: string;
  readonly #api: GridApi<Row>;
  readonly #options: DatasourceOptions;
  #view: ViewOptions;
  #subscription: Subscription | null = null;
  #window: Window | null = null;
  #waiting: IGetRowsParams[] = [];

  constructor(hub: TableHub, table: string, api: GridApi<Row>, options: DatasourceOptions) {
    this.#hub = hub;
    this.#table = table;
    this.#api = api;
    this.#options = options;
    this.#view = { sort: [], filters: [], quick: options.quick ?? "" };
    api.addEventListener("viewportChanged", this.#follow);
  }

  /** What is looked at: sort, filters and quick filter as they are now. */
  get view(): ViewOptions {
    return this.#view;
  }

  /** Called by the grid, for a block that it needs. */
  getRows(params: IGetRowsParams): void {
    this.#waiting.push(params);
    const selection = {
      sort: sortOf(params.sortModel),
      filters: filtersOf(params.filterModel as Record<string, unknown>),
    };
    this.#look({ ...this.#view, ...selection });
  }

  /** Look for this text in all columns. */
  quickFilter(text: string): void {
    this.#look({ ...this.#view, quick: text });
  }

  /** Called by the grid when it has another datasource, or is gone. */
  destroy(): void {
    if (!this.#api.isDestroyed()) this.#api.removeEventListener("viewportChanged", this.#follow);
    this.#subscription?.unsubscribe();
    this.#subscription = null;
    this.#waiting = [];
  }

  readonly #follow = (): void => {
    if (this.#subscription) this.#look(this.#view);
  };

  #look(selection: ViewOptions): void {
    const range = this.#range();
    if (!range) return;
    if (!isSameSelection(selection, this.#view)) this.#window = null; // its rows answer no block of another selection
    this.#view = { ...selection, offset: range.start, size: range.end - range.start };
    if (this.#subscription) {
      this.#subscription.look(this.#view);
      if (this.#window) this.#answer(this.#window);
      return;
    }
    this.#subscription = this.#hub.subscribe(this.#table, this.#view, {
      rows: (window) => {
        this.#show(window);
      },
      problem: (problem) => this.#options.onProblem?.(problem),
    });
  }

  /** The blocks that the grid shows, with those it waits for; what is too far from them is left. */
  #range(): Range | null {
    const first = this.#api.getFirstDisplayedRowIndex();
    const last = this.#api.getLastDisplayedRowIndex();
    let range = first < 0 || last < first ? null : blocks(first, last + 1);
    const left: IGetRowsParams[] = [];
    for (const params of this.#waiting.toReversed()) {
      const both = joined(range, blocks(params.startRow, params.endRow));
      if (both.end - both.start <= WINDOW_ROWS_MAX) range = both;
      else left.push(params);
    }
    this.#waiting = this.#waiting.filter((params) => !left.includes(params));
    for (const params of left) params.failCallback();
    return range;
  }

  #show(window: Window): void {
    const isSameGeneration = this.#window?.generation === window.generation;
    this.#window = window;
    this.#answer(window);
    if (this.#api.isDestroyed()) return;
    if (this.#api.getDisplayedRowCount() !== window.total) this.#api.setRowCount(window.total, true);
    window.rows.forEach((row, index) => {
      const node = this.#api.getDisplayedRowAtIndex(window.offset + index);
      if (!node || node.data === row) return;
      // A cell flashes when its own row has changed, not when another row has come to its place.
      if (isSameGeneration && node.data?._row === row._row) node.updateData(row);
      else node.setData(row);
    });
    this.#options.onWindow?.(window);
  }

  /** Gives the grid the blocks that it waits for, as far as the window has them. */
  #answer({ offset, rows, total }: Window): void {
    const end = offset + rows.length;
    const isHere = ({ startRow, endRow }: IGetRowsParams): boolean =>
      startRow >= offset && (Math.min(endRow, total) <= end || startRow >= total);
    const here = this.#waiting.filter(isHere);
    this.#waiting = this.#waiting.filter((params) => !isHere(params));
    for (const params of here) {
      params.successCallback(rows.slice(params.startRow - offset, params.endRow - offset), total);
    }
  }
}

interface Range {
  readonly start: number;
  readonly end: number;
}

function blocks(start: number, end: number): Range {
  return { start: Math.floor(start / BLOCK_ROWS) * BLOCK_ROWS, end: Math.ceil(end / BLOCK_ROWS) * BLOCK_ROWS };
}

function joined(range: Range | null, other: Range): Range {
  return range ? { start: Math.min(range.start, other.start), end: Math.max(range.end, other.end) } : other;
}
