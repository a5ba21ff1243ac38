import { ChangeDetectionStrategy, Component, ElementRef, inject, input, model } from "@angular/core";

export interface Tab {
  readonly id: string;
  readonly name: string;
}

/** A row of tabs, of which one is chosen; arrow keys choose its neighbours. */
@Component({
  selector: "lt-tabs",
  changeDetection: ChangeDetectionStrategy.OnPush,
  template: `
    <div role="tablist" [attr.aria-label]="label()">
      @for (tab of tabs(); track tab.id) {
        <button
          type="button"
          role="tab"
          [id]="'tab-' + tab.id"
          [attr.aria-selected]="tab.id === chosen()"
          [attr.aria-controls]="tab.id === chosen() ? 'tabpanel-' + tab.id : null"
          [tabindex]="tab.id === chosen() ? 0 : -1"
          (click)="chosen.set(tab.id)"
          (keydown)="press($event)"
        >
          {{ tab.name }}
        </button>
      }
    </div>
  `,
  styles: `
    div {
      display: flex;
      overflow-x: auto;
      scrollbar-width: none;
      border-bottom: 1px solid var(--line);
    }
    button {
      flex: 1 0 auto;
      padding: 8px 6px 7px;
      border: 0;
      border-bottom: 2px solid transparent;
      border-radius: 0;
      background: none;
      color: var(--text-2);
      font-size: 12.5px;
      white-space: nowrap;
    }
    button:hover {
      color: var(--text);
    }
    button[aria-selected="true"] {
      border-bottom-color: var(--accent);
      color: var(--text);
      font-weight: 600;
    }
    button:focus-visible {
      outline-offset: -2px;
    }
  `,
})
export class Tabs {
  readonly label = input.required<string>();
  readonly tabs = input.required<readonly Tab[]>();
  readonly chosen = model.required<string>();

  readonly #host = inject<ElementRef<HTMLElement>>(ElementRef).nativeElement;

  protected press(event: KeyboardEvent): void {
    const tabs = this.tabs();
    const place = tabs.findIndex(({ id }) => id === this.chosen());
    const places: Readonly<Record<string, number>> = {
      ArrowLeft: (place + tabs.length - 1) % tabs.length,
      ArrowRight: (place + 1) % tabs.length,
      Home: 0,
      End: tabs.length - 1,
    };
    const next = places[event.key];
    const tab = next === undefined ? undefined : tabs[next];
    if (next === undefined || !tab) return;
    event.preventDefault();
    this.chosen.set(tab.id);
    this.#host.querySelectorAll<HTMLElement>("[role=tab]")[next]?.focus();
  }
}
