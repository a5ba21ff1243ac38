import { ChangeDetectionStrategy, Component, ElementRef, computed, inject, input, model } from "@angular/core";

const STEPS = 25; // of the keyboard, from one end to the other

/** The bar between two parts of its parent, to be dragged, or moved by arrow keys; a double click puts it back. */
@Component({
  selector: "lt-splitter",
  changeDetection: ChangeDetectionStrategy.OnPush,
  template: "",
  host: {
    role: "separator",
    tabindex: "0",
    "[attr.aria-label]": "label()",
    "[attr.aria-orientation]": "axis() === 'x' ? 'vertical' : 'horizontal'",
    "[attr.aria-valuenow]": "whole()",
    "[attr.aria-valuemin]": "min()",
    "[attr.aria-valuemax]": "max()",
    "(pointerdown)": "grab($event)",
    "(pointermove)": "drag($event)",
    "(keydown)": "press($event)",
    "(dblclick)": "value.set(first())",
  },
  styles: `
    :host {
      position: relative;
      touch-action: none;
      border-radius: 3px;
    }
    :host([aria-orientation="vertical"]) {
      cursor: col-resize;
    }
    :host([aria-orientation="horizontal"]) {
      cursor: row-resize;
    }
    :host::after {
      content: "";
      position: absolute;
      inset: 0;
      margin: auto;
      width: 3px;
      height: 28px;
      border-radius: 2px;
      background: var(--line-strong);
    }
    :host([aria-orientation="horizontal"])::after {
      width: 28px;
      height: 3px;
    }
    :host(:hover)::after,
    :host(:focus-visible)::after,
    :host(:active)::after {
      background: var(--accent);
    }
  `,
})
export class Splitter {
  readonly label = input.required<string>();
  readonly axis = input.required<"x" | "y">();
  /** What the value is: the percentage of the parent before the bar, or the pixels behind it. */
  readonly measure = input<"percent before" | "pixels behind">("percent before");
  readonly min = input(15);
  readonly max = input(85);
  readonly first = input.required<number>();
  readonly value = model.required<number>();
  protected readonly whole = computed(() => Math.round(this.value()));

  readonly #bar = inject<ElementRef<HTMLElement>>(ElementRef).nativeElement;

  protected grab(event: PointerEvent): void {
    event.preventDefault(); // no text is to be selected
    this.#bar.focus();
    this.#bar.setPointerCapture(event.pointerId);
  }

  protected drag(event: PointerEvent): void {
    const parent = this.#bar.parentElement;
    if (!parent || !this.#bar.hasPointerCapture(event.pointerId)) return;
    const { left, right, top, bottom } = parent.getBoundingClientRect();
    const [start, end, here] = this.axis() === "x" ? [left, right, event.clientX] : [top, bottom, event.clientY];
    this.#move(this.measure() === "pixels behind" ? end - here : (100 * (here - start)) / (end - start));
  }

  protected press(event: KeyboardEvent): void {
    const [back, forth] = this.axis() === "x" ? ["ArrowLeft", "ArrowRight"] : ["ArrowUp", "ArrowDown"];
    const forthStep = ((this.max() - this.min()) / STEPS) * (this.measure() === "pixels behind" ? -1 : 1);
    if (event.key === back) this.#move(this.value() - forthStep);
    else if (event.key === forth) this.#move(this.value() + forthStep);
    else if (event.key === "Home") this.#move(this.min());
    else if (event.key === "End") this.#move(this.max());
    else return;
    event.preventDefault();
  }

  #move(value: number): void {
    this.value.set(Math.min(this.max(), Math.max(this.min(), value)));
  }
}
