import { ChangeDetectionStrategy, Component, inject } from "@angular/core";
import { ControlForm } from "./control-form";
import { DeadLettersPanel } from "./dead-letters-panel";
import { GenerationsPanel } from "./generations-panel";
import { Layout } from "./layout";
import { PlotsPanel } from "./plots-panel";
import { StatusPanel } from "./status-panel";
import { Tabs } from "./tabs";

export const SIDE_TABS = [
  { id: "status", name: "Status" },
  { id: "control", name: "Control" },
  { id: "generations", name: "Generations" },
  { id: "dead-letters", name: "Dead letters" },
  { id: "plots", name: "Plots" },
] as const;

/** Everything about the tables that is not in them. */
@Component({
  selector: "lt-side-panel",
  imports: [ControlForm, DeadLettersPanel, GenerationsPanel, PlotsPanel, StatusPanel, Tabs],
  changeDetection: ChangeDetectionStrategy.OnPush,
  template: `
    @if (!layout.isNarrow()) {
      <lt-tabs label="About the tables" [tabs]="tabs" [(chosen)]="layout.sideTab" />
    }
    <div
      class="content"
      role="tabpanel"
      tabindex="0"
      [id]="'tabpanel-' + layout.sideTab()"
      [attr.aria-labelledby]="'tab-' + layout.sideTab()"
    >
      @switch (layout.sideTab()) {
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
  protected readonly tabs = SIDE_TABS;
}
