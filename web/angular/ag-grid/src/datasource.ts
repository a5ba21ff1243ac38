/**
 * A live table for AG Grid's infinite row model: the whole table scrolls, sorts and filters on the server, and the rows in
 * view change as they change there.
 *
 * There is one viewport, which follows what the grid shows. Nothing is cleared when another filter, place or generation is
 * asked for: rows stay until the ones that replace them are here.
 *
 * Windows come faster than a page can be drawn. Of those that come between two frames the newest is drawn, as far as it
 * can be seen. The rows that the grid keeps beyond that, and its length, follow later: with each new row on top all of
 * them change, and to set the grid's length makes it lay itself out several times.
 *
 * Where rows are so large that the server cuts the window, the viewport is what can be seen, from its first row on, and no
 * longer whole blocks: the rows below the cut come when they are scrolled to.
 */
import type { Problem, Row, Subscription, TableHub, ViewOptions, ViewState, Window } from "@livetables/client";
import type { GridApi, IDatasource, IGetRowsParams } from "ag-grid-community";
import { Frames } from "./frames";
import { filtersOf, isSameSelection, sortOf } from "./view";

/** The rows of one of the grid's blocks: its `cacheBlockSize`, 100 unless set. The viewport begins and ends at blocks. */
const BLOCK_ROWS = 100;
/** Blocks farther apart than this are not brought at once: those that were scrolled past are left. */
const WINDOW_ROWS_MAX = 1000;
/** The server sends no more frames than a screen shows. */
const INTERVAL_MS = 20;
/** How late the grid knows of a row that nobody can see, or of a length that nobody can see: both cost a layout. */
const UNSEEN_MS = 1000;

const frames = new Frames();

export interface DatasourceOptions {
  /** Text to be found in any column. */
  readonly quick?: string | undefined;
  /** Called with every window: columns, total, generation, and the rows. */
  readonly onWindow?: ((window: Window) => void) | undefined;
  /** Called with the reason when rows cannot come. */
  readonly onProblem?: ((problem: Problem) => void) | undefined;
  /** Called with the state of the rows, for `<live-state>` over the grid: connecting, stale, failed, limited, live. */
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
  /** The newest window that has come, until it is drawn; and whether the server has cut it. */
  #next: { readonly window: Window; readonly isCut: boolean } | null = null;
  /** Set while the grid waits for what cannot be seen. */
  #unseen: ReturnType<typeof setTimeout> | undefined;
  #isVisible = true;
  #isDestroyed = false;

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

  /** Whether anybody can see the grid: while not, its rows stay as they are, and none are asked for. */
  setVisible(isVisible: boolean): void {
    if (isVisible === this.#isVisible) return;
    this.#isVisible = isVisible;
    if (isVisible) this.#look(this.#view);
    else this.#leave();
  }

  /** Called by the grid when it has another datasource, or is gone. */
  destroy(): void {
    this.#isDestroyed = true;
    if (!this.#api.isDestroyed()) this.#api.removeEventListener("viewportChanged", this.#follow);
    this.#leave();
    this.#waiting = [];
  }

  #leave(): void {
    this.#subscription?.unsubscribe();
    this.#subscription = null;
    this.#next = null;
    frames.forget(this.#showNext);
    clearTimeout(this.#unseen);
    this.#unseen = undefined;
  }

  readonly #follow = (): void => {
    if (!this.#subscription) return;
    this.#look(this.#view);
    if (this.#window) this.#draw(this.#window, this.#drawn(), false);
    if (this.#window && this.#isEndSeen(this.#window)) this.#setLength(this.#window);
  };

  #look(selection: ViewOptions): void {
    if (this.#isDestroyed) return;
    if (!isSameSelection(selection, this.#view)) {
      this.#window = null; // its rows answer no block of another selection
      this.#next = null;
      this.#isCut = false;
    }
    const range = this.#range();
    this.#view = { ...selection, offset: range.start, size: range.end - range.start };
    if (!this.#isVisible) return;
    if (this.#subscription) {
      this.#subscription.look(this.#view);
      if (this.#window) this.#answer(this.#window);
      return;
    }
    const view = { ...this.#view, interval_ms: INTERVAL_MS };
    this.#subscription = this.#hub.subscribe(this.#table, view, {
      rows: (window) => {
        this.#next = { window, isCut: isShort(window, this.#view) }; // when it is drawn, more may have been asked for
        frames.ask(this.#showNext);
      },
      problem: (problem) => this.#options.onProblem?.(problem),
      state: (state) => {
        this.#state = state;
        this.#options.onState?.(state);
      },
    });
  }

  /** The blocks that the grid shows, with those it waits for; the first one if it has no rows. What is too far is left. */
  #range(): Range {
    const drawn = this.#drawn();
    const isDrawn = drawn.start < drawn.end;
    if (isDrawn && this.#isCut) return this.#visible(drawn);
    let range = isDrawn ? blocks(drawn.start, drawn.end) : null;
    const left: IGetRowsParams[] = [];
    for (const params of this.#waiting.toReversed()) {
      const both = joined(range, blocks(params.startRow, params.endRow));
      if (both.end - both.start <= WINDOW_ROWS_MAX) range = both;
      else left.push(params);
    }
    this.#waiting = this.#waiting.filter((params) => !left.includes(params));
    for (const params of left) params.failCallback();
    return range ?? { start: 0, end: BLOCK_ROWS };
  }

  /** The rows that the grid has drawn, also above and below those that can be seen. */
  #drawn(): Range {
    const start = this.#api.getFirstDisplayedRowIndex();
    return start < 0 ? NOTHING : { start, end: this.#api.getLastDisplayedRowIndex() + 1 };
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

  readonly #showNext = (): void => {
    const next = this.#next;
    this.#next = null;
    if (next) this.#show(next.window, next.isCut);
  };

  #show(window: Window, isCut: boolean): void {
    const isSameGeneration = this.#window?.generation === window.generation;
    const wasCut = this.#isCut && isSameGeneration;
    this.#isCut = wasCut || isCut;
    this.#window = window;
    this.#answer(window);
    if (this.#api.isDestroyed()) return;
    if (!isSameGeneration || this.#isEndSeen(window)) this.#setLength(window);
    this.#draw(window, this.#visible(this.#drawn()), isSameGeneration);
    this.#unseen ??= setTimeout(this.#showUnseen, UNSEEN_MS);
    this.#options.onWindow?.(window);
    if (this.#isCut && !wasCut) this.#follow();
  }

  readonly #showUnseen = (): void => {
    this.#unseen = undefined;
    if (!this.#window || this.#api.isDestroyed()) return;
    this.#setLength(this.#window);
    this.#draw(this.#window, this.#drawn(), false);
  };

  /** Whether the grid's last row, as it is or as it is to be, may be among those that it draws. */
  #isEndSeen({ total }: Window): boolean {
    return this.#drawn().end >= Math.min(total, this.#api.getDisplayedRowCount());
  }

  #setLength({ total }: Window): void {
    if (this.#api.getDisplayedRowCount() !== total) this.#api.setRowCount(total, true);
  }

  /** Gives rows of a window to the grid. */
  #draw({ offset, rows }: Window, { start, end }: Range, mayFlash: boolean): void {
    for (let index = Math.max(start, offset); index < Math.min(end, offset + rows.length); index++) {
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

const NOTHING: Range = { start: 0, end: 0 };

/** Whether a window has fewer rows than were asked for, and are there. */
function isShort({ rows, total, offset }: Window, { size = 0 }: ViewOptions): boolean {
  return rows.length < Math.min(size, total - offset);
}

function blocks(start: number, end: number): Range {
  return { start: Math.floor(start / BLOCK_ROWS) * BLOCK_ROWS, end: Math.ceil(end / BLOCK_ROWS) * BLOCK_ROWS };
}

function joined(range: Range | null, other: Range): Range {
  return range ? { start: Math.min(range.start, other.start), end: Math.max(range.end, other.end) } : other;
}
