import { ChangeDetectionStrategy, Component, computed, inject, input } from "@angular/core";
import { Clock } from "./clock";
import { duration } from "./figures";

const ABSOLUTE = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

/** A time as how long ago it was, and on hovering as what it was. */
@Component({
  selector: "lt-ago",
  changeDetection: ChangeDetectionStrategy.OnPush,
  template: `
    @if (time(); as time) {
      <time [attr.datetime]="time" [title]="absolute()">{{ ago() }}</time>
    } @else {
      <span class="muted">–</span>
    }
  `,
})
export class Ago {
  readonly time = input.required<string | null>();
  protected readonly absolute = computed(() => ABSOLUTE.format(new Date(this.time() ?? 0)));
  protected readonly ago = computed(() => {
    const ms = this.#clock.now() - Date.parse(this.time() ?? "");
    return ms < 1000 ? "just now" : `${duration(ms)} ago`;
  });

  readonly #clock = inject(Clock);
}
