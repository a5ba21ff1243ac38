import {
  ChangeDetectionStrategy,
  Component,
  computed,
  effect,
  inject,
  linkedSignal,
  signal,
  viewChild,
} from "@angular/core";
import type { ElementRef } from "@angular/core";
import { LiveTableService } from "@livetables/angular";
import type { Row } from "@livetables/angular";
import { Clock } from "../parts/clock";
import { duration } from "../parts/figures";
import { LatencyView } from "../status/latency";
import { FIRST_LAYOUT, Layout } from "./layout";
import { Login } from "./login";
import { PlotData } from "../plots/plot-data";
import { RecordDetails } from "../tables/record-details";
import { Session } from "./session";
import { SidePanel, sideTabs } from "./side-panel";
import { Splitter } from "../parts/splitter";
import { orchestratorStatus, sentence } from "../status/status-rows";
import { TablePanel } from "../tables/table-panel";
import { TablesShown } from "../tables/tables-shown";
import { Tabs } from "../parts/tabs";
import { Theme } from "../parts/theme";

interface Details {
  readonly table: string;
  readonly row: Row;
}

const BANNER_AFTER_MS = 1000; // what is over before it can be read is not shown

/** The page: what is joined now, the tables, and beside them everything about them. */
@Component({
  selector: "lt-app",
  imports: [LatencyView, Login, RecordDetails, SidePanel, Splitter, TablePanel, Tabs],
  changeDetection: ChangeDetectionStrategy.OnPush,
  templateUrl: "./app.html",
  styleUrl: "./app.css",
  host: {
    "(document:keydown)": "press($event)",
    "(focusin)": "focused($event)",
  },
})
export class App {
  readonly #service = inject(LiveTableService);
  readonly #clock = inject(Clock);
  protected readonly session = inject(Session);
  protected readonly theme = inject(Theme);
  protected readonly layout = inject(Layout);
  protected readonly firstLayout = FIRST_LAYOUT;
  protected readonly tables = inject(TablesShown).names;
  protected readonly health = this.#service.healthNow;
  protected readonly details = signal<Details | null>(null);

  // Columns and rows of the tables' grid. Two of three tables share the first row.
  protected readonly columns = computed(() => split(this.layout.leftPercent()));
  protected readonly rows = computed(() => (this.tables().length === 1 ? "1fr" : split(this.layout.topPercent())));
  protected readonly tabs = computed(() => [
    ...this.tables().map((table) => ({ id: tabOf(table), name: table })),
    ...sideTabs(this.session.mayControl()),
  ]);
  /** Where there is room for one thing only: the tab of a table, or null for what the side panel shows. */
  protected readonly tableTab = linkedSignal<readonly string[], string | null>({
    source: this.tables,
    computation: (tables) => tabOf(tables.at(-1) ?? ""),
  });

  protected readonly joined = computed(() => {
    const window = this.#status();
    const row = window?.rows[0];
    if (!row) return "Kafka topics as live tables, joined while you watch";
    const generation = row["generation"] === null ? "" : `, generation ${String(row["generation"])}`;
    return sentence(row, window.columns) + generation;
  });
  protected readonly banner = computed(() => {
    const { state, why } = this.health();
    const lastedMs = this.#clock.now() - this.#since();
    const hasProblem = (state === "stale" || state === "reconnecting") && this.session.isLoggedIn();
    return hasProblem && lastedMs >= BANNER_AFTER_MS ? { state, why, lasted: duration(lastedMs) } : null;
  });

  readonly #status = orchestratorStatus();
  /** Since when the health is what it is. */
  readonly #since = linkedSignal({ source: () => this.health().state, computation: () => Date.now() });
  private readonly drawer = viewChild<ElementRef<HTMLElement>>("drawer");
  #lastPanel: Element | null = null;
  #lastFocus: HTMLElement | null = null;

  constructor() {
    inject(PlotData); // measures from now on
    effect(() => {
      this.drawer()?.nativeElement.focus();
    });
  }

  protected tabOf(table: string): string {
    return tabOf(table);
  }

  protected chooseTab(id: string): void {
    const isTable = this.tables().some((table) => tabOf(table) === id);
    this.tableTab.set(isTable ? id : null);
    if (!isTable) this.layout.sideTab.set(id);
  }

  protected showDetails(details: Details): void {
    if (!this.details() && document.activeElement instanceof HTMLElement) this.#lastFocus = document.activeElement;
    this.details.set(details);
  }

  protected hideDetails(): void {
    if (!this.details()) return;
    this.details.set(null);
    this.#lastFocus?.focus();
  }

  protected logOut(): void {
    this.details.set(null);
    this.session.logOut();
  }

  protected focused({ target }: FocusEvent): void {
    const panel = (target as Element).closest("lt-table-panel");
    if (panel) this.#lastPanel = panel;
  }

  protected press(event: KeyboardEvent): void {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") this.hideDetails();
    if (event.key !== "/" || (event.target as Element).closest("input, textarea, select, dialog")) return;
    const panel = this.#lastPanel?.isConnected ? this.#lastPanel : document.querySelector(".last lt-table-panel");
    const quick = panel?.querySelector<HTMLInputElement>("input[type=search]");
    if (!quick) return;
    event.preventDefault();
    quick.focus();
    quick.select();
  }
}

function tabOf(table: string): string {
  return `table-${table}`;
}

function split(percent: number): string {
  return `minmax(0, ${percent}fr) 8px minmax(0, ${100 - percent}fr)`;
}
