/** A table, a page at a time: rows in the page are live, and follow the table through every generation. */
import {
  ChangeDetectionStrategy,
  Component,
  DestroyRef,
  computed,
  effect,
  inject,
  input,
  numberAttribute,
  signal,
  untracked,
  viewChild,
} from "@angular/core";
import type { ElementRef } from "@angular/core";
import { PAGE_ROWS, columnKind } from "@livetables/client";
import type { Column, Row, Subscription, ViewOptions, ViewState, Window } from "@livetables/client";
import { LiveStateComponent } from "./live-state.component";
import { LiveTableService } from "./live-table.service";

/** What of a table to show: all columns, in the order of arrival, without filters, unless given. */
export type LiveTableView = Pick<ViewOptions, "columns" | "sort" | "filters" | "quick">;

@Component({
  selector: "live-table",
  imports: [LiveStateComponent],
  changeDetection: ChangeDetectionStrategy.OnPush,
  template: `
    <div class="bar" role="toolbar" [attr.aria-label]="'Pages of ' + tableName()">
      <button type="button" [disabled]="offset() === 0" (click)="first()">First</button>
      <button type="button" [disabled]="offset() === 0" (click)="previous()">Prev</button>
      <button type="button" [disabled]="!hasNext()" (click)="next()">Next</button>
      <button type="button" (click)="refresh()">Refresh</button>
      <span class="place"
        ><span aria-live="polite">{{ place().start }}</span
        >{{ place().rest }}</span
      >
    </div>
    <div class="body">
      <div
        class="rows"
        #scroller
        role="region"
        [attr.aria-label]="'Rows of ' + tableName()"
        tabindex="0"
        (scroll)="scrolled()"
      >
        <table [attr.aria-rowcount]="window()?.total">
          <thead>
            <tr>
              @for (column of columns(); track column.name) {
                <th scope="col" [class.number]="isNumber(column)">{{ column.name }}</th>
              }
            </tr>
          </thead>
          <tbody>
            @for (row of rows(); track row._row) {
              <tr>
                @for (column of columns(); track column.name) {
                  <td [class.number]="isNumber(column)">{{ row[column.name] }}</td>
                }
              </tr>
            }
          </tbody>
        </table>
      </div>
      <live-state [state]="state()" />
    </div>
  `,
  styles: `
    :host {
      display: flex;
      flex-direction: column;
      min-height: 0;
      font-variant-numeric: tabular-nums;
    }
    .bar {
      display: flex;
      flex-wrap: wrap;
      gap: 0.5rem;
      align-items: center;
      padding: 0.5rem;
    }
    .body {
      position: relative;
      display: flex;
      flex: 1;
      min-height: 3rem;
    }
    .rows {
      overflow: auto;
      flex: 1;
    }
    table {
      border-collapse: collapse;
      width: 100%;
    }
    th {
      position: sticky;
      top: 0;
      background: Canvas;
    }
    th,
    td {
      padding: 0.25rem 0.5rem;
      text-align: start;
      white-space: nowrap;
    }
    .number {
      text-align: end;
    }
  `,
})
export class LiveTableComponent {
  readonly tableName = input.required<string>();
  readonly pageSize = input(PAGE_ROWS, { transform: numberAttribute });
  readonly initialOffset = input(0, { transform: numberAttribute });
  readonly view = input<LiveTableView>({});

  /** Which rows are shown, in which order. */
  readonly #selection = computed(() => {
    const { sort = [], filters = [], quick = "" } = this.view();
    return JSON.stringify([this.tableName(), sort, filters, quick]);
  });
  /** Where the table is entered; another table or selection, or another initial offset, starts there again. */
  readonly #start = computed(() => ({ selection: this.#selection(), offset: this.initialOffset() }));
  /** The page that somebody turned to, and the start that it belongs to. */
  readonly #turned = signal<{ readonly start: object; readonly offset: number } | null>(null);
  /** The first row of the page. */
  protected readonly offset = computed(() => {
    const [start, turned] = [this.#start(), this.#turned()];
    return turned?.start === start ? turned.offset : start.offset;
  });
  protected readonly window = signal<Window | null>(null);
  protected readonly state = signal<ViewState | null>(null);
  protected readonly columns = computed(() => this.window()?.columns.filter(({ name }) => !name.startsWith("_")) ?? []);
  protected readonly rows = computed<readonly Row[]>(() => this.window()?.rows ?? []);
  /** Where the next page begins: a page that the server has cut is followed by the rows that are missing in it. */
  readonly #nextOffset = computed(() => {
    const window = this.window();
    const isHere = window !== null && window.offset === this.offset() && window.rows.length > 0;
    return this.offset() + (isHere ? Math.min(window.rows.length, this.pageSize()) : this.pageSize());
  });
  protected readonly hasNext = computed(() => this.#nextOffset() < (this.window()?.total ?? 0));
  /** Where it is. Screen readers announce the start alone: the rest changes with each record. */
  protected readonly place = computed(() => {
    const window = this.window();
    if (!window) return { start: "", rest: "" };
    const { offset, rows, total } = window;
    if (rows.length === 0) return { start: "no rows here", rest: `, ${count(total)} in all` };
    return { start: `rows ${count(offset + 1)}`, rest: ` to ${count(offset + rows.length)} of ${count(total)}` };
  });

  readonly #service = inject(LiveTableService);
  private readonly scroller = viewChild.required<ElementRef<HTMLElement>>("scroller");
  #subscription: Subscription | null = null;

  constructor() {
    effect(() => {
      const table = this.tableName();
      untracked(() => {
        this.#subscribe(table);
      });
    });
    effect(() => {
      const page = this.#page();
      untracked(() => this.#subscription?.look(page));
    });
    inject(DestroyRef).onDestroy(() => this.#subscription?.unsubscribe());
  }

  protected first(): void {
    this.#turnTo(0);
  }

  protected previous(): void {
    this.#turnTo(Math.max(0, this.offset() - this.pageSize()));
  }

  protected next(): void {
    if (this.hasNext()) this.#turnTo(this.#nextOffset());
  }

  protected refresh(): void {
    this.#subscription?.resync();
  }

  /** At the end of the page the next one comes, once its predecessor has been shown. */
  protected scrolled(): void {
    const { scrollTop, clientHeight, scrollHeight } = this.scroller().nativeElement;
    const isAtEnd = scrollTop > 0 && scrollTop + clientHeight >= scrollHeight - 1;
    if (isAtEnd && this.window()?.offset === this.offset()) this.next();
  }

  protected isNumber({ type }: Column): boolean {
    return columnKind(type).values === "number";
  }

  /** With nothing left out: that would stay as it is. */
  readonly #page = (): ViewOptions => {
    const { columns = null, sort = [], filters = [], quick = "" } = this.view();
    return { columns, sort, filters, quick, offset: this.offset(), size: this.pageSize() };
  };

  #subscribe(table: string): void {
    this.#subscription?.unsubscribe();
    this.window.set(null);
    this.state.set(null);
    this.#subscription = this.#service.hub.subscribe(table, this.#page(), {
      rows: (window) => {
        this.window.set(window);
      },
      state: (state) => {
        this.state.set(state);
      },
    });
  }

  #turnTo(offset: number): void {
    this.#turned.set({ start: this.#start(), offset });
    this.scroller().nativeElement.scrollTop = 0;
  }
}

function count(rows: number): string {
  return rows.toLocaleString("en");
}
