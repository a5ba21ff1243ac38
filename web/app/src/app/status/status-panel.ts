import { ChangeDetectionStrategy, Component, computed, inject } from "@angular/core";
import { LiveTableService } from "@livetables/angular";
import { Ago } from "../parts/ago";
import { Badge } from "../parts/badge";
import { count } from "../parts/figures";
import { Newest } from "./newest";
import { orchestratorStatus, label } from "./status-rows";
import type { OrchestratorRow } from "./status-rows";

/** The pipeline's status, and how far each table is behind its topic. */
@Component({
  selector: "lt-status-panel",
  imports: [Ago, Badge, Newest],
  changeDetection: ChangeDetectionStrategy.OnPush,
  template: `
    @if (row(); as row) {
      @if (isOld()) {
        <section class="card notice" data-testid="status-old">
          <p>The pipeline does not report. This is its last status.</p>
        </section>
      } @else if (isBuilding()) {
        <section class="card notice">
          <p>Another generation is being built beside the live one. The tables stay as they are until it takes over.</p>
          <progress aria-label="Building"></progress>
        </section>
      }
      <dl class="facts">
        @for (column of columns(); track column.name) {
          <dt>{{ label(column.name) }}</dt>
          <dd [attr.data-testid]="'status-' + column.name">
            @if (column.type === "timestamp") {
              <lt-ago [time]="text(row[column.name])" />
            } @else if (column.name === "state") {
              <lt-badge [state]="row.state" />
            } @else if (row[column.name] === null) {
              <span class="muted">–</span>
            } @else {
              {{ shown(row[column.name]) }}
            }
          </dd>
        }
      </dl>
    } @else {
      <p class="muted">The pipeline has not reported yet.</p>
    }

    <h3>Sources</h3>
    @if (sources().length > 0) {
      <table class="list">
        <thead>
          <tr>
            <th scope="col">Table</th>
            <th scope="col">Topic</th>
            <th scope="col" class="number">Lag</th>
            <th scope="col" class="number">Newest</th>
          </tr>
        </thead>
        <tbody>
          @for (source of sources(); track source.table) {
            <tr>
              <td>{{ source.table }}</td>
              <td>{{ source.topic }}</td>
              <td class="number" title="records that are still to be read">{{ shown(source.lag_records) }}</td>
              <td class="number"><lt-newest [table]="source.table" /></td>
            </tr>
          }
        </tbody>
      </table>
    } @else {
      <p class="muted">No topic is being read.</p>
    }
    @if (sparkUi(); as url) {
      <p>
        <a [href]="url" target="_blank" rel="noopener noreferrer" data-testid="spark-ui">Spark's own pages</a>
        <span class="muted">, on the machine that the pipeline runs on</span>
      </p>
    }
  `,
  styles: `
    .notice {
      margin-bottom: 12px;
    }
  `,
})
export class StatusPanel {
  readonly #service = inject(LiveTableService);
  readonly #window = orchestratorStatus();
  protected readonly row = computed(() => this.#window()?.rows[0] as OrchestratorRow | undefined);
  protected readonly columns = computed(() =>
    (this.#window()?.columns ?? []).filter(({ name }) => !name.startsWith("_")),
  );
  protected readonly isBuilding = computed(() => ["building", "catching_up"].includes(this.row()?.state ?? ""));
  protected readonly isOld = computed(() => this.#service.statusNow()?.state === "pipeline_down");
  protected readonly sources = computed(() => this.#service.statusNow()?.sources ?? []);
  protected readonly sparkUi = computed(() => this.#service.statusNow()?.spark_ui);
  protected readonly label = label;

  protected text(value: unknown): string | null {
    return typeof value === "string" ? value : null;
  }

  protected shown(value: unknown): string {
    return typeof value === "number" ? count(value) : String(value);
  }
}
