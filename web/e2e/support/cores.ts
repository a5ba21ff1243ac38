/** How much of the machine's cores each part of a system takes, from /proc. Linux only. */
import { readdirSync, readFileSync } from "node:fs";

const TICKS_PER_SECOND = 100; // USER_HZ, which is the same on all Linux systems that Node runs on

/** Cores in use since a start: 1 is one whole core. */
export type Shares = Readonly<Record<string, number>>;

interface Process {
  readonly parent: number;
  readonly ticks: number;
}

export class CoreUse {
  readonly #roots: Readonly<Record<string, number>>;
  readonly #before = running();
  readonly #startedAt = performance.now();

  /** From now on. The roots are pids by name; a process counts to the nearest of its ancestors, or itself, among them. */
  constructor(roots: Readonly<Record<string, number>>) {
    this.#roots = roots;
  }

  /** Without processes that have ended meanwhile. */
  shares(): Shares {
    const names = new Map(Object.entries(this.#roots).map(([name, pid]) => [pid, name]));
    const ticksPerCore = (TICKS_PER_SECOND * (performance.now() - this.#startedAt)) / 1000;
    const processes = running();
    const shares: Record<string, number> = {};
    for (const [pid, { ticks }] of processes) {
      let at: number | undefined = pid;
      while (at !== undefined && !names.has(at)) at = processes.get(at)?.parent;
      const root = at === undefined ? "others" : (names.get(at) ?? "");
      const name = root === "browser" ? `browser's ${kindOf(pid)}` : root;
      shares[name] = (shares[name] ?? 0) + (ticks - (this.#before.get(pid)?.ticks ?? 0)) / ticksPerCore;
    }
    return shares;
  }
}

function running(): Map<number, Process> {
  const found = new Map<number, Process>();
  for (const name of readdirSync("/proc")) {
    const stat = /^\d+$/.test(name) ? read(`/proc/${name}/stat`) : "";
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" "); // a name may have spaces and parentheses
    if (stat) found.set(Number(name), { parent: Number(fields[1]), ticks: Number(fields[11]) + Number(fields[12]) });
  }
  return found;
}

/** What one of Chromium's processes does: renderer, gpu-process, utility; main for the one that started them. */
function kindOf(pid: number): string {
  return /--type=([\w-]+)/.exec(read(`/proc/${pid}/cmdline`))?.[1] ?? "main";
}

/** Empty if the process is gone. */
function read(path: string): string {
  try {
    return readFileSync(path, "utf-8");
  } catch {
    return "";
  }
}
