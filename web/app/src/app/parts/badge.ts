import { ChangeDetectionStrategy, Component, computed, input } from "@angular/core";

const TONES: Readonly<Record<string, string>> = {
  live: "good",
  applied: "good",
  starting: "busy",
  building: "busy",
  catching_up: "busy",
  sending: "busy",
  waiting: "busy",
  failed: "bad",
  rejected: "bad",
  unanswered: "bad",
};

/** A state of a generation or a message in a word, with a colour for how good that is. */
@Component({
  selector: "lt-badge",
  changeDetection: ChangeDetectionStrategy.OnPush,
  template: `<span class="badge" [attr.data-tone]="tone()">{{ text() }}</span>`,
})
export class Badge {
  readonly state = input.required<string>();
  protected readonly tone = computed(() => TONES[this.state()] ?? "calm");
  protected readonly text = computed(() => this.state().replaceAll("_", " "));
}
