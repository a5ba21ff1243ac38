import { ChangeDetectionStrategy, Component, computed, inject, input } from "@angular/core";
import { LiveTableService } from "@livetables/angular";
import { Ago } from "../parts/ago";
import { COUNT } from "../tables/count";

/** How long ago the newest record of a table was made. */
@Component({
  selector: "lt-newest",
  imports: [Ago],
  changeDetection: ChangeDetectionStrategy.OnPush,
  template: `<lt-ago [time]="time()" />`,
})
export class Newest {
  readonly table = input.required<string>();

  readonly #window = inject(LiveTableService).windowOf(this.table, () => COUNT);
  protected readonly time = computed(() => this.#window()?.newest ?? null);
}
