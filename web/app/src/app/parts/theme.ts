import { Injectable, computed, effect, signal } from "@angular/core";
import { kept } from "./kept";

export type ThemeName = "light" | "dark";

/** Light or dark: as the system prefers, until somebody chooses. */
@Injectable({ providedIn: "root" })
export class Theme {
  readonly now = computed<ThemeName>(() => this.#chosen() ?? this.#preferred());
  readonly other = computed<ThemeName>(() => (this.now() === "light" ? "dark" : "light"));

  readonly #chosen = kept<ThemeName | null>("theme", null);
  readonly #preferred = signal<ThemeName>("light");

  constructor() {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const follow = (): void => {
      this.#preferred.set(dark.matches ? "dark" : "light");
    };
    follow();
    dark.addEventListener("change", follow);
    effect(() => {
      document.documentElement.dataset["theme"] = this.now();
      document.body.dataset["agThemeMode"] = this.now();
    });
  }

  toggle(): void {
    this.#chosen.set(this.other());
  }
}
