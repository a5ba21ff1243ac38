/** A page as it was written for the service before: a stream that rebinds, and the table's own tag. Only imports differ. */
import { AsyncPipe } from "@angular/common";
import { Component } from "@angular/core";
import type { OnDestroy } from "@angular/core";
import { DeephavenService, LiveTableComponent } from "@livetables/angular/deephaven";
import type { StreamHandle } from "@livetables/angular/deephaven";
import { catchError, map, of } from "rxjs";
import type { Observable } from "rxjs";

interface UserAccount {
  userId: string;
  name: string;
  balance: number | null;
}

@Component({
  standalone: true,
  selector: "old-rebind",
  imports: [AsyncPipe, LiveTableComponent],
  template: `
    <p class="count">{{ count$ | async }}</p>
    <ol>
      @for (row of rows$ | async; track $index) {
        <li>{{ row.name }} {{ row.balance }}</li>
      }
    </ol>
    <p class="error">{{ error }}</p>
    <app-live-table [tableName]="table" [pageSize]="pageSize" [initialOffset]="0" />
    <app-live-table varName="user" pageSize="2" />
  `,
})
export class RebindPage implements OnDestroy {
  readonly table = "final_ui";
  readonly pageSize = 3;
  readonly stream: StreamHandle<UserAccount>;
  readonly rows$: Observable<UserAccount[]>;
  readonly count$: Observable<string>;
  error = "";

  constructor(dh: DeephavenService) {
    this.stream = dh.streamTableWithRebind<UserAccount>("final_ui");
    this.count$ = this.stream.rows$.pipe(
      map((rows) => `${rows.length} rows`),
      catchError(() => of("no rows")),
    );
    this.rows$ = this.stream.rows$.pipe(
      catchError((error: unknown) => {
        this.error = String(error);
        return of([]);
      }),
    );
  }

  async ngOnDestroy(): Promise<void> {
    await this.stream.dispose();
  }
}
