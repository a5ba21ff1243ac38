/** Waits for a condition, outside of tests too. */
import { setTimeout as pause } from "node:timers/promises";

const LOOK_MS = 50;
const WAIT_MS_MAX = 240_000; // a hang, not a slow machine

/** What `look` finds, as soon as that is something. A look that fails finds nothing. */
export async function until<T>(what: string, look: () => T | Promise<T>): Promise<NonNullable<Exclude<T, false>>> {
  const deadline = performance.now() + WAIT_MS_MAX;
  let problem: unknown;
  while (performance.now() < deadline) {
    try {
      const found = await look();
      problem = undefined;
      if (found !== undefined && found !== null && found !== false) return found as NonNullable<Exclude<T, false>>;
    } catch (error) {
      problem = error;
    }
    await pause(LOOK_MS);
  }
  throw new Error(`timed out waiting until ${what}`, { cause: problem });
}
