import { ChangeDetectionStrategy, Component, computed, effect, inject, untracked } from "@angular/core";
import { LiveTableService } from "@livetables/angular";
import type { Row } from "@livetables/angular";
import { Ago } from "../parts/ago";
import { Badge } from "../parts/badge";
import { ControlMessages } from "./control-messages";
import { ControlOutcome } from "./control-outcome";
import { NEWEST_GENERATIONS, joinFields, label, orchestratorStatus, topicFields } from "../status/status-rows";
import type { ControlRow } from "../status/status-rows";

const JOINS: Readonly<Record<string, string>> = {
  inner: "Every pair of records with the same key.",
  left: "Every pair; a left record without a match is shown at once, with the right side empty.",
  natural: "One row for each left record, with its latest match; it follows every new one.",
  asof: "One row for each right record, with the left record that was the latest at its time.",
};

/** Points tables to other topics, or changes a join, while everybody watches. */
@Component({
  selector: "lt-control-form",
  imports: [Ago, Badge, ControlOutcome],
  changeDetection: ChangeDetectionStrategy.OnPush,
  templateUrl: "./control-form.html",
  styles: `
    form {
      display: grid;
      gap: 10px;
      margin-bottom: 12px;
    }
    .field {
      display: grid;
      gap: 3px;
    }
    .touched {
      color: var(--accent);
    }
    .actions {
      display: flex;
      align-items: center;
      gap: 12px;
    }
    .messages {
      display: grid;
      grid-template-columns: minmax(0, 1fr);
      gap: 10px;
    }
    .why {
      display: -webkit-box;
      -webkit-box-orient: vertical;
      -webkit-line-clamp: 2;
      overflow: hidden;
    }
  `,
})
export class ControlForm {
  readonly #service = inject(LiveTableService);
  protected readonly messages = inject(ControlMessages);
  protected readonly joins = Object.keys(JOINS);
  protected readonly label = label;

  readonly #status = orchestratorStatus();
  readonly #generations = this.#service.windowOf(
    () => "generations",
    () => NEWEST_GENERATIONS,
  );
  readonly #topics = this.#service.windowOf(
    () => "kafka_topics",
    () => ({ sort: [{ column: "topic" }], size: 500 }),
  );
  readonly #control = this.#service.windowOf(
    () => "control_raw",
    () => ({
      sort: [
        { column: "ts", descending: true },
        { column: "offset", descending: true },
      ],
      size: 8,
    }),
  );

  readonly #fields = computed(() => {
    const columns = this.#status()?.columns ?? [];
    return [...topicFields(columns), ...joinFields(columns)];
  });
  protected readonly topicFields = computed(() => topicFields(this.#status()?.columns ?? []));
  protected readonly current = computed(() => {
    const row = this.#status()?.rows[0];
    return row ? Object.fromEntries(this.#fields().map((name) => [name, text(row[name])])) : undefined;
  });
  /** One for each view; none for joinType where it means no view. */
  protected readonly joinFields = computed(() =>
    joinFields(this.#status()?.columns ?? []).filter((name) => this.current()?.[name]),
  );
  protected readonly filledIn = computed(() => ({ ...this.current(), ...this.messages.draft() }));
  protected readonly hasDraft = computed(() => Object.keys(this.messages.draft()).length > 0);
  protected readonly suggestions = computed(() => {
    const listed = (this.#topics()?.rows ?? []).map((row) => text(row["topic"]));
    const used = (this.#generations()?.rows ?? []).flatMap((row) => this.topicFields().map((name) => text(row[name])));
    return [...new Set([...listed, ...used])].filter(Boolean).sort();
  });
  protected readonly latest = computed(() => (this.#control()?.rows ?? []) as readonly ControlRow[]);

  constructor() {
    effect(() => {
      const current = this.current() ?? {};
      const draft = untracked(this.messages.draft);
      const differing = Object.entries(draft).filter(([name, value]) => value !== current[name]);
      if (differing.length < Object.keys(draft).length) this.messages.draft.set(Object.fromEntries(differing));
    });
  }

  protected explanation(joinField: string): string {
    return JOINS[this.filledIn()[joinField] ?? ""] ?? "";
  }

  protected change(name: string, event: Event): void {
    const { value } = event.target as HTMLInputElement | HTMLSelectElement;
    this.messages.draft.update((draft) => ({ ...draft, [name]: value }));
  }

  protected reset(): void {
    this.messages.draft.set({});
  }

  protected send(event: Event): void {
    event.preventDefault();
    const given = Object.entries(this.filledIn())
      .map(([name, value]) => [name, value.trim()] as const)
      .filter(([, value]) => value !== ""); // a blank field keeps its value
    const changed = given.filter(([name, value]) => value !== this.current()?.[name]);
    const fields = changed.length > 0 ? changed : given;
    const what = fields.map(([name, value]) => `${label(name)} ${value}`).join(", ");
    void this.messages.send(what, Object.fromEntries(fields));
  }

  /** The changes that a message asked for. */
  protected asked(row: ControlRow): string {
    const fields = this.#fields().filter((name) => row[name] !== null && row[name] !== undefined);
    if (row.rollback) return "Roll back";
    return fields.map((name) => `${label(name)} ${text(row[name])}`).join(", ") || (row.raw ?? "no value");
  }
}

function text(value: Row[string] | undefined): string {
  return typeof value === "string" ? value : "";
}
