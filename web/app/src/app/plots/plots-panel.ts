import { ChangeDetectionStrategy, Component, computed, inject } from "@angular/core";
import { count } from "../parts/figures";
import { Plot } from "./plot";
import { PlotData } from "./plot-data";

/** How much comes, how much waits, and how fast it is here. */
@Component({
  selector: "lt-plots-panel",
  imports: [Plot],
  changeDetection: ChangeDetectionStrategy.OnPush,
  template: `
    @for (plot of plots(); track plot.title) {
      <section>
        <h3>
          {{ plot.title }} <span class="muted">{{ plot.unit }}</span>
        </h3>
        <p class="now">
          @for (name of plot.lines.names; track name; let place = $index) {
            <span>
              <i [style.background]="'var(--plot-' + ((place % 4) + 1) + ')'"></i>
              <strong>{{ shown(plot.lines.current[name]) }}</strong>
              <span class="muted">{{ name }}</span>
            </span>
          } @empty {
            <span class="muted">{{ plot.missing }}</span>
          }
        </p>
        <lt-plot
          [label]="plot.title + ' in ' + plot.unit + ', last five minutes'"
          [names]="plot.lines.names"
          [data]="plot.lines.data"
        />
        <p class="muted">{{ plot.meaning }}</p>
      </section>
    }
  `,
  styles: `
    section {
      margin-bottom: 12px;
    }
    h3 {
      margin: 0;
    }
    h3 span {
      font-weight: 400;
    }
    .now {
      display: flex;
      flex-wrap: wrap;
      column-gap: 18px;
      min-height: 30px;
    }
    .now > span {
      display: inline-flex;
      align-items: baseline;
      gap: 5px;
    }
    strong {
      min-width: 1.6ch;
      font-size: 22px;
      line-height: 30px;
    }
    i {
      align-self: center;
      width: 10px;
      height: 3px;
      border-radius: 2px;
    }
  `,
})
export class PlotsPanel {
  readonly #data = inject(PlotData);
  protected readonly plots = computed(() => [
    {
      title: "Throughput",
      unit: "rows a second",
      lines: this.#data.rates(),
      missing: "No table is being filled yet.",
      meaning: "What comes into the tables that are read from topics.",
    },
    {
      title: "Lag",
      unit: "records to be read",
      lines: this.#data.lags(),
      missing: "No topic is being read yet.",
      meaning: "What is on the topics and not in the tables yet. Near zero is up to date.",
    },
    {
      title: "Latency",
      unit: "milliseconds",
      lines: this.#data.latencies(),
      missing: "No new record has come yet.",
      meaning: `From a record's time until it is in ${this.#data.view() ?? "the view"} here: median and longest.`,
    },
  ]);

  protected shown(value: number | undefined): string {
    return value === undefined ? "–" : count(value);
  }
}
