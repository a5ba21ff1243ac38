/** How AG Grid looks and works on this page: only the modules that it needs, and the page's own colours. */
import {
  CellApiModule,
  CellStyleModule,
  ColumnApiModule,
  DateFilterModule,
  EventApiModule,
  GridStateModule,
  HighlightChangesModule,
  InfiniteRowModelModule,
  ModuleRegistry,
  NumberFilterModule,
  RenderApiModule,
  RowApiModule,
  ScrollApiModule,
  TextFilterModule,
  TooltipModule,
  themeQuartz,
} from "ag-grid-community";
import type { ColDef, GridOptions, ValueFormatterParams } from "ag-grid-community";
import { columnKind } from "@livetables/angular";
import type { Column, Row, Value } from "@livetables/angular";
import { columnDefinitions } from "@livetables/angular/ag-grid";

ModuleRegistry.registerModules([
  CellApiModule,
  CellStyleModule,
  ColumnApiModule,
  DateFilterModule,
  EventApiModule,
  GridStateModule,
  HighlightChangesModule,
  InfiniteRowModelModule,
  NumberFilterModule,
  RenderApiModule,
  RowApiModule,
  ScrollApiModule,
  TextFilterModule,
  TooltipModule,
]);

export const DETAILS_COLUMN = "details";

export const GRID_OPTIONS: GridOptions<Row> = {
  theme: themeQuartz.withParams({
    accentColor: "var(--accent)",
    backgroundColor: "var(--surface)",
    foregroundColor: "var(--text)",
    borderColor: "var(--line)",
    chromeBackgroundColor: "var(--surface-2)",
    headerTextColor: "var(--text-2)",
    oddRowBackgroundColor: "var(--surface)",
    fontFamily: "inherit",
    fontSize: 13,
    headerFontSize: 12,
    rowHeight: 28,
    headerHeight: 32,
    cellHorizontalPadding: 10,
    wrapperBorder: false,
    wrapperBorderRadius: 0,
    valueChangeValueHighlightBackgroundColor: "var(--flash)",
  }),
  rowModelType: "infinite",
  cacheBlockSize: 100,
  maxBlocksInCache: 20,
  rowBuffer: 10,
  animateRows: false,
  suppressCellFocus: false,
  multiSortKey: "ctrl",
  tooltipShowDelay: 600,
  cellFlashDuration: 400,
  cellFadeDuration: 600,
  defaultColDef: { sortable: true, resizable: true, minWidth: 70, flex: 1, enableCellChangeFlash: true },
};

/** A table's columns, newest rows first: that is where something happens. */
export function gridColumns(columns: readonly Column[]): ColDef<Row>[] {
  const newest = columns.findLast(({ type }) => columnKind(type).values === "time")?.name;
  const shown = columnDefinitions(columns).map((definition): ColDef<Row> => {
    const { values, width, grow } = columnKind(columns.find(({ name }) => name === definition.colId)?.type ?? "string");
    return {
      ...definition,
      minWidth: width + FILTER_WIDTH,
      flex: grow,
      valueFormatter: values === "time" ? timeText : plainText,
      tooltip: ({ value }: { value?: Value }) => value?.toString() ?? "",
      cellClassRules: { missing: ({ value, data }) => data !== undefined && value === null },
      ...(definition.colId === newest && { initialSort: "desc" }),
    };
  });
  return [DETAILS, ...shown];
}

/** Where nothing hovers, a header's filter always shows beside its name. */
const FILTER_WIDTH = matchMedia("(hover: hover)").matches ? 0 : 30;

const DETAILS: ColDef<Row> = {
  colId: DETAILS_COLUMN,
  headerName: "",
  headerTooltip: "Where a row is from: click, double-click or Enter",
  width: 30,
  minWidth: 30,
  flex: 0,
  sortable: false,
  resizable: false,
  suppressMovable: true,
  enableCellChangeFlash: false,
  cellClass: "details-cell",
  valueGetter: ({ data }) => (data ? "⋯" : ""),
  tooltip: () => "Where this row is from",
};

function plainText({ value, data }: ValueFormatterParams<Row, Value | undefined>): string {
  return value === null || value === undefined ? (data ? "–" : "") : String(value);
}

function timeText(params: ValueFormatterParams<Row, Value | undefined>): string {
  return typeof params.value === "string" ? shortTime(params.value) : plainText(params);
}

/** An ISO time as people read it, in their own time zone, to the millisecond; of today, the time alone. */
function shortTime(iso: string): string {
  const text = localTime(iso);
  return text.startsWith(dayOf(Date.now())) ? text.slice(DAY_CHARACTERS) : text;
}

const DAY_CHARACTERS = "2026-01-31 ".length;

/** The day of a time: when it is another, so are cells with times of today. */
export function dayOf(time: number): string {
  return localTime(time).slice(0, DAY_CHARACTERS);
}

/** The same with its day. */
export function localTime(given: string | number): string {
  const time = new Date(given);
  const digits = (value: number, count: number): string => String(value).padStart(count, "0");
  const day = [time.getFullYear(), digits(time.getMonth() + 1, 2), digits(time.getDate(), 2)].join("-");
  const clock = [time.getHours(), time.getMinutes(), time.getSeconds()].map((part) => digits(part, 2)).join(":");
  return `${day} ${clock}.${digits(time.getMilliseconds(), 3)}`;
}
