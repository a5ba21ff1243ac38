/**
 * When the grids of a page are drawn: all in one animation frame, which the browser lays out and paints once, and never
 * while the page cannot be seen.
 *
 * After a frame that took long, the rest of the page has its turn: a page that is slow, or a machine that is busy, gets
 * fewer frames, and each with the newest rows.
 */

/** A frame that takes less is not worth a pause. */
const COSTLY_MS = 8;
/** The pause after one that takes longer, as a part of what it took. */
const REST = 0.5;

export class Frames {
  readonly #draws = new Set<() => void>();
  #isUnderWay = false;

  /** Call it in the next frame: once, however often it is asked for. */
  ask(draw: () => void): void {
    this.#draws.add(draw);
    this.#request();
  }

  forget(draw: () => void): void {
    this.#draws.delete(draw);
  }

  #request(): void {
    if (this.#isUnderWay || this.#draws.size === 0) return;
    this.#isUnderWay = true;
    requestAnimationFrame(() => {
      const started = performance.now();
      this.#drawAll();
      // A timer is due when the browser has painted, which takes longer than to draw.
      setTimeout(() => {
        const cost = performance.now() - started;
        if (cost < COSTLY_MS) this.#rested();
        else setTimeout(this.#rested, cost * REST);
      });
    });
  }

  #drawAll(): void {
    const draws = [...this.#draws];
    this.#draws.clear();
    for (const draw of draws) {
      try {
        draw();
      } catch (error) {
        reportError(error); // the others are to be drawn all the same
      }
    }
  }

  readonly #rested = (): void => {
    this.#isUnderWay = false;
    this.#request();
  };
}
