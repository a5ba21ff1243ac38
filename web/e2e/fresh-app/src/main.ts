import { Component, inject, signal } from "@angular/core";
import { bootstrapApplication } from "@angular/platform-browser";
import { AgGridAngular } from "ag-grid-angular";
import { AllCommunityModule, ModuleRegistry } from "ag-grid-community";
import type { ColDef, GridApi } from "ag-grid-community";
import { LiveTableService, provideLiveTables } from "@livetables/angular";
import type { Row } from "@livetables/angular";
import { columnDefinitions, livetablesDatasource } from "@livetables/angular/ag-grid";
import { LiveTableComponent } from "@livetables/angular/deephaven";

ModuleRegistry.registerModules([AllCommunityModule]);

@Component({
  selector: "app-root",
  imports: [AgGridAngular, LiveTableComponent],
  template: `
    <ag-grid-angular
      style="height: 300px"
      rowModelType="infinite"
      [columnDefs]="columns()"
      (gridReady)="show($event.api)"
    />
    <app-live-table tableName="user" [pageSize]="5" />
  `,
})
class App {
  readonly columns = signal<ColDef<Row>[]>([]);
  readonly #tables = inject(LiveTableService);

  async show(grid: GridApi<Row>): Promise<void> {
    this.columns.set(columnDefinitions((await this.#tables.getTableHandle("final_ui")).columns));
    grid.setGridOption("datasource", livetablesDatasource(this.#tables.hub, "final_ui", grid));
  }
}

const address = new URLSearchParams(location.hash.slice(1));
const options = { url: address.get("url") ?? "", token: address.get("key") ?? "" };
void bootstrapApplication(App, { providers: [provideLiveTables(options)] });
