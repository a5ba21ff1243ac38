/** The state of a grid's rows while they are not live: shown over the grid, so that nothing moves. */
import { ChangeDetectionStrategy, Component, computed, input } from "@angular/core";
import type { ViewState } from "@livetables/client";

/** Lies over the nearest ancestor that is positioned: at its foot, or in its middle while it has no rows. */
@Component({
  selector: "live-state",
  changeDetection: ChangeDetectionStrategy.OnPush,
  host: {
    role: "status",
    "aria-live": "polite",
    "[attr.data-state]": "state()?.name",
    "[class.blank]": "!state()?.hasWindow",
  },
  template: `
    @if (shown(); as shown) {
      <p>
        <strong>{{ shown.word }}</strong
        >{{ shown.why && ": " + shown.why }}
      </p>
    }
  `,
  styles: `
    :host {
      position: absolute;
      inset: auto 0 0;
      z-index: 10; /* above the grid's scrollbars */
      display: grid;
      place-items: center;
      padding: 0.3rem 0.5rem;
      pointer-events: none;
    }
    :host(.blank) {
      inset: 0;
    }
    p {
      margin: 0;
      max-width: 100%;
      padding: 0.1rem 0.6rem;
      border: 1px solid currentColor;
      border-radius: 0.4rem;
      background: var(--live-state-background, Canvas);
      color: var(--live-state-color, CanvasText);
      font-size: 0.92em;
      overflow-wrap: anywhere;
      animation: appear 0s 0.5s backwards; /* what is over sooner than anybody can read is not shown */
    }
    @keyframes appear {
      from {
        visibility: hidden;
      }
    }
  `,
})
export class LiveStateComponent {
  readonly state = input.required<ViewState | null>();

  protected readonly shown = computed(() => {
    const state = this.state();
    return state && state.name !== "live" ? { word: WORDS[state.name], why: state.why } : null;
  });
}

const WORDS = {
  limited: "Limited",
  stale: "Not current",
  connecting: "Connecting",
  loading: "Loading",
  reconnecting: "Reconnecting",
  refused: "Refused",
  failed: "Cannot be shown",
  closed: "Closed",
} satisfies Record<Exclude<ViewState["name"], "live">, string>;
