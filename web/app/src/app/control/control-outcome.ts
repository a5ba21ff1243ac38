import { ChangeDetectionStrategy, Component, computed, inject } from "@angular/core";
import { Badge } from "../parts/badge";
import { ControlMessages } from "./control-messages";
import { orchestratorStatus } from "../status/status-rows";
import type { OrchestratorRow } from "../status/status-rows";

const MEANINGS: Readonly<Record<string, string>> = {
  sending: "On its way to the control topic.",
  waiting: "Building… The tables stay as they are until it has caught up.",
  applied: "It is live now.",
  unchanged: "It was live already: nothing to do.",
  superseded: "A later message replaced it.",
  rejected: "Nothing was changed.",
  failed: "Nothing was changed.",
  unanswered: "It may have been published: the list of messages shows whether it was.",
};

/** The outcome of the message that this page sent last. */
@Component({
  selector: "lt-control-outcome",
  imports: [Badge],
  changeDetection: ChangeDetectionStrategy.OnPush,
  template: `
    <div aria-live="polite">
      @if (messages.sent(); as sent) {
        <section class="card" data-testid="control-outcome" [attr.data-outcome]="sent.outcome">
          <p class="line">
            <lt-badge [state]="sent.outcome" />
            <strong>{{ sent.what }}</strong>
          </p>
          <p>{{ meaning() }}</p>
          @if (sent.outcome === "waiting") {
            <progress aria-label="Building"></progress>
            <p class="muted" aria-live="off">{{ building() }}</p>
          }
          @if (sent.why) {
            <p [class.problem]="isBad()" [class.muted]="!isBad()">{{ sent.why }}</p>
          }
          @if (sent.cure) {
            <p>To fix it: {{ sent.cure }}</p>
          }
        </section>
      }
    </div>
  `,
})
export class ControlOutcome {
  protected readonly messages = inject(ControlMessages);
  protected readonly meaning = computed(() => MEANINGS[this.messages.sent()?.outcome ?? ""] ?? "");
  protected readonly isBad = computed(() =>
    ["rejected", "failed", "unanswered"].includes(this.messages.sent()?.outcome ?? ""),
  );
  /** How far the build is, as the pipeline reports it. */
  protected readonly building = computed(() => {
    const row = this.#status()?.rows[0] as OrchestratorRow | undefined;
    return row && row.state !== "live" ? row.message : "";
  });

  readonly #status = orchestratorStatus();
}
