/** One table of the page: the whole of it scrolls, sorts and filters, and the rows in view are live. */
import {
  ChangeDetectionStrategy,
  Component,
  DestroyRef,
  ElementRef,
  computed,
  effect,
  inject,
  input,
  linkedSignal,
  output,
  signal,
  untracked,
} from "@angular/core";
import { AgGridAngular } from "ag-grid-angular";
import type {
  CellClickedEvent,
  CellDoubleClickedEvent,
  CellKeyDownEvent,
  FullWidthCellKeyDownEvent,
  GridApi,
} from "ag-grid-community";
import { LiveStateComponent, LiveTableComponent, LiveTableService } from "@livetables/angular";
import type { Column, LiveTableView, Row, ViewState } from "@livetables/angular";
import { livetablesDatasource } from "@livetables/angular/ag-grid";
import type { LivetablesDatasource } from "@livetables/angular/ag-grid";
import { Clock } from "../parts/clock";
import { copy } from "../parts/copy";
import { count } from "../parts/figures";
import { COUNT } from "./count";
import { saveCsv } from "./csv";
import { DETAILS_COLUMN, GRID_OPTIONS, dayOf, gridColumns } from "./grid";

const TYPING_MS = 150;
const NOTICE_MS = 2500;

@Component({
  selector: "lt-table-panel",
  imports: [AgGridAngular, LiveStateComponent, LiveTableComponent],
  changeDetection: ChangeDetectionStrategy.OnPush,
  host: { "[attr.data-testid]": "'panel-' + shownTable()", role: "region", "[attr.aria-label]": "shownTable()" },
  template: `
    <header>
      <select aria-label="Table" class="table" (change)="choose($event)">
        @for (name of choices(); track name) {
          <option [value]="name" [selected]="name === shownTable()">{{ name }}</option>
        }
      </select>
      <span class="count">
        <span data-testid="total">{{ count(total()) }} rows</span>
        <span data-testid="shown" [class.some]="found()">{{ found() }}</span>
      </span>
      <input
        type="search"
        aria-label="Quick filter"
        placeholder="Find"
        title="Find in all columns, over the whole table"
        autocomplete="off"
        spellcheck="false"
        [value]="quick()"
        (input)="typed($event)"
      />
      <span class="tools">
        <button type="button" [attr.popovertarget]="popupId" [style.anchor-name]="'--' + popupId">Columns</button>
        <button type="button" [disabled]="isExporting() || !isKnown()" (click)="exportCsv()">
          {{ isExporting() ? "…" : "CSV" }}
        </button>
      </span>
      <div popover class="popup" [id]="popupId" [style.position-anchor]="'--' + popupId" aria-label="Columns to show">
        @for (column of columns(); track column.name) {
          <label>
            <input type="checkbox" [checked]="!hidden().has(column.name)" (change)="toggle(column.name)" />
            {{ column.name }}
          </label>
        }
        <label class="other">
          <input type="checkbox" [checked]="isPaged()" (change)="isPaged.set(!isPaged())" />
          page by page
        </label>
      </div>
    </header>
    @if (notice()) {
      <p class="notice" role="status">{{ notice() }}</p>
    }
    @if (isPaged()) {
      <live-table [tableName]="shownTable()" [view]="pages()" />
    }
    <!-- Another table is another grid. -->
    @for (table of isKnown() && !isPaged() ? [shownTable()] : []; track table) {
      <ag-grid-angular
        [gridOptions]="gridOptions"
        [columnDefs]="definitions()"
        (gridReady)="begin($event.api, table)"
        (cellClicked)="clicked($event)"
        (cellDoubleClicked)="detailed($event)"
        (cellKeyDown)="pressed($event)"
      />
    }
    @if (!isKnown()) {
      <div class="waiting" aria-hidden="true"></div>
    }
    @if (!isPaged()) {
      <live-state [state]="state()" />
    }
  `,
  styles: `
    :host {
      display: flex;
      flex-direction: column;
      min-width: 0;
      min-height: 0;
      position: relative;
    }
    header {
      display: flex;
      flex-wrap: wrap;
      align-items: center;
      gap: 0.3rem 0.5rem;
      padding: 0.3rem 0.5rem;
      min-width: 0;
    }
    button,
    input[type="search"] {
      padding: 0.15rem 0.5rem;
      font-size: 0.8rem;
      min-height: 1.6rem;
    }
    .table {
      font-weight: 600;
      border: none;
      background: transparent;
      color: inherit;
      padding-inline: 0;
      field-sizing: content;
      flex: none;
      max-width: 12rem;
    }
    .count {
      color: var(--text-2);
      font-variant-numeric: tabular-nums;
      white-space: nowrap;
    }
    .some {
      color: var(--accent);
      margin-inline-start: 0.4rem;
    }
    input[type="search"] {
      flex: 1 1 3rem;
      min-width: 3rem;
      max-width: 18rem;
      margin-inline-start: auto;
    }
    .tools {
      display: flex;
      gap: 0.25rem;
    }
    .popup {
      inset: auto;
      position-area: bottom span-left;
      margin: 4px 0;
      padding: 0.5rem 0.75rem;
      background: var(--surface);
      color: var(--text);
      border: 1px solid var(--line);
      border-radius: 6px;
      box-shadow: 0 4px 16px rgb(0 0 0 / 20%);
      max-height: 60vh;
      overflow: auto;
    }
    .popup label {
      display: flex;
      gap: 0.5rem;
      padding: 0.15rem 0;
      white-space: nowrap;
    }
    .other {
      border-top: 1px solid var(--line);
      margin-top: 0.3rem;
    }
    ag-grid-angular,
    live-table,
    .waiting {
      flex: 1;
      min-height: 0;
    }
    .waiting {
      background: repeating-linear-gradient(var(--surface) 0 20px, var(--surface-2) 20px 28px);
    }
    .notice {
      position: absolute;
      inset: auto auto 0.6rem 50%;
      transform: translateX(-50%);
      margin: 0;
      padding: 0.3rem 0.8rem;
      border-radius: 999px;
      background: var(--text);
      color: var(--surface);
      z-index: 2;
      max-width: 90%;
    }
  `,
})
export class TablePanel {
  readonly table = input.required<string>();
  /** Somebody wants to know where a row is from. */
  readonly details = output<{ table: string; row: Row }>();

  protected readonly gridOptions = GRID_OPTIONS;
  protected readonly count = count;
  protected readonly popupId = `columns-${String(popups++)}`;
  protected readonly shownTable = linkedSignal(() => this.table());
  /** What is in the box, and what of it is looked for: all, once nobody is typing. */
  protected readonly quick = linkedSignal({ source: this.shownTable, computation: () => "" });
  readonly #sought = linkedSignal({ source: this.shownTable, computation: () => "" });
  protected readonly hidden = linkedSignal({ source: this.shownTable, computation: () => new Set<string>() });
  protected readonly isPaged = signal(false);
  protected readonly notice = signal("");
  protected readonly isExporting = signal(false);

  readonly #service = inject(LiveTableService);
  /** Columns and number of all rows, whatever is filtered. */
  readonly #whole = this.#service.windowOf(this.shownTable, () => COUNT);
  readonly #wholeState = this.#service.stateOf(this.shownTable, () => COUNT);
  /** Another table is another grid, and while it is shown page by page there is none. */
  readonly #whichGrid = computed(() => ({ table: this.shownTable(), isPaged: this.isPaged() }));
  readonly #grid = linkedSignal<unknown, Grid | null>({ source: this.#whichGrid, computation: () => null });
  /** Null until the grid has asked for rows. */
  readonly #gridState = linkedSignal<unknown, ViewState | null>({ source: this.#whichGrid, computation: () => null });
  /** How many rows pass the grid's filters, if it has any. */
  protected readonly found = linkedSignal<unknown, string>({ source: this.#whichGrid, computation: () => "" });
  protected readonly state = computed(() => this.#gridState() ?? this.#wholeState());
  readonly #allColumns = computed<readonly Column[]>(() => this.#whole()?.columns ?? []);
  protected readonly isKnown = computed(() => this.#whole()?.table === this.shownTable());
  protected readonly total = computed(() => this.#whole()?.total ?? 0);
  protected readonly columns = computed(() => this.#allColumns().filter(({ name }) => !name.startsWith("_")));
  protected readonly definitions = computed(() => gridColumns(this.#allColumns()));
  readonly #shownColumns = computed(() =>
    this.columns()
      .map(({ name }) => name)
      .filter((name) => !this.hidden().has(name)),
  );
  /** Page by page: the same columns, and the same text to be found. */
  protected readonly pages = computed<LiveTableView>(() => ({
    columns: this.hidden().size > 0 ? this.#shownColumns() : null,
    quick: this.#sought(),
  }));
  readonly #clock = inject(Clock);
  readonly #today = computed(() => dayOf(this.#clock.now()));
  protected readonly choices = computed(() => {
    this.#service.healthNow(); // every login has the list of tables
    return [...new Set([this.shownTable(), ...this.#service.tables])];
  });
  /** Not, where there is room for one thing at a time, and it is another one. */
  #isVisible = true;
  #typing: ReturnType<typeof setTimeout> | undefined;
  #noticing: ReturnType<typeof setTimeout> | undefined;

  constructor() {
    effect(() => {
      const [grid, hidden, shown] = [this.#grid(), this.hidden(), untracked(this.#shownColumns)];
      grid?.api.setColumnsVisible([...hidden], false);
      grid?.api.setColumnsVisible(shown, true);
    });
    effect(() => {
      const [grid, text] = [this.#grid(), this.#sought()];
      untracked(() => grid?.datasource.quickFilter(text));
    });
    effect(() => {
      const [grid] = [this.#grid(), this.#today()];
      grid?.api.refreshCells({ force: true, suppressFlash: true });
    });
    const seen = new IntersectionObserver((entries) => {
      this.#isVisible = entries.at(-1)?.isIntersecting ?? true;
      this.#grid()?.datasource.setVisible(this.#isVisible);
    });
    seen.observe(inject<ElementRef<HTMLElement>>(ElementRef).nativeElement);
    inject(DestroyRef).onDestroy(() => {
      seen.disconnect();
    });
  }

  protected choose(event: Event): void {
    this.shownTable.set((event.target as HTMLSelectElement).value);
  }

  protected begin(api: GridApi<Row>, table: string): void {
    const datasource = livetablesDatasource(this.#service.hub, table, api, {
      quick: this.#sought(),
      onWindow: ({ total }) => {
        const { filters, quick } = datasource.view;
        this.found.set(filters?.length || quick ? `${count(total)} found` : "");
      },
      onState: (state) => {
        this.#gridState.set(state);
      },
    });
    datasource.setVisible(this.#isVisible);
    api.setGridOption("datasource", datasource);
    this.#grid.set({ api, datasource });
  }

  protected typed(event: Event): void {
    this.quick.set((event.target as HTMLInputElement).value);
    clearTimeout(this.#typing);
    this.#typing = setTimeout(() => {
      this.#sought.set(this.quick().trim());
    }, TYPING_MS);
  }

  protected toggle(column: string): void {
    this.hidden.update(
      (hidden) => new Set(hidden.has(column) ? [...hidden].filter((each) => each !== column) : [...hidden, column]),
    );
  }

  protected clicked(event: CellClickedEvent<Row>): void {
    if (event.column.getColId() === DETAILS_COLUMN) this.#showDetails(event.data);
  }

  protected detailed(event: CellDoubleClickedEvent<Row>): void {
    this.#showDetails(event.data);
  }

  protected pressed(event: CellKeyDownEvent<Row> | FullWidthCellKeyDownEvent<Row>): void {
    const key = event.event as KeyboardEvent;
    if (key.key === "Enter") this.#showDetails(event.data);
    if (key.key.toLowerCase() !== "c" || !(key.ctrlKey || key.metaKey) || !("column" in event) || !event.data) return;
    const names = this.columns().map(({ name }) => name);
    const row = event.data;
    const text = key.shiftKey
      ? names.map((name) => textOf(row, name)).join("\t")
      : textOf(row, event.column.getColId());
    void copy(text).then(() => {
      this.#notify(key.shiftKey ? "row copied" : "cell copied; Ctrl+Shift+C copies the row");
    });
  }

  protected async exportCsv(): Promise<void> {
    this.isExporting.set(true);
    try {
      await saveCsv(this.#service, this.shownTable(), this.#exported());
    } catch (error) {
      this.#notify(error instanceof Error ? error.message : String(error));
    } finally {
      this.isExporting.set(false);
    }
  }

  /** All rows that pass the filters, in the order shown, with the columns shown. */
  #exported(): LiveTableView {
    const grid = this.#grid();
    if (!grid) return { ...this.pages(), columns: this.#shownColumns() };
    const columns = grid.api.getAllDisplayedColumns().map((column) => column.getColId());
    return { ...grid.datasource.view, columns: columns.filter((name) => name !== DETAILS_COLUMN) };
  }

  #showDetails(row: Row | undefined): void {
    if (row) this.details.emit({ table: this.shownTable(), row });
  }

  #notify(text: string): void {
    this.notice.set(text);
    clearTimeout(this.#noticing);
    this.#noticing = setTimeout(() => {
      this.notice.set("");
    }, NOTICE_MS);
  }
}

interface Grid {
  readonly api: GridApi<Row>;
  readonly datasource: LivetablesDatasource;
}

let popups = 0;

function textOf(row: Row, column: string): string {
  return String(row[column] ?? "");
}
