/** Processes that end with the one that started them, however that one ends. */
import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import { openSync, closeSync } from "node:fs";

const STOP_MS_MAX = 60_000;

export interface ChildOptions {
  readonly directory: string;
  readonly environment: NodeJS.ProcessEnv;
  /** The file for its output; without it, the caller reads the output. */
  readonly log?: string;
}

/** In a session of its own, so that Ctrl-C does not reach it; Linux stops it when this process is gone. */
export function started(command: readonly string[], { directory, environment, log }: ChildOptions): ChildProcess {
  const file = log === undefined ? undefined : openSync(log, "w");
  try {
    return spawn("setpriv", ["--pdeathsig", "TERM", ...command], {
      cwd: directory,
      env: environment,
      detached: true,
      stdio: file === undefined ? ["ignore", "pipe", "pipe"] : ["ignore", file, file],
    });
  } finally {
    if (file !== undefined) closeSync(file);
  }
}

export function isRunning(child: ChildProcess): boolean {
  return child.exitCode === null && child.signalCode === null;
}

/** Gracefully if it lets us. */
export async function stopped(child: ChildProcess): Promise<void> {
  if (!isRunning(child)) return;
  const ended = once(child, "exit");
  child.kill("SIGTERM");
  const deadline = setTimeout(() => child.kill("SIGKILL"), STOP_MS_MAX);
  await ended;
  clearTimeout(deadline);
}

/** Its standard output, and its exit code; with its standard error if it fails. */
export async function output(child: ChildProcess): Promise<{ readonly code: number | null; readonly text: string }> {
  let text = "";
  let errors = "";
  child.stdout?.on("data", (piece: Buffer) => (text += piece.toString()));
  child.stderr?.on("data", (piece: Buffer) => (errors += piece.toString()));
  await once(child, "close");
  return { code: child.exitCode, text: child.exitCode === 0 ? text : text + errors };
}
