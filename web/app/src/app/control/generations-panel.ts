import { ChangeDetectionStrategy, Component, computed, inject } from "@angular/core";
import { LiveTableService } from "@livetables/angular";
import { Ago } from "../parts/ago";
import { Badge } from "../parts/badge";
import { ControlMessages } from "./control-messages";
import { ControlOutcome } from "./control-outcome";
import { count } from "../parts/figures";
import { Session } from "../shell/session";
import { NEWEST_GENERATIONS, sentence } from "../status/status-rows";
import type { GenerationRow } from "../status/status-rows";

/** Every generation, and a rollback to the previous one. */
@Component({
  selector: "lt-generations-panel",
  imports: [Ago, Badge, ControlOutcome],
  changeDetection: ChangeDetectionStrategy.OnPush,
  template: `
    @if (mayControl()) {
      <div class="back" data-testid="roll-back">
        <button type="button" [disabled]="!target() || isSending()" (click)="rollBack()">Roll back</button>
        <p class="muted">
          @if (target(); as target) {
            to {{ target.generation }}: {{ sentence(target) }}
          } @else {
            There is no earlier generation to return to.
          }
        </p>
      </div>
      <lt-control-outcome />
    }
    <ul>
      @for (row of rows(); track row.generation) {
        <li class="card" [attr.data-testid]="'generation-' + row.generation">
          <p class="line">
            <strong class="grow cut" [title]="row.generation">{{ row.generation }}</strong>
            <lt-badge [state]="row.state" />
          </p>
          <p>{{ sentence(row) }}</p>
          <p class="muted times">
            @if (row.rows !== null) {
              <span>{{ count(row.rows) }} rows</span>
            }
            <span>started <lt-ago [time]="row.started" /></span>
            @if (row.switched) {
              <span>live <lt-ago [time]="row.switched" /></span>
            }
            @if (row.retired) {
              <span>ended <lt-ago [time]="row.retired" /></span>
            }
          </p>
          @if (row.message) {
            <p [class.problem]="row.state === 'failed'" [class.muted]="row.state !== 'failed'">{{ row.message }}</p>
          }
        </li>
      } @empty {
        <li class="muted">There is no generation yet.</li>
      }
    </ul>
  `,
  styles: `
    .back {
      display: flex;
      align-items: center;
      gap: 10px;
      margin-bottom: 10px;
    }
    ul {
      display: grid;
      gap: 8px;
      margin-top: 10px;
    }
    .times {
      display: flex;
      flex-wrap: wrap;
      column-gap: 12px;
    }
  `,
})
export class GenerationsPanel {
  readonly #messages = inject(ControlMessages);
  readonly #window = inject(LiveTableService).windowOf(
    () => "generations",
    () => NEWEST_GENERATIONS,
  );
  protected readonly rows = computed(() => (this.#window()?.rows ?? []) as readonly GenerationRow[]);
  /** The one that was live last: of those that linger, or else of those that are kept. */
  protected readonly target = computed(() => lastLive(this.rows(), "lingering") ?? lastLive(this.rows(), "kept"));
  protected readonly mayControl = inject(Session).mayControl;
  protected readonly isSending = computed(() => this.#messages.sent()?.outcome === "sending");
  protected readonly count = count;

  protected sentence(row: GenerationRow): string {
    return sentence(row, this.#window()?.columns ?? []);
  }

  protected rollBack(): void {
    void this.#messages.send(`Roll back to ${this.target()?.generation ?? "the previous generation"}`, {
      rollback: true,
    });
  }
}

function lastLive(rows: readonly GenerationRow[], state: string): GenerationRow | undefined {
  return rows
    .filter((row) => row.state === state)
    .reduce<GenerationRow | undefined>(
      (latest, row) => (latest && time(latest.switched) >= time(row.switched) ? latest : row),
      undefined,
    );
}

function time(text: string | null): number {
  return text === null ? 0 : Date.parse(text);
}
