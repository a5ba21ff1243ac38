import { DestroyRef, Injectable, inject, signal } from "@angular/core";

/** The time, to the second, for everything on the page that shows how long ago something was. */
@Injectable({ providedIn: "root" })
export class Clock {
  readonly #now = signal(Date.now());
  readonly now = this.#now.asReadonly();

  constructor() {
    const ticking = setInterval(() => {
      this.#now.set(Date.now());
    }, 1000);
    inject(DestroyRef).onDestroy(() => {
      clearInterval(ticking);
    });
  }
}
