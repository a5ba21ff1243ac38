import { ChangeDetectionStrategy, Component, computed, inject } from "@angular/core";
import { ControlForm } from "../control/control-form";
import { DeadLettersPanel } from "../tables/dead-letters-panel";
import { GenerationsPanel } from "../control/generations-panel";
import { Layout } from "./layout";
import { PlotsPanel } from "../plots/plots-panel";
import { Session } from "./session";
import { StatusPanel } from "../status/status-panel";
import { Tabs } from "../parts/tabs";
import type { Tab } from "../parts/tabs";

const CONTROL = "control";
const SIDE_TABS = [
  { id: "status", name: "Status" },
  { id: CONTROL, name: "Control" },
  { id: "generations", name: "Generations" },
  { id: "dead-letters", name: "Dead letters" },
  { id: "plots", name: "Plots" },
] as const;

/** The tabs of the side panel. A viewer has no control form. */
export function sideTabs(mayControl: boolean): readonly Tab[] {
  return SIDE_TABS.filter(({ id }) => mayControl || id !== CONTROL);
}

/** Everything about the tables that is not in them. */
@Component({
  selector: "lt-side-panel",
  imports: [ControlForm, DeadLettersPanel, GenerationsPanel, PlotsPanel, StatusPanel, Tabs],
  changeDetection: ChangeDetectionStrategy.OnPush,
  template: `
    @if (!layout.isNarrow()) {
      <lt-tabs
        label="About the tables"
        [tabs]="tabs()"
        [chosen]="chosen()"
        (chosenChange)="layout.sideTab.set($event)"
      />
    }
    <div
      class="content"
      role="tabpanel"
      tabindex="0"
      [id]="'tabpanel-' + chosen()"
      [attr.aria-labelledby]="'tab-' + chosen()"
    >
      @switch (chosen()) {
        @case ("control") {
          <lt-control-form />
        }
        @case ("generations") {
          <lt-generations-panel />
        }
        @case ("dead-letters") {
          <lt-dead-letters-panel />
        }
        @case ("plots") {
          <lt-plots-panel />
        }
        @default {
          <lt-status-panel />
        }
      }
    </div>
  `,
  styles: `
    :host {
      display: flex;
      flex-direction: column;
      min-width: 0;
      min-height: 0;
    }
    .content {
      flex: 1;
      min-height: 0;
      padding: 12px;
      overflow-y: auto;
      scrollbar-gutter: stable;
      scrollbar-width: thin;
    }
    .content:focus-visible {
      outline-offset: -2px;
    }
  `,
})
export class SidePanel {
  protected readonly layout = inject(Layout);
  readonly #session = inject(Session);
  protected readonly tabs = computed(() => sideTabs(this.#session.mayControl()));
  /** The tab that was chosen last, if it is there. */
  protected readonly chosen = computed(() => {
    const tab = this.layout.sideTab();
    return this.tabs().some(({ id }) => id === tab) ? tab : "status";
  });
}
