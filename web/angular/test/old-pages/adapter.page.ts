/** A page as it was written for the service before: an adapter that feeds AG Grid. Only imports differ. */
import { ChangeDetectorRef, Component } from "@angular/core";
import type { OnDestroy, OnInit } from "@angular/core";
import { AgGridAngular } from "ag-grid-angular";
import { AllCommunityModule, ModuleRegistry } from "ag-grid-community";
import type { ColDef } from "ag-grid-community";
import { DeephavenService } from "@livetables/angular/deephaven";
import type { DhTable, LiveTableAdapter } from "@livetables/angular/deephaven";

ModuleRegistry.registerModules([AllCommunityModule]);

interface Account {
  userId: string;
  accountType: string;
  balance: number;
}

@Component({
  standalone: true,
  selector: "old-adapter",
  imports: [AgGridAngular],
  template: `
    <ag-grid-angular style="height: 300px" [rowData]="rows" [columnDefs]="columnDefs" />
    <p class="error">{{ error }}</p>
  `,
})
export class AdapterPage implements OnInit, OnDestroy {
  rows: Account[] = [];
  columnDefs: ColDef<Account>[] = [];
  error = "";
  handle?: DhTable;
  /** How often rows came. */
  times = 0;
  private readonly adapter: LiveTableAdapter;

  constructor(
    private readonly dh: DeephavenService,
    private readonly changes: ChangeDetectorRef,
  ) {
    this.adapter = dh.createLiveAdapter();
  }

  async ngOnInit(): Promise<void> {
    try {
      this.handle = await this.dh.getTableHandle("account");
      this.columnDefs = this.handle.columns.map(({ name }) => ({ field: name as keyof Account }));
      await this.bind();
      await this.bind(); // as its inputs came twice
    } catch (error) {
      this.error = String(error);
    }
    this.changes.markForCheck();
  }

  async ngOnDestroy(): Promise<void> {
    await this.adapter.unbind();
    this.handle?.close();
  }

  private async bind(): Promise<void> {
    if (!this.handle) return;
    await this.adapter.bind(this.handle, this.onRows, this.handle.columns, () => this.dh.getTableHandle("account"));
  }

  private readonly onRows = (rows: Account[]): void => {
    this.rows = rows;
    this.times += 1;
    this.changes.markForCheck();
  };
}
