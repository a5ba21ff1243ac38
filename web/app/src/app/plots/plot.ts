import {
  ChangeDetectionStrategy,
  Component,
  DestroyRef,
  ElementRef,
  computed,
  effect,
  inject,
  input,
  untracked,
} from "@angular/core";
import uPlot from "uplot";
import type { AlignedData } from "uplot";
import { compact } from "../parts/figures";
import { PLOTTED_SECONDS } from "./plot-data";
import { Theme } from "../parts/theme";

const HEIGHT = 96;
const SECONDS_MIN = 60; // shown, however little there is

/** Lines over the last five minutes. It draws only while somebody can see it. */
@Component({
  selector: "lt-plot",
  changeDetection: ChangeDetectionStrategy.OnPush,
  template: "",
  host: { role: "img", "[attr.aria-label]": "label()" },
  styles: `
    :host {
      display: block;
      height: ${HEIGHT}px;
      overflow: hidden;
    }
  `,
})
export class Plot {
  readonly label = input.required<string>();
  readonly names = input.required<readonly string[]>();
  readonly data = input.required<AlignedData>();

  readonly #host = inject<ElementRef<HTMLElement>>(ElementRef).nativeElement;
  readonly #theme = inject(Theme);
  readonly #lines = computed(() => this.names().length);
  #plot: uPlot | null = null;

  constructor() {
    effect(() => {
      this.#theme.now(); // the colours are read from the page
      this.#plot?.destroy();
      this.#plot = new uPlot(options(this.#host, this.#lines()), [[]], this.#host);
      untracked(() => {
        this.#draw();
      });
    });
    effect(() => {
      this.data();
      this.#draw();
    });
    const sized = new ResizeObserver(() => {
      if (this.#host.clientWidth > 0) this.#plot?.setSize({ width: this.#host.clientWidth, height: HEIGHT });
      this.#draw();
    });
    sized.observe(this.#host);
    const seen = (): void => {
      this.#draw();
    };
    document.addEventListener("visibilitychange", seen);
    inject(DestroyRef).onDestroy(() => {
      document.removeEventListener("visibilitychange", seen);
      sized.disconnect();
      this.#plot?.destroy();
    });
  }

  #draw(): void {
    const isSeen = document.visibilityState === "visible" && this.#host.clientWidth > 0;
    if (isSeen && this.data().length === this.#lines() + 1) this.#plot?.setData(this.data());
  }
}

function options(host: HTMLElement, lines: number): uPlot.Options {
  const style = getComputedStyle(host);
  const colour = (name: string): string => style.getPropertyValue(`--${name}`).trim();
  const font = `11px ${style.fontFamily}`;
  const axis = { stroke: colour("text-2"), font, ticks: { show: false }, grid: { stroke: colour("line"), width: 1 } };
  return {
    width: host.clientWidth || 1,
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    scales: {
      x: { range: (_, first, last) => [Math.max(last - PLOTTED_SECONDS, Math.min(first, last - SECONDS_MIN)), last] },
      y: { range: (_, __, greatest) => [0, Math.max(1, (greatest || 0) * 1.15)] },
    },
    axes: [
      { ...axis, size: 20, gap: 2, space: 84, grid: { show: false }, values: (_, times) => times.map(clockTime) },
      { ...axis, size: 44, gap: 4, space: 26, values: (_, values) => values.map(compact) },
    ],
    series: [
      {},
      ...Array.from({ length: lines }, (_, place) => ({
        stroke: colour(`plot-${(place % 4) + 1}`),
        width: 1.5,
        points: { show: false },
        spanGaps: false,
      })),
    ],
  };
}

function clockTime(time: number): string {
  return new Date(time * 1000).toLocaleTimeString("en", { hourCycle: "h23" });
}
