import { ChangeDetectionStrategy, Component, effect, inject, viewChild } from "@angular/core";
import type { ElementRef } from "@angular/core";
import { Session } from "./session";

/** Asks for the key, for as long as there is none that the server takes. */
@Component({
  selector: "lt-login",
  changeDetection: ChangeDetectionStrategy.OnPush,
  template: `
    <dialog #dialog data-testid="login" aria-labelledby="login-title" (close)="show()">
      <form (submit)="logIn($event)">
        <h2 id="login-title">Log in</h2>
        <p class="muted">
          The server printed its key when it started, unless one is set: <code>LIVETABLES_TOKEN</code>, or the file that
          <code>server.token_file</code> names.
        </p>
        <!-- Browsers that keep keys want to know whose they are. -->
        <input type="text" autocomplete="username" value="livetables" hidden />
        <label for="login-key">Key</label>
        <input
          #key
          id="login-key"
          type="password"
          autocomplete="current-password"
          required
          autofocus
          [attr.aria-invalid]="session.refusal() ? true : null"
          aria-describedby="login-problem"
        />
        <p id="login-problem" role="alert">
          @if (!session.isChecking() && session.refusal(); as why) {
            <span class="problem" data-testid="login-problem">{{ why }}</span>
          }
        </p>
        <button class="primary" [disabled]="session.isChecking()">Log in</button>
      </form>
    </dialog>
  `,
  styles: `
    dialog {
      width: min(380px, calc(100vw - 32px));
      padding: 22px 24px 24px;
    }
    form {
      display: grid;
      gap: 6px;
    }
    h2 {
      font-size: 17px;
    }
    p {
      margin-bottom: 8px;
    }
    #login-problem {
      min-height: 1.4em;
      margin: 0;
    }
    .problem {
      display: block;
    }
    .problem::first-letter {
      text-transform: uppercase;
    }
    input,
    button {
      padding-block: 8px;
    }
  `,
})
export class Login {
  protected readonly session = inject(Session);
  private readonly dialog = viewChild.required<ElementRef<HTMLDialogElement>>("dialog");
  private readonly key = viewChild.required<ElementRef<HTMLInputElement>>("key");

  constructor() {
    effect(() => {
      const key = this.key().nativeElement;
      if (this.session.needsKey()) this.show();
      else {
        key.value = "";
        this.dialog().nativeElement.close();
      }
      if (this.session.refusal() !== null) key.select();
    });
  }

  /** Escape closes dialogs, but this one stays while it is needed. */
  protected show(): void {
    const dialog = this.dialog().nativeElement;
    if (this.session.needsKey() && !dialog.open) dialog.showModal();
  }

  protected logIn(event: Event): void {
    event.preventDefault();
    const key = this.key().nativeElement.value.trim();
    if (key) void this.session.logIn(key);
  }
}
