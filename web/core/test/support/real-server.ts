/** A real server in a process of its own, and the pipeline's side of it in another. */
import { spawn } from "node:child_process";
import type { ChildProcessByStdio } from "node:child_process";
import { once } from "node:events";
import { appendFileSync, existsSync, mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import { fileURLToPath } from "node:url";

export const TOKEN = "a-key-for-tests";

const ROOT = fileURLToPath(new URL("../../../../", import.meta.url));
const PYTHON = join(ROOT, ".venv/bin/python");
const FEED = fileURLToPath(new URL("feed.py", import.meta.url));

type Process = ChildProcessByStdio<Writable, Readable, Readable>;

/** Columns by name, beside `_id`. */
export interface FeedTable {
  readonly columns: Readonly<Record<string, string>>;
  readonly aliases?: readonly string[];
}

export interface FeedChanges {
  readonly rows: readonly Readonly<Record<string, unknown>>[];
  readonly deletes?: readonly number[];
}

type Command =
  | { readonly do: "begin"; readonly generation: string; readonly tables: Readonly<Record<string, FeedTable>> }
  | { readonly do: "put"; readonly generation: string; readonly tables: Readonly<Record<string, FeedChanges>> }
  | { readonly do: "publish"; readonly generation: string }
  | {
      readonly do: "report";
      readonly generation: string;
      readonly sources: readonly Readonly<Record<string, unknown>>[];
    };

/** `livetables serve` on free ports, which it keeps when it is started again. */
export class RealServer {
  readonly #directory = mkdtempSync(join(tmpdir(), "livetables-client-"));
  readonly #port: number;
  readonly #flightPort: number;
  #process: Process | null = null;
  #feed: Process | null = null;
  #answers: AsyncIterator<string> | null = null;

  private constructor(port: number, flightPort: number) {
    this.#port = port;
    this.#flightPort = flightPort;
  }

  static async started(): Promise<RealServer> {
    if (!existsSync(PYTHON)) throw new Error(`there is no ${PYTHON}: run \`make check\` once, which sets it up`);
    const server = new RealServer(await freePort(), await freePort());
    await server.start();
    return server;
  }

  get url(): string {
    return `http://127.0.0.1:${this.#port}`;
  }

  async start(): Promise<void> {
    const others = Object.entries(process.env).filter(([name]) => !name.startsWith("LIVETABLES_"));
    this.#process = this.#spawned(["-m", "livetables.cli.main", "serve"], {
      ...Object.fromEntries(others),
      LIVETABLES_TOKEN: TOKEN,
      LIVETABLES_SERVER_PORT: String(this.#port),
      LIVETABLES_SERVER_FLIGHT_PORT: String(this.#flightPort),
      LIVETABLES_SERVER_STORE: join(this.#directory, "store.duckdb"),
    });
    const line = await next(lines(this.#process));
    if (!line?.startsWith("serving ")) throw new Error(`the server did not start: see ${this.#directory}/log`);
  }

  /** As a crash would. */
  async kill(): Promise<void> {
    await killed(this.#process);
    this.#process = null;
  }

  /** Have the pipeline do something, and wait until the server has taken it. */
  async feed(...commands: readonly Command[]): Promise<void> {
    this.#feed ??= this.#spawned([FEED, `grpc://127.0.0.1:${this.#flightPort}`, TOKEN], process.env);
    this.#answers ??= lines(this.#feed);
    for (const command of commands) {
      this.#feed.stdin.write(`${JSON.stringify(command)}\n`);
      if ((await next(this.#answers)) !== "done")
        throw new Error(`the feed has ended at ${command.do}: see ${this.#directory}/log`);
    }
  }

  /** The value of one of the server's counters. */
  async metric(name: string): Promise<number> {
    const response = await fetch(`${this.url}/metrics`, { headers: { authorization: `Bearer ${TOKEN}` } });
    const found = new RegExp(`^${name} (\\S+)$`, "m").exec(await response.text());
    return Number(found?.[1]);
  }

  async end(): Promise<void> {
    await killed(this.#feed);
    await killed(this.#process);
    rmSync(this.#directory, { recursive: true });
  }

  #spawned(command: readonly string[], env: NodeJS.ProcessEnv): Process {
    const started = spawn(PYTHON, command, { env, stdio: ["pipe", "pipe", "pipe"] });
    started.stderr.on("data", (text: Buffer) => {
      if (existsSync(this.#directory)) appendFileSync(join(this.#directory, "log"), text);
    });
    return started;
  }
}

function lines(from: Process): AsyncIterator<string> {
  return createInterface(from.stdout)[Symbol.asyncIterator]();
}

async function next(lines: AsyncIterator<string>): Promise<string | undefined> {
  const result = await lines.next();
  return result.done ? undefined : result.value;
}

async function killed(running: Process | null): Promise<void> {
  if (running?.exitCode !== null || running.signalCode !== null) return;
  const ended = once(running, "exit");
  running.kill("SIGKILL");
  await ended;
}

async function freePort(): Promise<number> {
  const listening = createServer().listen(0, "127.0.0.1");
  await once(listening, "listening");
  const { port } = listening.address() as AddressInfo;
  listening.close();
  return port;
}
