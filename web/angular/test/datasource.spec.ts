/**
 * The datasource beside a grid that only keeps rows: what AG Grid draws depends on sizes, which there are none of without a
 * browser. e2e/ has the real grid.
 */
import type { GridApi, IGetRowsParams } from "ag-grid-community";
import { TableHub } from "@livetables/client";
import type { Row, ViewState, Wire } from "@livetables/client";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { settled } from "../../core/test/support/fake.js";
import { error, patch, schema, snapshot, WELCOME } from "../../core/test/support/frames.js";
import type { ClientFrame, SubscriptionFrame } from "../../core/src/protocol.js";
import { livetablesDatasource } from "../ag-grid/src/index";
import type { LivetablesDatasource } from "../ag-grid/src/index";

const ROW_PIXELS = 10;
const BUFFER_ROWS = 10;
const A_FRAME_MS = 50; // and the timer after it
const UNSEEN_MS = 1000;

/** A grid that shows some rows, with the methods that the datasource calls. */
class FakeGrid {
  rows = 100;
  top = 0;
  readonly shown = new Map<number, Row>();
  /** How often its number of rows was set. */
  counts = 0;
  readonly #listeners = new Set<() => void>();
  readonly #rowsInView = 20;

  get api(): GridApi<Row> {
    return this as unknown as GridApi<Row>;
  }

  scrollTo(row: number): void {
    this.top = row;
    for (const listener of this.#listeners) listener();
  }

  addEventListener(_: string, listener: () => void): void {
    this.#listeners.add(listener);
  }

  removeEventListener(_: string, listener: () => void): void {
    this.#listeners.delete(listener);
  }

  isGone = false;

  isDestroyed(): boolean {
    return this.isGone;
  }

  getFirstDisplayedRowIndex(): number {
    return Math.max(0, this.top - BUFFER_ROWS);
  }

  getLastDisplayedRowIndex(): number {
    return Math.min(this.rows, this.top + this.#rowsInView + BUFFER_ROWS) - 1;
  }

  getVerticalPixelRange(): { top: number; bottom: number } {
    return { top: this.top * ROW_PIXELS, bottom: (this.top + this.#rowsInView) * ROW_PIXELS };
  }

  getDisplayedRowCount(): number {
    return this.rows;
  }

  setRowCount(rows: number): void {
    this.rows = rows;
    this.counts += 1;
  }

  getDisplayedRowAtIndex(index: number): unknown {
    const keep = (row: Row): void => {
      this.shown.set(index, row);
    };
    const place = { rowTop: index * ROW_PIXELS, rowHeight: ROW_PIXELS };
    return { ...place, data: this.shown.get(index), updateData: keep, setData: keep };
  }
}

let sent: ClientFrame[];
let hub: TableHub;
let grid: FakeGrid;
let states: ViewState[];
let datasource: LivetablesDatasource;

beforeEach(() => {
  vi.useFakeTimers({
    toFake: ["requestAnimationFrame", "cancelAnimationFrame", "setTimeout", "clearTimeout", "performance"],
  });
  sent = [];
  const wire: Wire = {
    limits: WELCOME.limits,
    hasChecksums: false,
    now: () => 0,
    send: (text) => sent.push(JSON.parse(text) as ClientFrame),
  };
  hub = new TableHub(wire, (thrown) => {
    throw thrown;
  });
  hub.setHealth({ state: "live", why: "live" });
  grid = new FakeGrid();
  states = [];
  const onState = (state: ViewState): unknown => states.push(state);
  datasource = livetablesDatasource(hub, "users_ui", grid.api, { onState });
});

afterEach(() => {
  vi.runAllTimers();
  vi.useRealTimers();
});

/** Ask for a block as the grid does; what it is answered with. */
function asked(startRow: number, sortModel: IGetRowsParams["sortModel"] = []): ReturnType<typeof vi.fn> {
  const answer = vi.fn();
  const params = { startRow, endRow: startRow + 100, sortModel, filterModel: {}, context: null };
  datasource.getRows({ ...params, successCallback: answer, failCallback: vi.fn() } as unknown as IGetRowsParams);
  return answer;
}

function window(offset: number, count: number, more: object = {}): SubscriptionFrame {
  const rows = Array.from({ length: count }, (_, index) => [`row ${offset + index}`, 1]);
  const ids = rows.map((_, index) => offset + index);
  return { ...snapshot(rows), ids, offset, total: 1000, ...more };
}

/** Frames come, and what they are about is drawn. */
function take(...frames: (SubscriptionFrame | Record<string, unknown>)[]): void {
  for (const frame of frames) hub.take(frame as SubscriptionFrame);
  vi.advanceTimersByTime(A_FRAME_MS);
}

/** A patch that renames a row. */
function renamed(row: number, name: string, sequence: number): SubscriptionFrame {
  return patch({ total: 1000, updated: [[row, 0, name]] }, { sequence });
}

function name(row: number): unknown {
  return grid.shown.get(row)?.["name"];
}

/** Where the viewport was last sent to. */
function place(): unknown {
  const last = sent.at(-1);
  if (last?.type === "set") return [last.offset, last.size];
  return last?.type === "subscribe" ? [last.view.offset, last.view.size] : last;
}

describe("the state of the grid's rows", () => {
  it("is reported, and is there to be asked for", async () => {
    expect(datasource.state).toBeNull();
    asked(0);
    await settled();
    take(schema(), window(0, 100), patch({ total: 1000, hint: "refreshed less often" }, { sequence: 2 }));
    hub.setHealth({ state: "stale", why: "the pipeline is away" });
    hub.setHealth({ state: "refused", why: "the key is wrong" });
    expect(states.map(({ name, why }) => [name, why])).toEqual([
      ["loading", "waiting for the first rows"],
      ["live", ""],
      ["limited", "refreshed less often"],
      ["stale", "the pipeline is away"],
      ["refused", "the key is wrong"],
    ]);
    expect(datasource.state).toEqual(states.at(-1));
  });

  it("reports that there is no such table", async () => {
    asked(0);
    take(error("unknown_table", 0));
    await settled();
    expect(states).toEqual([{ name: "failed", why: "problem: unknown_table: fix it", hasWindow: false }]);
  });
});

describe("a window that the server has cut", () => {
  const hint = "only 5 rows are shown, as they are large";

  it("answers the blocks that the grid waits for with the rows that are here", () => {
    const answer = asked(0);
    take(schema(), window(0, 5, { hint }));
    const [block, total] = answer.mock.calls[0] as [Row[], number];
    expect([block.length, total, block[4]?.["name"], block[5]]).toEqual([100, 1000, "row 4", undefined]);
  });

  it("is followed from the first row that can be seen, and not from its block", () => {
    asked(0);
    take(schema(), window(0, 5, { hint }));
    expect(place()).toEqual([0, 20]);
    grid.scrollTo(43);
    expect(place()).toEqual([43, 20]);
    take(window(43, 5, { revision: 2, hint }));
    expect([...grid.shown.keys()]).toEqual([0, 1, 2, 3, 4, 43, 44, 45, 46, 47]);
  });

  it("answers a block that begins before it, each row at its place", () => {
    asked(0);
    take(schema(), window(0, 5, { hint }));
    grid.scrollTo(143);
    const answer = asked(100);
    take(window(143, 5, { revision: 2, hint }));
    const [block] = answer.mock.lastCall as [Row[]];
    expect([block[42], block[43]?.["name"], block[48]]).toEqual([undefined, "row 143", undefined]);
  });

  it("is of its selection: another one is looked at in whole blocks again", () => {
    asked(0);
    take(schema(), window(0, 5, { hint }));
    asked(0, [{ colId: "age", sort: "desc" }]);
    expect(place()).toEqual([0, 100]);
  });

  it("is not one that was whole when it was asked for, and waits to be drawn while more is asked for", () => {
    asked(0);
    take(schema(), window(0, 100));
    hub.take(renamed(0, "zero", 2));
    asked(100);
    vi.advanceTimersByTime(A_FRAME_MS);
    expect(name(0)).toBe("zero");
    grid.scrollTo(50);
    expect(place()).toEqual([0, 200]);
  });

  it("is not one that ends with the table", () => {
    const answer = asked(0);
    take(schema(), window(0, 5, { total: 5 }));
    expect(place()).toEqual([0, 100]);
    expect((answer.mock.lastCall as [Row[]])[0]).toHaveLength(5);
  });
});

describe("a grid that has no rows", () => {
  beforeEach(() => {
    asked(0);
    take(schema(), window(0, 0, { total: 0 }));
    expect([grid.rows, grid.getLastDisplayedRowIndex()]).toEqual([0, -1]);
  });

  it("takes other filters, until one has rows", () => {
    datasource.quickFilter("nobody");
    expect(sent.at(-1)).toMatchObject({ type: "set", revision: 1, quick: "nobody", offset: 0, size: 100 });
    datasource.quickFilter("ann");
    expect(datasource.view.quick).toBe("ann");
    take(window(0, 0, { total: 1, rows: [["Ann", 1]], ids: [7], revision: 2 }));
    expect([name(0), grid.rows]).toEqual(["Ann", 1]);
  });

  it("is back after it was hidden", () => {
    datasource.setVisible(false);
    datasource.setVisible(true);
    expect(sent.at(-1)).toMatchObject({ type: "subscribe", sub: 1, view: { offset: 0, size: 100 } });
    take(schema({ sub: 1 }), window(0, 0, { sub: 1, rows: [["Ann", 1]], ids: [7], total: 1 }));
    expect([name(0), grid.rows]).toEqual(["Ann", 1]);
  });

  it("and is gone looks at nothing any more", () => {
    grid.isGone = true;
    datasource.destroy();
    datasource.quickFilter("ann");
    datasource.setVisible(false);
    datasource.setVisible(true);
    expect(hub.viewports).toBe(0);
  });
});

describe("windows that come faster than the grid can be drawn", () => {
  it("are left out but for the newest, which is shown after a rest", () => {
    asked(0);
    take(schema(), window(0, 100));
    take(); // the rest after the first frame is over
    vi.spyOn(performance, "now").mockReturnValueOnce(0).mockReturnValue(200); // what it takes to draw and paint one
    try {
      take(renamed(0, "zero", 2));
      expect(name(0)).toBe("zero");
      take(renamed(0, "one", 3), renamed(0, "two", 4));
      expect(name(0)).toBe("zero");
      vi.advanceTimersByTime(200);
      expect(name(0)).toBe("two");
      hub.take(renamed(0, "three", 5));
      datasource.destroy();
      vi.runAllTimers();
      expect(name(0)).toBe("two");
    } finally {
      vi.restoreAllMocks();
    }
  });

  it("are drawn in one frame with those of other grids, though one of these cannot be", () => {
    const reported = vi.fn();
    vi.stubGlobal("reportError", reported);
    const frames = vi.spyOn(globalThis, "requestAnimationFrame");
    try {
      const [broken, other] = [new FakeGrid(), new FakeGrid()];
      [broken, other].forEach((each) => {
        const params = { startRow: 0, endRow: 100, sortModel: [], filterModel: {}, context: null };
        const source = livetablesDatasource(hub, "users_ui", each.api);
        source.getRows({ ...params, successCallback: vi.fn(), failCallback: vi.fn() } as unknown as IGetRowsParams);
      });
      asked(0);
      vi.spyOn(broken, "getDisplayedRowAtIndex").mockImplementation(() => {
        throw new Error("a mistake");
      });
      take(schema(), window(0, 100));
      expect(frames).toHaveBeenCalledTimes(1);
      expect([name(0), other.shown.get(0)?.["name"]]).toEqual(["row 0", "row 0"]);
      expect(reported).toHaveBeenCalledTimes(1);
    } finally {
      vi.restoreAllMocks();
      vi.unstubAllGlobals();
    }
  });
});

describe("what cannot be seen", () => {
  beforeEach(() => {
    asked(0);
    take(schema(), window(0, 100));
    vi.advanceTimersByTime(UNSEEN_MS);
    grid.counts = 0;
  });

  it("is drawn later, or when it is scrolled to", () => {
    take(renamed(0, "seen", 2), renamed(25, "below", 3));
    expect([name(0), name(25)]).toEqual(["seen", "row 25"]);
    vi.advanceTimersByTime(UNSEEN_MS);
    expect(name(25)).toBe("below");
    take(renamed(25, "again", 4));
    grid.scrollTo(6);
    expect(name(25)).toBe("again");
  });

  it("is the grid's length, which is set now and then, and not with each window", () => {
    take(patch({ total: 1001 }, { sequence: 2 }));
    take(patch({ total: 1002 }, { sequence: 3 }));
    expect([grid.rows, grid.counts]).toEqual([1000, 0]);
    vi.advanceTimersByTime(UNSEEN_MS);
    expect([grid.rows, grid.counts]).toEqual([1002, 1]);
  });

  it("is not the end of the rows when it is in view: that is set at once", () => {
    take(patch({ total: 25 }, { sequence: 2 }));
    expect(grid.rows).toBe(25);
    take(patch({ total: 26 }, { sequence: 3 }));
    expect(grid.rows).toBe(26);
  });

  it("is not the length of another generation: that is set at once", () => {
    take(window(0, 100, { generation: "g2", total: 2000 }));
    expect(grid.rows).toBe(2000);
  });

  it("is the whole grid while it is hidden: nothing is asked for, and it shows what is new when it is back", () => {
    datasource.setVisible(false);
    expect(sent.at(-1)).toEqual({ type: "unsubscribe", sub: 0 });
    datasource.quickFilter("ann");
    expect(hub.viewports).toBe(0);
    datasource.setVisible(true);
    expect(sent.at(-1)).toMatchObject({ type: "subscribe", sub: 1, view: { quick: "ann", offset: 0, size: 100 } });
    take(schema({ sub: 1 }), window(0, 100, { sub: 1, rows: [["Ann", 1]], ids: [7], total: 1 }));
    expect([name(0), grid.rows]).toEqual(["Ann", 1]);
  });
});
