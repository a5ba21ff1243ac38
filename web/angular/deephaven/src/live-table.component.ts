/** The old tag of the table that pages: it connects, and takes the table's name by either input. */
import { ChangeDetectionStrategy, Component, computed, inject, input, numberAttribute } from "@angular/core";
import { LiveTableComponent as LiveTable } from "@livetables/angular";
import { PAGE_ROWS } from "@livetables/client";
import { DeephavenService } from "./deephaven.service";

@Component({
  selector: "app-live-table",
  imports: [LiveTable],
  changeDetection: ChangeDetectionStrategy.OnPush,
  template: `
    @if (name(); as name) {
      <live-table [tableName]="name" [pageSize]="pageSize()" [initialOffset]="initialOffset()" />
    }
  `,
  styles: `
    :host {
      display: flex;
      flex-direction: column;
      min-height: 0;
    }
    live-table {
      flex: 1;
    }
  `,
})
export class LiveTableComponent {
  readonly tableName = input<string | null | undefined>();
  /** Counts if there is no `tableName`. */
  readonly varName = input<string | null | undefined>();
  readonly pageSize = input(PAGE_ROWS, { transform: numberAttribute });
  readonly initialOffset = input(0, { transform: numberAttribute });

  protected readonly name = computed(() => this.tableName() ?? this.varName());

  constructor() {
    // A refusal is shown beside the rows.
    inject(DeephavenService)
      .connect()
      .catch(() => undefined);
  }
}
