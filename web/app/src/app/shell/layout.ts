import { Injectable, signal } from "@angular/core";
import { kept } from "../parts/kept";

export const FIRST_LAYOUT = { leftPercent: 50, topPercent: 44, sidePixels: 356 };

/** How the page is divided. */
@Injectable({ providedIn: "root" })
export class Layout {
  /** Of the width, for the first of the two tables on top. */
  readonly leftPercent = kept("left", FIRST_LAYOUT.leftPercent);
  /** Of the height, for the tables on top. */
  readonly topPercent = kept("top", FIRST_LAYOUT.topPercent);
  readonly sidePixels = kept("side", FIRST_LAYOUT.sidePixels);
  readonly isSideOpen = kept<boolean>("side-open", true);
  readonly sideTab = kept<string>("tab", "status");

  readonly #isNarrow = signal(false);
  /** Whether there is room for one thing at a time only, as on a phone. */
  readonly isNarrow = this.#isNarrow.asReadonly();

  constructor() {
    const narrow = matchMedia("(max-width: 759px)");
    const follow = (): void => {
      this.#isNarrow.set(narrow.matches);
    };
    follow();
    narrow.addEventListener("change", follow);
  }
}
