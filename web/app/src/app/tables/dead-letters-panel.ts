import { ChangeDetectionStrategy, Component, computed, inject, linkedSignal } from "@angular/core";
import { LiveTableService } from "@livetables/angular";
import type { Row } from "@livetables/angular";
import { Ago } from "../parts/ago";
import { copy } from "../parts/copy";
import { count } from "../parts/figures";
import type { DeadLetterRow } from "../status/status-rows";

const SHOWN = 100;
const PLACE = ["topic", "partition", "offset"] as const;

/** Records that are no rows: where they are, what is wrong with them, and what they hold. */
@Component({
  selector: "lt-dead-letters-panel",
  imports: [Ago],
  changeDetection: ChangeDetectionStrategy.OnPush,
  template: `
    <p class="summary">
      <strong>{{ count(total()) }}</strong>
      {{ total() === 1 ? "record could not be parsed" : "records could not be parsed" }}
      @if (total() > rows().length) {
        <span class="muted">· the newest {{ rows().length }} are listed</span>
      }
    </p>
    <ul data-testid="dead-letters" tabindex="-1">
      @for (row of rows(); track row._row) {
        <li>
          <button type="button" [attr.aria-pressed]="row === chosen()" (click)="chosen.set(row)">
            <span class="line">
              <strong class="grow cut">{{ place(row) }}</strong>
              <lt-ago class="muted" [time]="row.ts" />
            </span>
            <span class="cut" [title]="row.reason">{{ row.reason }}</span>
          </button>
        </li>
      } @empty {
        <li class="muted empty">Every record so far was a row. Records that cannot be read are listed here.</li>
      }
    </ul>
    @if (chosen(); as chosen) {
      <section class="card">
        <p class="line">
          <strong class="grow cut">{{ place(chosen) }}</strong>
          <button type="button" (click)="copy()">{{ copied() ? "Copied" : "Copy" }}</button>
        </p>
        <p>{{ chosen.reason }}</p>
        <pre data-testid="dead-letter-raw" tabindex="0" aria-label="Raw value">{{ raw() }}</pre>
      </section>
    }
  `,
  styles: `
    :host {
      display: flex;
      flex-direction: column;
      gap: 8px;
      height: 100%;
    }
    ul {
      flex: 1 1 140px;
      min-height: 120px;
      overflow-y: auto;
      border: 1px solid var(--line);
      border-radius: var(--radius);
    }
    .empty {
      padding: 10px;
    }
    li button {
      display: grid;
      gap: 1px;
      width: 100%;
      padding: 5px 8px;
      border: 0;
      border-bottom: 1px solid var(--line);
      border-radius: 0;
      background: none;
      text-align: start;
    }
    li button:focus-visible {
      outline-offset: -2px;
    }
    li button[aria-pressed="true"] {
      background: var(--accent-surface);
    }
    pre {
      max-height: 180px;
      margin: 6px 0 0;
      overflow: auto;
      white-space: pre-wrap;
      overflow-wrap: anywhere;
    }
  `,
})
export class DeadLettersPanel {
  readonly #service = inject(LiveTableService);
  readonly #window = this.#service.windowOf(
    () => "dead_letters",
    () => ({ columns: [...PLACE, "ts", "reason"], sort: [{ column: "ts", descending: true }], size: SHOWN }),
  );
  protected readonly total = computed(() => this.#window()?.total ?? 0);
  protected readonly rows = computed(() => (this.#window()?.rows ?? []) as readonly DeadLetterRow[]);
  /** The newest at first; then the one that was chosen, even when newer ones have pushed it off the list. */
  protected readonly chosen = linkedSignal<readonly DeadLetterRow[], DeadLetterRow | undefined>({
    source: this.rows,
    computation: (rows, before) => rows.find((row) => isSame(row, before?.value)) ?? before?.value ?? rows[0],
  });
  protected readonly count = count;

  // Values may be long: only the one that is looked at is asked for.
  readonly #found = this.#service.windowOf(
    () => "dead_letters",
    () => {
      const chosen = this.#chosenPlace();
      if (!chosen) return { size: 0 };
      return {
        columns: [...PLACE, "raw"],
        filters: PLACE.map((column) => ({ column, op: "equals" as const, value: chosen[column] })),
        size: 1,
      };
    },
  );
  readonly #chosenPlace = computed(() => this.chosen(), { equal: isSame });
  protected readonly raw = computed(() => {
    const row = this.#found()?.rows[0];
    return row && isSame(row, this.chosen()) ? String(row["raw"] ?? "") : "";
  });
  /** Until another one is looked at. */
  protected readonly copied = linkedSignal({ source: this.#chosenPlace, computation: () => false });

  protected place({ topic, partition, offset }: DeadLetterRow): string {
    return `${topic} · ${partition}:${offset}`;
  }

  protected async copy(): Promise<void> {
    await copy(this.raw());
    this.copied.set(true);
  }
}

function isSame(one: Row | undefined, other: Row | undefined): boolean {
  return PLACE.every((column) => one?.[column] === other?.[column]);
}
