/** How long a record takes from Kafka to this page, and on a click where on the way. */
import { ChangeDetectionStrategy, Component, computed, inject } from "@angular/core";
import { LiveTableService, PHASES } from "@livetables/angular";
import type { LatencyPhase } from "@livetables/angular";
import { Clock } from "../parts/clock";
import { count, milliseconds } from "../parts/figures";

const CLOCKS_DIFFER_MS = 10;

const NAMES: Readonly<Record<LatencyPhase, string>> = {
  spark: "from Kafka out of Spark",
  applied: "until the server has applied it",
  sent: "until it is sent",
  here: "until it is here",
};

@Component({
  selector: "lt-latency",
  changeDetection: ChangeDetectionStrategy.OnPush,
  template: `
    <button
      type="button"
      class="quiet"
      [class.idle]="!latency()"
      popovertarget="latency"
      data-testid="latency"
      title="In the last minute; click for each phase"
    >
      <span class="words">Kafka to your screen:</span>
      @if (latency(); as latency) {
        <span class="figure">{{ milliseconds(latency.total.p50) }}</span>
        <span class="muted words">p99 {{ milliseconds(latency.total.p99) }}</span>
      } @else {
        <span class="figure" aria-label="no records in the last minute">–</span>
      }
    </button>
    <div popover id="latency" class="popup" role="group" aria-labelledby="latency-title" data-testid="latency-phases">
      <h2 id="latency-title">Kafka to your screen</h2>
      @if (latency(); as latency) {
        <div class="bar" aria-hidden="true">
          @for (phase of phases(); track phase.name) {
            <span [attr.data-phase]="phase.name" [style.flex-grow]="phase.share"></span>
          }
        </div>
        <table class="list">
          <thead>
            <tr>
              <th scope="col">Phase</th>
              <th scope="col" class="number">p50</th>
              <th scope="col" class="number">p99</th>
            </tr>
          </thead>
          <tbody>
            @for (phase of phases(); track phase.name) {
              <tr [attr.data-phase]="phase.name">
                <th scope="row"><span class="key" aria-hidden="true"></span>{{ phase.label }}</th>
                <td class="number">{{ milliseconds(phase.p50) }}</td>
                <td class="number">{{ milliseconds(phase.p99) }}</td>
              </tr>
            }
            <tr>
              <th scope="row">The whole way</th>
              <td class="number">{{ milliseconds(latency.total.p50) }}</td>
              <td class="number">{{ milliseconds(latency.total.p99) }}</td>
            </tr>
          </tbody>
        </table>
        <p class="muted">{{ count(latency.frames) }} frames with new records in the last minute, in all tables.</p>
      } @else {
        <p class="muted">No new records have come in the last minute.</p>
      }
      @if (clock(); as clock) {
        <p data-testid="clock">{{ clock }}</p>
      }
      <p class="muted" data-testid="checksums">{{ checksums() }}</p>
    </div>
  `,
  styles: `
    button {
      anchor-name: --latency;
      white-space: nowrap;
    }
    .figure {
      min-width: 3.2em;
      font-weight: 600;
      text-align: start;
    }
    .popup {
      inset: auto;
      position-area: bottom span-right;
      position-anchor: --latency;
      width: min(22rem, 100vw);
      margin: 4px 0;
      padding: 0.75rem;
      border: 1px solid var(--line);
      border-radius: var(--radius);
      background: var(--surface);
      color: var(--text);
      box-shadow: var(--shadow);
    }
    h2 {
      margin-bottom: 0.5rem;
      font-size: 13px;
    }
    .bar {
      display: flex;
      height: 10px;
      margin-bottom: 0.5rem;
      overflow: hidden;
      border-radius: 5px;
      background: var(--calm-surface);
    }
    .bar span,
    .key {
      background: var(--phase);
    }
    .bar span {
      flex-basis: 0;
    }
    .key {
      display: inline-block;
      width: 9px;
      height: 9px;
      margin-inline-end: 6px;
      border-radius: 2px;
    }
    [data-phase="spark"] {
      --phase: var(--plot-1);
    }
    [data-phase="applied"] {
      --phase: var(--plot-2);
    }
    [data-phase="sent"] {
      --phase: var(--plot-3);
    }
    [data-phase="here"] {
      --phase: var(--plot-4);
    }
    p {
      margin-top: 0.5rem;
    }
    @media (max-width: 759px) {
      .words,
      .idle {
        display: none;
      }
    }
  `,
})
export class LatencyView {
  readonly #service = inject(LiveTableService);
  readonly #clock = inject(Clock);
  protected readonly count = count;
  protected readonly milliseconds = milliseconds;
  protected readonly latency = this.#service.latencyNow;
  protected readonly phases = computed(() =>
    PHASES.map((name) => {
      const { p50, p99 } = this.latency()?.phases[name] ?? { p50: 0, p99: 0 };
      return { name, label: NAMES[name], p50, p99, share: Math.max(0, p50) };
    }),
  );
  /** What is to be known of the clocks: nothing, where they agree. */
  protected readonly clock = computed(() => {
    this.#clock.now(); // which is when it may be another
    const difference = this.#service.clockDifference;
    if (!difference) return "";
    const { aheadMs, uncertaintyMs } = difference;
    if (Math.abs(aheadMs) <= Math.max(CLOCKS_DIFFER_MS, uncertaintyMs)) return "";
    const where = aheadMs > 0 ? "ahead of" : "behind";
    return `The server's clock is ${milliseconds(Math.abs(aheadMs))} ${where} this one. These figures are by the server's.`;
  });
  protected readonly checksums = computed(() => {
    this.#clock.now();
    const { compared, different } = this.#service.comparisons;
    return `Windows compared with the server's checksums: ${count(compared)}; different: ${count(different)}.`;
  });
}
