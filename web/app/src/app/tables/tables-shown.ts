import { Injectable, effect, inject, signal, untracked } from "@angular/core";
import { LiveTableService } from "@livetables/angular";

const DEFAULT_TABLES: readonly string[] = ["users_ui", "accounts_ui", "final_ui"];
const STATUS_TABLES = new Set(["orchestrator_status", "control_raw", "generations", "dead_letters", "kafka_topics"]);

interface TableFound {
  readonly name: string;
  readonly alias_of: string | null;
  readonly columns: readonly { readonly name: string }[];
}

/** The tables that the page has panels for, the view of them last; none until the server has some. */
@Injectable({ providedIn: "root" })
export class TablesShown {
  readonly #service = inject(LiveTableService);
  readonly #names = signal<readonly string[]>([]);
  readonly names = this.#names.asReadonly();

  constructor() {
    effect(() => {
      this.#service.statusNow(); // when it changes, there may be tables that were not there at login
      this.#service.healthNow();
      untracked(() => {
        if (this.#names().length > 0 || !this.#service.isReady) return;
        if (DEFAULT_TABLES.every((name) => this.#service.tables.includes(name))) this.#names.set(DEFAULT_TABLES);
        else void this.#find();
      });
    });
  }

  /** Ask for the tables: at login there are only names, with aliases among them. */
  async #find(): Promise<void> {
    const response = await this.#service.request("api/tables").catch(() => null); // the next status asks again
    if (!response) return;
    const { tables } = (await response.json()) as { readonly tables: readonly TableFound[] };
    const found = tables.filter(({ name, alias_of }) => alias_of === null && !STATUS_TABLES.has(name));
    if (found.length > 0 && this.#names().length === 0) this.#names.set(chosen(found));
  }
}

function chosen(found: readonly TableFound[]): readonly string[] {
  if (DEFAULT_TABLES.every((name) => found.some((table) => table.name === name))) return DEFAULT_TABLES;
  const isView = ({ columns }: TableFound): boolean => columns.some(({ name }) => name === "_left_id");
  const views = found.filter(isView).slice(0, 1);
  const tables = found.filter((table) => !isView(table)).slice(0, 3 - views.length);
  return [...tables, ...views].map(({ name }) => name);
}
