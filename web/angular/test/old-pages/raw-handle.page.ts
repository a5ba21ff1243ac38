/** A page as it was written for the service before: a raw handle, its viewport and its events. Only imports differ. */
import { ChangeDetectorRef, Component } from "@angular/core";
import type { OnDestroy, OnInit } from "@angular/core";
import { DeephavenService } from "@livetables/angular/deephaven";
import type { DhTable } from "@livetables/angular/deephaven";

@Component({
  standalone: true,
  selector: "old-raw-handle",
  template: `
    <table>
      <thead>
        <tr>
          @for (column of columns; track column) {
            <th scope="col">{{ column }}</th>
          }
        </tr>
      </thead>
      <tbody>
        @for (row of rows; track $index) {
          <tr>
            @for (cell of row; track $index) {
              <td>{{ cell }}</td>
            }
          </tr>
        }
      </tbody>
    </table>
    <p class="error">{{ error }}</p>
  `,
})
export class RawHandlePage implements OnInit, OnDestroy {
  columns: string[] = [];
  rows: unknown[][] = [];
  error = "";
  table: DhTable | null = null;

  constructor(
    private readonly dh: DeephavenService,
    private readonly changes: ChangeDetectorRef,
  ) {}

  async ngOnInit(): Promise<void> {
    try {
      const table = await this.dh.getTableHandle("user");
      const { EVENT_UPDATED } = this.dh.getDhNs().Table;
      this.table = table;
      this.columns = table.columns.map((column) => column.name);
      table.addEventListener("update", this.onUpdate);
      table.addEventListener(EVENT_UPDATED, (event) => {
        if (event.detail.rows.length > 0) this.updates += 1;
      });
      table.addEventListener("schema_changed", this.onSchema);
      table.setViewport(0, 10000, table.columns);
    } catch (error) {
      this.error = String(error);
    }
    this.changes.markForCheck();
  }

  updates = 0;

  ngOnDestroy(): void {
    this.table?.removeEventListener("update", this.onUpdate);
    this.table?.close();
  }

  private readonly onUpdate = async (): Promise<void> => {
    if (!this.table) return;
    const { rows, columns } = await this.table.getViewportData();
    this.rows = rows.map((row) => columns.map((column) => row.get(column)));
    this.changes.markForCheck();
  };

  private readonly onSchema = (): void => {
    if (!this.table) return;
    this.columns = this.table.columns.map((column) => column.name);
    this.table.setViewport(0, 10000, this.table.columns);
  };
}
