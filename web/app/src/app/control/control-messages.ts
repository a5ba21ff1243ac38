import { Injectable, inject, signal } from "@angular/core";
import { LiveTableService, LivetablesError, UnansweredError } from "@livetables/angular";
import type { ControlReceipt, Subscription } from "@livetables/angular";
import type { ControlRow } from "../status/status-rows";

export interface Sent {
  /** The changes that it asks for. */
  readonly what: string;
  /** sending, waiting, unanswered, or the outcome in control_raw. */
  readonly outcome: string;
  readonly why: string;
  /** The fix, if it could not be sent. */
  readonly cure?: string;
}

/** The control message that this page is about to send, the one that it sent last, and its outcome. */
@Injectable({ providedIn: "root" })
export class ControlMessages {
  /** Fields that somebody has changed and not sent yet. */
  readonly draft = signal<Readonly<Record<string, string>>>({});
  readonly #sent = signal<Sent | null>(null);
  readonly sent = this.#sent.asReadonly();

  readonly #service = inject(LiveTableService);
  #following: Subscription | null = null;

  async send(what: string, fields: Readonly<Record<string, string | true>>): Promise<void> {
    this.#following?.unsubscribe();
    this.#sent.set({ what, outcome: "sending", why: "" });
    try {
      this.#follow(what, await this.#service.sendControl(fields));
    } catch (error) {
      const isRefused = error instanceof LivetablesError && !(error instanceof UnansweredError);
      const { problem, cure } = error instanceof LivetablesError ? error : { problem: String(error), cure: "" };
      this.#sent.set({ what, outcome: isRefused ? "failed" : "unanswered", why: problem, cure });
    }
  }

  #follow(what: string, { partition, offset, messageId }: ControlReceipt): void {
    this.#sent.set({ what, outcome: "waiting", why: "" });
    const following = (this.#following = this.#service.hub.subscribe(
      "control_raw",
      {
        filters: [
          { column: "partition", op: "equals", value: partition },
          { column: "offset", op: "equals", value: offset },
          { column: "raw", op: "contains", value: messageId },
        ],
        size: 1,
      },
      {
        rows: ({ rows }) => {
          const row = rows[0] as ControlRow | undefined;
          if (!row?.outcome) return;
          following.unsubscribe();
          this.#sent.set({ what, outcome: row.outcome, why: row.why ?? "" });
        },
      },
    ));
  }
}
