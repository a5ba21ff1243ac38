/**
 * A live table for AG Grid's infinite row model: the whole table scrolls, sorts and filters on the server, and the rows in
 * view change as they change there.
 *
 * There is one viewport, which follows what the grid shows. Nothing is cleared when another filter, place or generation is
 * asked for: rows stay until the ones that replace them are here.
 *
 * Where rows are so large that the server cuts the window, the viewport is what can be seen, from its first row on, and no
 * longer whole blocks: the rows below the cut come when they are scrolled to.
 */
import type { Problem, Row, Subscription, TableHub, ViewOptions, ViewState, Window } from "@livetables/client";
import type { GridApi, IDatasource, IGetRowsParams } from "ag-grid-community";
import { filtersOf, isSameSelection, sortOf } from "./view";

/** The rows of one of the grid's blocks: its `cacheBlockSize`, 100 unless set. The viewport begins and ends at blocks. */
const BLOCK_ROWS = 100;
/** Blocks farther apart than this are not brought at once: those that were scrolled past are left. */
const WINDOW_ROWS_MAX = 1000;
/** Showing a window that takes less than this is not worth a pause. */
const COSTLY_MS = 4;
/** After one that takes longer, a frame and so many times what it took belong to the rest of the page. */
const FRAME_MS = 16;
const RESTS = 3;

export interface DatasourceOptions {
  /** Text to be found in any column. */
  readonly quick?: string | undefined;
  /** Told of every window: columns, total, generation, and the rows. */
  readonly onWindow?: ((window: Window) => void) | undefined;
  /** Told why no rows come. */
  readonly onProblem?: ((problem: Problem) => void) | undefined;
  /** Told how it is with the rows, for `<live-state>` over the grid: connecting, stale, failed, limited, live. */
  readonly onState?: ((state: ViewState) => void) | undefined;
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
  #state: ViewState | null = null;
  #waiting: IGetRowsParams[] = [];
  /** Whether the server has cut a window of this selection. */
  #isCut = false;
  /** While the page rests, the newest window that has come; windows come faster than a page can be drawn. */
  #next: Window | null = null;
  #rest: ReturnType<typeof setTimeout> | undefined;

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

  /** How it is with the rows; null until the grid has asked for some. */
  get state(): ViewState | null {
    return this.#state;
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
    clearTimeout(this.#rest);
  }

  readonly #follow = (): void => {
    if (!this.#subscription) return;
    this.#look(this.#view);
    if (this.#window) this.#draw(this.#window, false);
  };

  #look(selection: ViewOptions): void {
    if (!isSameSelection(selection, this.#view)) {
      this.#window = null; // its rows answer no block of another selection
      this.#next = null;
      this.#isCut = false;
    }
    const range = this.#range();
    if (!range) return;
    this.#view = { ...selection, offset: range.start, size: range.end - range.start };
    if (this.#subscription) {
      this.#subscription.look(this.#view);
      if (this.#window) this.#answer(this.#window);
      return;
    }
    this.#subscription = this.#hub.subscribe(this.#table, this.#view, {
      rows: (window) => {
        if (this.#rest === undefined) this.#showAndRest(window);
        else this.#next = window;
      },
      problem: (problem) => this.#options.onProblem?.(problem),
      state: (state) => {
        this.#state = state;
        this.#options.onState?.(state);
      },
    });
  }

  /** The blocks that the grid shows, with those it waits for; what is too far from them is left. */
  #range(): Range | null {
    const first = this.#api.getFirstDisplayedRowIndex();
    const last = this.#api.getLastDisplayedRowIndex();
    const drawn = first < 0 || last < first ? null : { start: first, end: last + 1 };
    if (drawn && this.#isCut) return this.#visible(drawn);
    let range = drawn && blocks(drawn.start, drawn.end);
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

  /** The rows that can be seen, without those that the grid draws above and below them. */
  #visible({ start, end }: Range): Range {
    const { top, bottom } = this.#api.getVerticalPixelRange();
    const place = (index: number): Range => {
      const { rowTop, rowHeight } = this.#api.getDisplayedRowAtIndex(index) ?? {};
      return { start: rowTop ?? top, end: (rowTop ?? top) + (rowHeight ?? 0) };
    };
    while (start < end - 1 && place(start).end <= top) start++;
    while (end - 1 > start && place(end - 1).start >= bottom) end--;
    return { start, end };
  }

  #showAndRest(window: Window): void {
    const started = performance.now();
    this.#show(window);
    const cost = performance.now() - started;
    if (cost < COSTLY_MS) return;
    this.#rest = setTimeout(
      () => {
        this.#rest = undefined;
        const next = this.#next;
        this.#next = null;
        if (next) this.#showAndRest(next);
      },
      FRAME_MS + RESTS * cost,
    );
  }

  #show(window: Window): void {
    const isSameGeneration = this.#window?.generation === window.generation;
    const wasCut = this.#isCut && isSameGeneration;
    this.#isCut = wasCut || window.rows.length < Math.min(this.#view.size ?? 0, window.total - window.offset);
    this.#window = window;
    this.#answer(window);
    if (this.#api.isDestroyed()) return;
    if (this.#api.getDisplayedRowCount() !== window.total) this.#api.setRowCount(window.total, true);
    this.#draw(window, isSameGeneration);
    this.#options.onWindow?.(window);
    if (this.#isCut && !wasCut) this.#follow();
  }

  /** Gives the rows that the grid draws to it; the others when they are scrolled to. One on top moves all below it. */
  #draw({ offset, rows }: Window, mayFlash: boolean): void {
    const last = Math.min(this.#api.getLastDisplayedRowIndex(), offset + rows.length - 1);
    for (let index = Math.max(this.#api.getFirstDisplayedRowIndex(), offset); index <= last; index++) {
      const node = this.#api.getDisplayedRowAtIndex(index);
      const row = rows[index - offset];
      if (!node || !row || node.data === row) continue;
      // A cell flashes when its own row has changed, not when another row has come to its place.
      if (mayFlash && node.data?._row === row._row) node.updateData(row);
      else node.setData(row);
    }
  }

  /** Gives the grid the blocks that it waits for, as far as the window has them; whole ones, unless it is cut. */
  #answer({ offset, rows, total }: Window): void {
    const end = offset + rows.length;
    const isHere = ({ startRow, endRow }: IGetRowsParams): boolean =>
      (this.#isCut && offset === this.#view.offset) ||
      (startRow >= offset && (Math.min(endRow, total) <= end || startRow >= total));
    const here = this.#waiting.filter(isHere);
    this.#waiting = this.#waiting.filter((params) => !isHere(params));
    for (const params of here) {
      const { startRow, endRow } = params;
      const block = Array.from(
        { length: Math.min(endRow, total) - startRow },
        (_, index) => rows[startRow + index - offset],
      );
      params.successCallback(block, total);
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
