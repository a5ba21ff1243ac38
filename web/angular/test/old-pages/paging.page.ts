/** A page as it was written for the service before: rows as arrays from the hub, a page at a time. Only imports differ. */
import { ChangeDetectorRef, Component } from "@angular/core";
import type { OnDestroy, OnInit } from "@angular/core";
import { DeephavenService } from "@livetables/angular/deephaven";

@Component({
  standalone: true,
  selector: "old-paging",
  template: `
    <button type="button" [disabled]="offset === 0" (click)="turn(-size)">Back</button>
    <button type="button" (click)="turn(size)">On</button>
    <span class="ready">{{ dh.isReady ? "ready" : "not ready" }}</span>
    <ul>
      @for (line of lines; track $index) {
        <li>{{ line }}</li>
      }
    </ul>
  `,
})
export class PagingPage implements OnInit, OnDestroy {
  readonly size = 2;
  offset = 0;
  lines: string[] = [];
  private unsubscribe?: () => Promise<void>;

  constructor(
    readonly dh: DeephavenService,
    private readonly changes: ChangeDetectorRef,
  ) {}

  ngOnInit(): void {
    this.show();
  }

  async turn(by: number): Promise<void> {
    await this.unsubscribe?.();
    this.offset += by;
    this.show();
  }

  async ngOnDestroy(): Promise<void> {
    await this.unsubscribe?.();
  }

  private show(): void {
    const { offset, size } = this;
    this.unsubscribe = this.dh.subscribe("user", (rows) => this.onRows(rows), { offset, size }).unsubscribe;
  }

  private onRows(rows: unknown[][]): void {
    const lines: string[] = [];
    for (const row of rows) {
      let line = "";
      for (const cell of row) line += `${String(cell)}|`;
      lines.push(line);
    }
    this.lines = lines;
    this.changes.markForCheck();
  }
}
