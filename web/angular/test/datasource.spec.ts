/**
 * The datasource beside a grid that only keeps rows: what AG Grid draws depends on sizes, which there are none of without a
 * browser. e2e/ has the real grid.
 */
import type { GridApi, IGetRowsParams } from "ag-grid-community";
import { TableHub } from "@livetables/client";
import type { Row, ViewState, Wire } from "@livetables/client";
import { beforeEach, describe, expect, it, vi } from "vitest";
import { settled } from "../../core/test/support/fake.js";
import { error, patch, schema, snapshot } from "../../core/test/support/frames.js";
import type { ClientFrame, SubscriptionFrame } from "../../core/src/protocol.js";
import { livetablesDatasource } from "../ag-grid/src/index";
import type { LivetablesDatasource } from "../ag-grid/src/index";

const ROW_PIXELS = 10;
const BUFFER_ROWS = 10;

/** A grid that shows some rows, with the methods that the datasource calls. */
class FakeGrid {
  rows = 100;
  top = 0;
  readonly shown = new Map<number, Row>();
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

  isDestroyed(): boolean {
    return false;
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
  sent = [];
  const wire: Wire = {
    frameBytesMax: 65_536,
    windowRowsMax: 10_001,
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

function take(...frames: (SubscriptionFrame | Record<string, unknown>)[]): void {
  for (const frame of frames) hub.take(frame as SubscriptionFrame);
}

/** Where the viewport was last sent to. */
function place(): unknown {
  const last = sent.at(-1);
  if (last?.type === "set") return [last.offset, last.size];
  return last?.type === "subscribe" ? [last.view.offset, last.view.size] : last;
}

describe("the state of the grid's rows", () => {
  it("is told, and is there to be asked for", async () => {
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

  it("says that there is no such table", async () => {
    asked(0);
    take(error("unknown_table", 0));
    await settled();
    expect(states).toEqual([{ name: "failed", why: "problem: unknown_table: mend it", hasWindow: false }]);
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

  it("is not one that ends with the table", () => {
    const answer = asked(0);
    take(schema(), window(0, 5, { total: 5 }));
    expect(place()).toEqual([0, 100]);
    expect((answer.mock.lastCall as [Row[]])[0]).toHaveLength(5);
  });
});

describe("windows that come faster than the grid can be drawn", () => {
  it("are left out but for the newest, which is shown after a rest", () => {
    vi.useFakeTimers();
    let clock = 0;
    vi.spyOn(performance, "now").mockImplementation(() => (clock += 20)); // to show one takes 20 ms
    try {
      asked(0);
      const renamed = (name: string, sequence: number): SubscriptionFrame => ({
        ...patch({ total: 1000, updated: [[0, 0, name]] }, { sequence }),
      });
      take(schema(), window(0, 100));
      take(renamed("one", 2), renamed("two", 3));
      expect(grid.shown.get(0)?.["name"]).toBe("row 0");
      vi.runOnlyPendingTimers();
      expect(grid.shown.get(0)?.["name"]).toBe("two");
      take(renamed("three", 4));
      datasource.destroy();
      vi.runAllTimers();
      expect(grid.shown.get(0)?.["name"]).toBe("two");
    } finally {
      vi.restoreAllMocks();
      vi.useRealTimers();
    }
  });
});
