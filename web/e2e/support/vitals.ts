/** How a page feels after a while: memory that stays, frames, and tasks that hold it up. */
import type { CDPSession, Page } from "playwright-core";

export interface Vitals {
  /** After a garbage collection. */
  readonly heapMegabytes: number;
  readonly nodes: number;
  readonly listeners: number;
  /** Since the look before. */
  readonly framesPerSecond: number;
  readonly longTasks: { readonly count: number; readonly totalMs: number; readonly longestMs: number };
}

interface Counters {
  frames: number;
  longTasks: { count: number; totalMs: number; longestMs: number };
}

interface Counting extends Window {
  counters?: Counters;
}

export class VitalSigns {
  readonly #page: Page;
  readonly #session: CDPSession;
  #lookedAt = performance.now();

  private constructor(page: Page, session: CDPSession) {
    this.#page = page;
    this.#session = session;
  }

  /** Counts from now on. */
  static async of(page: Page): Promise<VitalSigns> {
    const session = await page.context().newCDPSession(page);
    await session.send("Performance.enable");
    await page.evaluate(() => {
      const counters: Counters = { frames: 0, longTasks: { count: 0, totalMs: 0, longestMs: 0 } };
      (window as Counting).counters = counters;
      const frame = (): void => {
        counters.frames += 1;
        requestAnimationFrame(frame);
      };
      requestAnimationFrame(frame);
      new PerformanceObserver((list) => {
        for (const { duration } of list.getEntries()) {
          counters.longTasks.count += 1;
          counters.longTasks.totalMs += duration;
          counters.longTasks.longestMs = Math.max(counters.longTasks.longestMs, duration);
        }
      }).observe({ type: "longtask" });
    });
    return new VitalSigns(page, session);
  }

  async look(): Promise<Vitals> {
    const { frames, longTasks } = await this.#counted();
    const seconds = (performance.now() - this.#lookedAt) / 1000;
    await this.#session.send("HeapProfiler.collectGarbage");
    const { metrics } = await this.#session.send("Performance.getMetrics");
    const metric = (name: string): number => metrics.find((each) => each.name === name)?.value ?? NaN;
    await this.#counted(); // without what the garbage collection held up
    this.#lookedAt = performance.now();
    return {
      heapMegabytes: metric("JSHeapUsedSize") / 1e6,
      nodes: metric("Nodes"),
      listeners: metric("JSEventListeners"),
      framesPerSecond: frames / seconds,
      longTasks,
    };
  }

  /** What was counted since it was asked last. */
  async #counted(): Promise<Counters> {
    return await this.#page.evaluate(() => {
      const { counters } = window as Counting;
      if (!counters) throw new Error("nobody counts");
      const counted = { frames: counters.frames, longTasks: { ...counters.longTasks } };
      counters.frames = 0;
      Object.assign(counters.longTasks, { count: 0, totalMs: 0, longestMs: 0 });
      return counted;
    });
  }
}

/** One line for people. */
export function described({ heapMegabytes, nodes, listeners, framesPerSecond, longTasks }: Vitals): string {
  return [
    `heap ${heapMegabytes.toFixed(1)} MB`,
    `${nodes} nodes`,
    `${listeners} listeners`,
    `${framesPerSecond.toFixed(0)} frames/s`,
    `${longTasks.count} long tasks (${longTasks.totalMs.toFixed(0)} ms, longest ${longTasks.longestMs.toFixed(0)} ms)`,
  ].join(", ");
}
