/**
 * The real system: `livetables up` in a directory of its own, with records in its topics.
 *
 * Whoever calls `Stack.started` ends it. Anybody else who knows the directory may use it.
 */
import type { ChildProcess } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { isRunning, output, started, stopped } from "./child.js";
import { demoArguments, sent } from "./demo-data.js";
import type { DemoOptions, Sent, Topics } from "./demo-data.js";
import { HttpClient } from "./http-client.js";
import type { Row } from "./http-client.js";
import { until } from "./until.js";

const ROOT = fileURLToPath(new URL("../../../", import.meta.url));
const LIVETABLES = join(ROOT, ".venv/bin/livetables");

/** Beside the operator's, which is made at the start. */
export const VIEWERS_KEY = "a-key-of-a-viewer";

const FIRST: Topics = { users: "user", accounts: "account" };
const SECOND: Topics = { users: "user_2", accounts: "account_2" };

/** Beside the preset's own view. */
export const SECOND_VIEW = `
[views.latest_ui]
join = "natural"
left = "users"
right = "accounts"
on = "userId"
`;

export interface StackOptions {
  /** Pages of these are let in, beside the server's own. */
  readonly origins?: readonly string[];
  /** What the preset does not have, as TOML. */
  readonly views?: string;
}

/** Any free ports, pages from elsewhere, and an old generation that stays long enough to be rolled back to. */
const config = ({ origins = [], views = "" }: StackOptions): string => `
[server]
origins = ${JSON.stringify(origins)}
port = 0
flight_port = 0
memory_megabytes = 512

[pipeline]
master = "local[2]"
driver_memory_megabytes = 1024

[generations]
linger_seconds = 600
max_lingering = 1
${views}`;

/** What `livetables up` writes for other commands. */
interface Facts {
  readonly addresses: { readonly http: string };
  readonly token: string;
  readonly pids: Readonly<Record<string, number>>;
}

/** Records that come in while it runs. */
export interface Stream {
  readonly pid: number | undefined;
  /** Returns when all that was sent is in the tables, which are quiet then. */
  readonly stop: () => Promise<void>;
}

export class Stack {
  readonly directory: string;
  readonly #up: ChildProcess | undefined;

  constructor(directory: string, up?: ChildProcess) {
    this.directory = directory;
    this.#up = up;
  }

  /** Returns when the tables have the records of the first topics; the second topics have others to swap to. */
  static async started(options: StackOptions = {}): Promise<Stack> {
    if (!existsSync(LIVETABLES))
      throw new Error(`there is no ${LIVETABLES}: run \`make check\` once, which sets it up`);
    const directory = mkdtempSync(join(tmpdir(), "livetables-e2e-"));
    writeFileSync(join(directory, "livetables.toml"), config(options));
    const command = [LIVETABLES, "up", "--config", "livetables.toml"];
    const keys = { LIVETABLES_VIEWER_TOKEN: VIEWERS_KEY };
    const up = started(command, {
      directory,
      environment: { ...environment(), ...keys },
      log: join(directory, "up.log"),
    });
    const stack = new Stack(directory, up);
    try {
      await stack.#fill();
    } catch (error) {
      const steps = stack.steps();
      await stack.end();
      throw new Error(`the system did not start:\n${steps}`, { cause: error });
    }
    return stack;
  }

  get url(): string {
    return this.#facts().addresses.http;
  }

  get key(): string {
    return this.#facts().token;
  }

  get httpClient(): HttpClient {
    return new HttpClient(this.url, this.key);
  }

  /** The process of each part, by its name. */
  get pids(): Readonly<Record<string, number>> {
    return this.#facts().pids;
  }

  /** What it printed since its start. */
  steps(): string {
    return readFileSync(join(this.directory, "up.log"), "utf-8");
  }

  // Records

  /** Returns when they are in the tables. */
  async send(options: DemoOptions & { readonly accounts: number }): Promise<Sent> {
    const before = await this.#counts();
    const arriving = await this.#sent(await this.topics(), options);
    await this.#arrived(before, arriving);
    return arriving;
  }

  async stream(options: DemoOptions & { readonly rate: number }): Promise<Stream> {
    const before = await this.#counts();
    const child = this.#livetables(demoArguments(this.#kafka, await this.topics(), options));
    const summary = output(child);
    return {
      pid: child.pid,
      stop: async () => {
        await stopped(child);
        const { code, text } = await summary;
        if (code !== 0) throw new Error(`demo-data failed:\n${text}`);
        await this.#arrived(before, sent(text));
      },
    };
  }

  // What is live, and what else there is to swap to

  async orchestrator(): Promise<Row> {
    const [row] = (await this.httpClient.rows("orchestrator_status")).rows;
    if (!row) throw new Error("orchestrator_status has no row");
    return row;
  }

  async topics(): Promise<Topics> {
    const { usersTopic, accountsTopic } = await this.orchestrator();
    return { users: String(usersTopic), accounts: String(accountsTopic) };
  }

  async otherTopics(): Promise<Topics> {
    return (await this.topics()).users === FIRST.users ? SECOND : FIRST;
  }

  /** `livetables control`; returns when the outcome is there. */
  async control(...words: readonly string[]): Promise<Row> {
    const { text } = await output(this.#livetables(["control", ...words, "--json"]));
    return JSON.parse(text) as Row;
  }

  /** Point to the other topics. */
  async swap(): Promise<Row> {
    const { users, accounts } = await this.otherTopics();
    return await this.control("--users-topic", users, "--accounts-topic", accounts);
  }

  // Mishaps

  /** As a crash would. `livetables up` holds still meanwhile; it starts it again when what is returned is called. */
  takeServerDown(): () => void {
    const server = this.#pid("server");
    const up = parentOf(server);
    process.kill(up, "SIGSTOP");
    process.kill(server, "SIGKILL");
    return () => {
      process.kill(up, "SIGCONT");
    };
  }

  /** The pipeline and its JVM hold still until `resumePipeline`. */
  pausePipeline(): void {
    process.kill(-this.#pid("pipeline"), "SIGSTOP");
  }

  resumePipeline(): void {
    process.kill(-this.#pid("pipeline"), "SIGCONT");
  }

  async isLive(): Promise<boolean> {
    return ["live", "idle"].includes((await this.httpClient.status()).state);
  }

  async end(): Promise<void> {
    if (!this.#up) throw new Error("it is ended by who started it");
    try {
      this.resumePipeline(); // what holds still does not stop
    } catch {
      // There is none.
    }
    await stopped(this.#up);
    rmSync(this.directory, { recursive: true, force: true });
  }

  /** While Spark starts, the topics fill. */
  async #fill(): Promise<void> {
    await this.#printed("Kafka is up at");
    const [first] = await Promise.all([
      this.#sent(FIRST, { users: 1000, accounts: 4000 }),
      this.#sent(SECOND, { users: 1000, accounts: 5000, seed: 2 }),
    ]);
    await this.#printed("ready: ");
    await this.#arrived({ users: 0, accounts: 0, deadLetters: 0 }, first);
  }

  async #printed(text: string): Promise<void> {
    const up = this.#up;
    await until(`it prints "${text}"`, () => this.steps().includes(text) || (up && !isRunning(up)));
    if (!this.steps().includes(text)) throw new Error("it has ended");
  }

  async #sent(topics: Topics, options: DemoOptions): Promise<Sent> {
    const { code, text } = await output(this.#livetables(demoArguments(this.#kafka, topics, options)));
    if (code !== 0) throw new Error(`demo-data failed:\n${text}`);
    return sent(text);
  }

  async #arrived(before: Sent, arriving: Sent): Promise<void> {
    await until("all records are in the tables", async () => {
      const now = await this.#counts();
      return (Object.keys(arriving) as (keyof Sent)[]).every((table) => now[table] === before[table] + arriving[table]);
    });
  }

  async #counts(): Promise<Sent> {
    const { httpClient } = this;
    const [users, accounts, deadLetters] = await Promise.all([
      httpClient.total("users_ui"),
      httpClient.total("accounts_ui"),
      httpClient.total("dead_letters"),
    ]);
    return { users, accounts, deadLetters };
  }

  #livetables(words: readonly string[]): ChildProcess {
    return started([LIVETABLES, ...words], { directory: this.directory, environment: environment() });
  }

  /** Its address is printed before anything else. */
  get #kafka(): string {
    const address = /Kafka is up at (\S+)/.exec(this.steps())?.[1];
    if (address === undefined) throw new Error("Kafka is not up yet");
    return address;
  }

  #facts(): Facts {
    return JSON.parse(readFileSync(join(this.directory, ".livetables/up.json"), "utf-8")) as Facts;
  }

  #pid(name: string): number {
    const pid = this.pids[name];
    if (pid === undefined) throw new Error(`the ${name} does not run`);
    return pid;
  }
}

/** Without anybody's own settings of livetables. */
function environment(): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("LIVETABLES_")));
}

function parentOf(pid: number): number {
  const status = readFileSync(`/proc/${pid}/status`, "utf-8");
  return Number(/^PPid:\s*(\d+)$/m.exec(status)?.[1]);
}
