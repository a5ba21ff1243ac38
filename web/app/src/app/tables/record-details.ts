/** Where a row is from: the Kafka records behind it, and all its values. */
import { ChangeDetectionStrategy, Component, computed, inject, input, output } from "@angular/core";
import { LiveTableService } from "@livetables/angular";
import type { Row } from "@livetables/angular";
import { copy } from "../parts/copy";
import { localTime } from "./grid";
import { recordsBehind } from "./records";
import { orchestratorStatus } from "../status/status-rows";

@Component({
  selector: "lt-record-details",
  changeDetection: ChangeDetectionStrategy.OnPush,
  host: {
    "data-testid": "record-details",
    role: "dialog",
    "aria-label": "Row details",
    "(keydown.escape)": "closed.emit()",
  },
  template: `
    <header>
      <h2>A row of {{ table() }}</h2>
      <button type="button" (click)="copyRow()">Copy as JSON</button>
      <button type="button" (click)="closed.emit()" aria-label="Close">✕</button>
    </header>
    @for (record of records(); track record.table) {
      <section [attr.data-testid]="'record-' + record.table">
        <h3>{{ record.table }}</h3>
        @if (record.position; as position) {
          <dl>
            <dt>topic</dt>
            <dd data-field="topic">{{ record.topic ?? "unknown" }}</dd>
            <dt>partition</dt>
            <dd data-field="partition">{{ position.partition }}</dd>
            <dt>offset</dt>
            <dd data-field="offset">{{ position.offset }}</dd>
            <dt>time</dt>
            <dd data-field="time">{{ record.time ? localTime(record.time) : "–" }}</dd>
          </dl>
        } @else {
          <p>no matching record yet</p>
        }
      </section>
    } @empty {
      <p>This table has no Kafka records behind its rows.</p>
    }
    <section>
      <h3>values</h3>
      <dl>
        @for (value of values(); track value.name) {
          <dt>{{ value.name }}</dt>
          <dd>{{ value.text }}</dd>
        }
      </dl>
    </section>
  `,
  styles: `
    :host {
      display: block;
      overflow: auto;
      padding: 0.75rem 1rem;
      background: var(--surface);
      color: var(--text);
    }
    header {
      display: flex;
      gap: 0.5rem;
      align-items: center;
    }
    h2 {
      font-size: 1rem;
      margin: 0;
      flex: 1;
    }
    h3 {
      font-size: 0.8rem;
      margin: 1rem 0 0.25rem;
      color: var(--text-2);
    }
    dl {
      display: grid;
      grid-template-columns: max-content 1fr;
      gap: 0.2rem 0.8rem;
      margin: 0;
    }
    dt {
      color: var(--text-2);
    }
    dd {
      margin: 0;
      overflow-wrap: anywhere;
      font-variant-numeric: tabular-nums;
    }
    p {
      margin: 0;
      color: var(--text-2);
    }
  `,
})
export class RecordDetails {
  readonly table = input.required<string>();
  readonly row = input.required<Row>();
  readonly closed = output();

  readonly #service = inject(LiveTableService);
  readonly #pointed = orchestratorStatus();
  protected readonly records = computed(() =>
    recordsBehind(this.table(), this.row(), this.#service.statusNow()?.sources ?? [], this.#pointed()?.rows[0]),
  );
  protected readonly values = computed(() =>
    Object.entries(this.row())
      .filter(([name]) => !name.startsWith("_"))
      .map(([name, value]) => ({ name, text: value === null ? "–" : String(value) })),
  );
  protected readonly localTime = localTime;

  protected copyRow(): void {
    void copy(JSON.stringify(Object.fromEntries(this.values().map(({ name }) => [name, this.row()[name]])), null, 2));
  }
}
