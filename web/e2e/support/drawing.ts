/** What a panel has drawn over time, frame by frame. */
import type { Page } from "playwright-core";

export interface Drawing {
  readonly frames: number;
  /** The fewest rows with text that could be seen in any frame. */
  readonly fewestRows: number;
}

interface Watching extends Window {
  drawing?: { frames: number; fewestRows: number; isOn: boolean };
}

export async function startWatching(page: Page, table: string): Promise<void> {
  await page.evaluate((name) => {
    const drawing = { frames: 0, fewestRows: Infinity, isOn: true };
    (window as Watching).drawing = drawing;
    const look = (): void => {
      const root = document.querySelector(`[data-testid="panel-${name}"]`);
      const ceiling = root?.querySelector(".ag-header")?.getBoundingClientRect().bottom ?? 0;
      const floor = root?.querySelector(".ag-grid-viewport")?.getBoundingClientRect().bottom ?? 0;
      const rows = [...(root?.querySelectorAll(".ag-grid-scrolling-container .ag-row") ?? [])];
      const withText = rows.filter((row) => {
        const { top, bottom } = row.getBoundingClientRect();
        return top >= ceiling - 1 && bottom <= floor + 1 && row.textContent.trim() !== "";
      });
      drawing.frames += 1;
      drawing.fewestRows = Math.min(drawing.fewestRows, withText.length);
    };
    // The message comes when the frame has been painted, with all that others still did for it.
    const painted = new MessageChannel();
    painted.port1.onmessage = look;
    const frame = (): void => {
      if (!drawing.isOn) return;
      painted.port2.postMessage(null);
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }, table);
}

export async function stopWatching(page: Page): Promise<Drawing> {
  return await page.evaluate(() => {
    const { drawing } = window as Watching;
    if (!drawing) throw new Error("nobody watches");
    drawing.isOn = false;
    return { frames: drawing.frames, fewestRows: drawing.fewestRows };
  });
}
