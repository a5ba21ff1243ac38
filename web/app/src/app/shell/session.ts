import { Injectable, computed, inject, linkedSignal, signal } from "@angular/core";
import { LiveTableService } from "@livetables/angular";
import type { Role } from "@livetables/angular";

const KEY = "livetables.key";
const CHECK_MS_MAX = 1500; // a server that is down must not keep anybody on the login page

/** Whether somebody is logged in. The key is kept for this tab only, and never stays in the address. */
@Injectable({ providedIn: "root" })
export class Session {
  readonly #service = inject(LiveTableService);
  readonly #key = signal(keyOfAddress() ?? keptKey());
  readonly #isChecking = signal(false);

  readonly isLoggedIn = computed(() => this.#key() !== null);
  readonly isChecking = this.#isChecking.asReadonly();
  /** Why the server did not take the key. */
  readonly refusal = computed(() => {
    const { state, why } = this.#service.healthNow();
    return state === "refused" ? why : null;
  });
  /** Whether control messages may be sent: not with a viewer's key. While reconnecting, what it was last. */
  readonly mayControl = linkedSignal<Role | null, boolean>({
    source: this.#service.roleNow,
    computation: (role, before) => (role === null ? (before?.value ?? true) : role === "operator"),
  });
  readonly needsKey = computed(() => !this.isLoggedIn() || this.isChecking() || this.refusal() !== null);

  constructor() {
    addEventListener("hashchange", () => {
      const key = keyOfAddress();
      if (key) void this.logIn(key);
    });
    const key = this.#key();
    if (key) this.#connect(key).catch(() => undefined); // health has the reason, and the dialog shows it
  }

  async logIn(key: string): Promise<void> {
    this.#isChecking.set(true);
    const isThere = this.#connect(key).catch(() => undefined);
    await Promise.race([isThere, new Promise((resolve) => setTimeout(resolve, CHECK_MS_MAX))]);
    this.#key.set(key);
    this.#isChecking.set(false);
  }

  logOut(): void {
    keepKey(null);
    this.#key.set(null);
    this.#service.close();
  }

  #connect(key: string): Promise<void> {
    keepKey(key);
    return this.#service.login(key);
  }
}

/** The key that the address brought, as `livetables up` prints it; it is taken out of the address. */
function keyOfAddress(): string | null {
  const key = new URLSearchParams(location.hash.slice(1)).get("key");
  if (key === null) return null;
  history.replaceState(history.state, "", location.pathname + location.search);
  return key === "" ? null : key;
}

// A browser that keeps nothing is no problem: somebody is logged in until the page is left.

function keptKey(): string | null {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function keepKey(key: string | null): void {
  try {
    if (key === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, key);
  } catch {
    // Storage is full or not allowed.
  }
}
