/**
 * A model of the server, over fake sockets: the rules of docs/PROTOCOL.md and nothing else.
 *
 * Everything that takes time in the real one is a step that a test takes when it likes: reading a frame of the client
 * (`read`), writing news into a socket (`write`), and their arrival (`deliver`). So any order that can happen, can be
 * made to happen.
 */
import type { ClientFrame, Column, Patch, Receipt, ServerFrame, Snapshot, Status, Value } from "../../src/protocol.js";
import type { ViewOptions } from "../../src/protocol.js";
import { viewKey, viewOf } from "../../src/view.js";
import type { View } from "../../src/view.js";
import type { Window } from "../../src/window.js";
import { nodeChecksum } from "./checksum.js";
import type { FakeSocket } from "./fake.js";
import { status, WELCOME } from "./frames.js";

interface StoredRow {
  readonly id: number;
  readonly values: Readonly<Record<string, Value>>;
}

interface Table {
  generation: string;
  columns: readonly Column[];
  rows: StoredRow[];
}

/** What a page shows of a viewport. */
export type Content = Pick<Window, "rows" | "columns" | "total" | "generation">;

interface State {
  readonly generation: string;
  readonly sequence: number;
  readonly columns: readonly Column[];
  readonly ids: readonly number[];
  readonly rows: readonly (readonly Value[])[];
  readonly total: number;
  readonly content: Content;
}

interface Failure {
  readonly code: string;
}

/** A distinct table and view on the server, with what it shows. */
interface ServerViewport {
  readonly table: string;
  readonly view: View;
  state: State | Failure;
  before: State | null;
  sequence: number;
}

/** What a client looks at, and what it was last sent of it. */
interface ServerSubscription {
  readonly sub: number;
  readonly revision: number;
  readonly viewport: ServerViewport;
  readonly hasChecksums: boolean;
  generation: string | null;
  columns: readonly Column[] | null;
  sequence: number | null;
  failure: Failure | null;
}

export interface Session {
  readonly socket: FakeSocket;
  readonly subscriptions: Map<number, ServerSubscription>;
  readonly outgoing: ServerFrame[];
  isLoggedIn: boolean;
  readCount: number;
}

/** A mistake in a patch: one of its values is another, or one of its rows is missing. */
export type Fault = "wrong value" | "lost row";

export const COLUMNS: readonly Column[] = [
  { name: "name", type: "string" },
  { name: "age", type: "int64" },
];
const OTHER_COLUMNS: readonly Column[] = [...COLUMNS, { name: "email", type: "string" }];

export class ModelServer {
  key = "the key";
  isUp = true;
  readonly tables = new Map<string, Table>();
  sessions: Session[] = [];
  /** Every state of every viewport that ever was, by generation and sequence, which are used once. */
  readonly history = new Map<string, State>();
  /** Why clients asked for whole windows, where they gave a reason. */
  readonly resyncs: (string | undefined)[] = [];
  /** How many patches were made wrong. */
  faults = 0;
  #freshness: Status["state"] = "live";
  #isShortOfMemory = false;
  #fault: Fault | null = null;
  readonly #now: () => number;
  readonly #viewports = new Map<string, ServerViewport>();
  #generations = 0;
  #sequences = 0;
  #ids = 0;

  constructor(now: () => number) {
    this.#now = now;
  }

  get subscriptions(): number {
    return this.sessions.reduce((sum, session) => sum + session.subscriptions.size, 0);
  }

  // Tables

  /** Another generation takes over: all its rows are others, and perhaps its columns. */
  publish(name: string, rows: number, hasOtherColumns: boolean): void {
    const columns = hasOtherColumns ? OTHER_COLUMNS : COLUMNS;
    const generation = `g${++this.#generations}`;
    this.tables.set(name, { generation, columns, rows: [] });
    for (let each = 0; each < rows; each++) this.#insert(name, each);
    this.#evaluate(name);
  }

  publishIfGone(name: string): void {
    if (!this.tables.has(name)) this.publish(name, 3, false);
  }

  drop(name: string): void {
    this.tables.delete(name);
    this.#evaluate(name);
  }

  /** The new row's number, which is in its name too. */
  insert(name: string, age: number): number {
    const id = this.#insert(name, age);
    this.#evaluate(name);
    return id;
  }

  change(name: string, index: number, age: number): void {
    const rows = this.tables.get(name)?.rows ?? [];
    const row = rows[index % rows.length];
    if (row) rows[index % rows.length] = { ...row, values: { ...row.values, age } };
    this.#evaluate(name);
  }

  remove(name: string, index: number): void {
    const rows = this.tables.get(name)?.rows ?? [];
    rows.splice(index % Math.max(1, rows.length), 1);
    this.#evaluate(name);
  }

  /** What the status says. */
  setState(state: Status["state"]): void {
    this.#freshness = state;
    for (const { isLoggedIn, outgoing } of this.sessions) if (isLoggedIn) outgoing.push(status(state));
  }

  /** While it is, no view can be evaluated; those that were are, as soon as it is not. */
  setShortOfMemory(isShort: boolean): void {
    this.#isShortOfMemory = isShort;
    for (const name of this.tables.keys()) this.#evaluate(name);
  }

  // Sockets

  connect(socket: FakeSocket): void {
    this.sessions.push({ socket, subscriptions: new Map(), outgoing: [], isLoggedIn: false, readCount: 0 });
    if (this.isUp) socket.open();
    else this.close(1006);
  }

  /** Close all sockets. What was under way is lost. */
  close(code: number): void {
    const closing = this.sessions;
    this.sessions = [];
    for (const { socket } of closing) if (!socket.isClosed) socket.drop(code);
  }

  /** The process dies, and forgets its viewports. */
  stop(): void {
    this.isUp = false;
    this.close(1006);
    this.#viewports.clear();
  }

  start(): void {
    this.isUp = true;
  }

  /** Read one frame of a client, if there is one. */
  read(): boolean {
    this.#forgetClosed();
    for (const session of this.sessions) {
      const frame = session.socket.sent[session.readCount];
      if (!frame) continue;
      session.readCount++;
      this.#take(session, frame);
      return true;
    }
    return false;
  }

  /** Write the news of one subscription into its socket, if there are any. */
  write(): boolean {
    this.#forgetClosed();
    for (const session of this.sessions) {
      for (const subscription of session.subscriptions.values()) {
        const frames = this.#frames(subscription);
        session.outgoing.push(...frames.map((frame) => this.#spoiled(frame)));
        if (frames.length > 0) return true;
      }
    }
    return false;
  }

  /** Have one frame arrive, if one is under way. */
  deliver(): boolean {
    this.#forgetClosed();
    for (const { socket, outgoing } of this.sessions) {
      const frame = outgoing.shift();
      if (!frame) continue;
      socket.receive(frame);
      return true;
    }
    return false;
  }

  /** Lose a patch that is under way, or have it arrive twice: no WebSocket does, but a client must notice. */
  spoil(how: "lose" | "repeat"): void {
    for (const { outgoing } of this.sessions) {
      const index = outgoing.findIndex(({ type }) => type === "patch");
      const frame = outgoing[index];
      if (!frame) continue;
      outgoing.splice(index, 1, ...(how === "lose" ? [] : [frame, frame]));
      return;
    }
  }

  /** Put a fault into the next patch that can have it. */
  corrupt(fault: Fault): void {
    this.#fault = fault;
  }

  /** What a view shows now; null if it cannot. */
  shown(table: string, options: ViewOptions): State | null {
    const state = this.#state({ table, view: viewOf(options), sequence: 0 });
    return "code" in state ? null : state;
  }

  #forgetClosed(): void {
    this.sessions = this.sessions.filter(({ socket }) => !socket.isClosed);
  }

  #take(session: Session, frame: ClientFrame): void {
    const { socket, outgoing, subscriptions } = session;
    if (frame.type === "hello") {
      session.isLoggedIn = frame.token === this.key;
      if (session.isLoggedIn) outgoing.push({ ...WELCOME, time: this.#time }, status(this.#freshness));
      else {
        socket.receive({ type: "error", code: "unauthorized", problem: "the key is wrong", cure: "log in" });
        if (!socket.isClosed) socket.drop(4401);
      }
      return;
    }
    if (!session.isLoggedIn) throw new Error(`${frame.type} came before hello`);
    switch (frame.type) {
      case "heartbeat":
        outgoing.push({ type: "heartbeat", time: this.#time });
        break;
      case "subscribe":
        if (subscriptions.has(frame.sub)) throw new Error(`sub ${frame.sub} is in use`);
        subscriptions.set(
          frame.sub,
          this.#look(frame.sub, frame.revision, frame.table, viewOf(frame.view), frame.checksum ?? false),
        );
        break;
      case "set": {
        const { sub, revision, ...changes } = frame;
        const before = this.#subscription(session, sub);
        const looking = this.#look(
          sub,
          revision,
          before.viewport.table,
          viewOf({ ...before.viewport.view, ...changes }),
          before.hasChecksums,
        );
        subscriptions.set(sub, { ...looking, generation: before.generation, columns: before.columns });
        break;
      }
      case "unsubscribe":
        this.#subscription(session, frame.sub);
        subscriptions.delete(frame.sub);
        break;
      case "resync":
        this.#subscription(session, frame.sub).sequence = null;
        this.resyncs.push(frame.reason);
        break;
    }
  }

  /** A client of one server makes no mistakes: the model has no answer to them. */
  #subscription({ subscriptions }: Session, sub: number): ServerSubscription {
    const found = subscriptions.get(sub);
    if (!found) throw new Error(`there is no subscription ${sub}`);
    return found;
  }

  get #time(): string {
    return new Date(this.#now()).toISOString();
  }

  #look(sub: number, revision: number, table: string, view: View, hasChecksums: boolean): ServerSubscription {
    const key = viewKey(table, view);
    let viewport = this.#viewports.get(key);
    if (!viewport) {
      this.#sequences += 1_000; // no viewport has a sequence of another one
      viewport = { table, view, state: { code: "" }, before: null, sequence: this.#sequences };
      this.#viewports.set(key, viewport);
      this.#advance(viewport);
    }
    return { sub, revision, viewport, hasChecksums, generation: null, columns: null, sequence: null, failure: null };
  }

  #frames(subscription: ServerSubscription): ServerFrame[] {
    const { viewport, sub, revision } = subscription;
    const { state, before } = viewport;
    if ("code" in state) {
      if (state === subscription.failure) return [];
      subscription.failure = state;
      subscription.sequence = null;
      return [{ type: "error", sub, code: state.code, problem: `problem: ${state.code}`, cure: "fix it" }];
    }
    if (state.sequence === subscription.sequence) return [];
    const { generation, sequence, columns } = state;
    const heading = { sub, revision, table: viewport.table, generation, sequence, newest: null };
    const frames: ServerFrame[] = [];
    if (subscription.generation !== null && subscription.generation !== generation) {
      frames.push({ type: "rebound", ...heading, before: subscription.generation });
    }
    if (subscription.columns !== columns) frames.push({ type: "schema", ...heading, columns });
    const follows = before !== null && subscription.sequence === before.sequence && isPatchable(before, state);
    frames.push({
      ...heading,
      receipt: follows ? this.#receipt() : null,
      ...(follows ? patchOf(before, state) : snapshotOf(state, viewport.view.offset)),
      ...(subscription.hasChecksums && { checksum: checksumOf(state) }),
    });
    Object.assign(subscription, { generation, columns, sequence, failure: null });
    return frames;
  }

  #spoiled(frame: ServerFrame): ServerFrame {
    const wrong = frame.type === "patch" && this.#fault ? faulty(frame, this.#fault) : null;
    if (!wrong) return frame;
    this.#fault = null;
    this.faults++;
    return wrong;
  }

  #receipt(): Receipt {
    const sent = this.#now();
    return { kafka: sent - 8, spark: sent - 4, applied: sent - 1, sent };
  }

  #insert(name: string, age: number): number {
    const id = this.#ids++;
    this.tables.get(name)?.rows.push({ id, values: { name: `row ${id}`, age, email: `${id}@host` } });
    return id;
  }

  #evaluate(table: string): void {
    for (const viewport of this.#viewports.values()) if (viewport.table === table) this.#advance(viewport);
  }

  #advance(viewport: ServerViewport): void {
    viewport.sequence++;
    const after = this.#state(viewport);
    const { state } = viewport;
    if (!("code" in after)) {
      if (!("code" in state) && isSame(state, after)) {
        viewport.sequence--;
        return;
      }
      this.history.set(`${after.generation} ${after.sequence}`, after);
    }
    viewport.before = "code" in state ? null : state;
    viewport.state = after;
  }

  #state({ table: name, view, sequence }: Pick<ServerViewport, "table" | "view" | "sequence">): State | Failure {
    const table = this.tables.get(name);
    if (!table) return { code: "unknown_table" };
    const isLong = view.filters.some((filter) => "value" in filter && String(filter.value).length > 1_000);
    if (this.#isShortOfMemory || isLong) return { code: "limit" };
    const known = new Set(table.columns.map((column) => column.name));
    const wanted = [...(view.columns ?? []), ...view.sort.map(({ column }) => column)];
    if (wanted.some((column) => !known.has(column))) return { code: "unknown_column" };
    const chosen = view.columns ? table.columns.filter(({ name: each }) => view.columns?.includes(each)) : null;
    const columns = chosen ? columnsOf(chosen) : table.columns;
    const passing = table.rows.filter(({ values }) => String(values["name"]).includes(view.quick));
    const [sort] = view.sort;
    if (sort) {
      const order = sort.descending ? -1 : 1;
      passing.sort(
        (one, other) => order * compared(one.values[sort.column], other.values[sort.column]) || one.id - other.id,
      );
    }
    const page = passing.slice(view.offset, view.offset + view.size);
    const { generation } = table;
    const total = passing.length;
    const named = page.map(({ id, values }) => ({
      ...Object.fromEntries(columns.map((column) => [column.name, values[column.name] ?? null])),
      _row: id,
    }));
    return {
      generation,
      sequence,
      columns,
      ids: page.map(({ id }) => id),
      rows: page.map(({ values }) => columns.map((column) => values[column.name] ?? null)),
      total,
      content: { rows: named, columns, total, generation },
    };
  }
}

const sharedColumns = new Map<string, readonly Column[]>();

/** The same array for the same columns, so that they can be compared by identity. */
function columnsOf(columns: readonly Column[]): readonly Column[] {
  const key = JSON.stringify(columns);
  const found = sharedColumns.get(key) ?? columns;
  sharedColumns.set(key, found);
  return found;
}

function compared(value: Value | undefined, other: Value | undefined): number {
  return typeof value === "number" && typeof other === "number"
    ? value - other
    : String(value) < String(other)
      ? -1
      : 1;
}

function isPatchable(before: State, after: State): boolean {
  return before.generation === after.generation && before.columns === after.columns;
}

function isSame(state: State, other: State): boolean {
  return JSON.stringify({ ...state, sequence: 0 }) === JSON.stringify({ ...other, sequence: 0 });
}

function checksumOf({ total, ids, rows }: State): string {
  return nodeChecksum(
    total,
    ids.map((id, index) => [id, rows[index] ?? []]),
  );
}

function faulty(frame: Patch, fault: Fault): Patch | null {
  const { inserted, updated } = frame;
  const [last] = inserted.slice(-1);
  const [changed] = updated.slice(-1);
  if (fault === "lost row") return last ? { ...frame, inserted: inserted.slice(0, -1) } : null;
  if (changed) {
    const [position, column, value] = changed;
    return { ...frame, updated: [...updated.slice(0, -1), [position, column, other(value)]] };
  }
  if (!last) return null;
  const [position, id, values] = last;
  return { ...frame, inserted: [...inserted.slice(0, -1), [position, id, values.map(other)]] };
}

function other(value: Value): Value {
  return typeof value === "number" ? value + 1 : `${String(value)}!`;
}

function snapshotOf(state: State, offset: number): Pick<Snapshot, "type" | "offset" | "total" | "ids" | "rows"> {
  return { type: "snapshot", offset, total: state.total, ids: state.ids, rows: state.rows };
}

/** A patch, if not the shortest one: rows stay for as long as their order does. */
function patchOf(before: State, after: State): Pick<Patch, "type" | "total" | "removed" | "inserted" | "updated"> {
  const kept = new Map<number, number>(); // position after, position before
  let last = -1;
  after.ids.forEach((id, position) => {
    const was = before.ids.indexOf(id);
    if (was > last) {
      kept.set(position, was);
      last = was;
    }
  });
  const staying = new Set(kept.values());
  const removed = before.ids.flatMap((_, position) => (staying.has(position) ? [] : [position]));
  const inserted: [number, number, readonly Value[]][] = [];
  const updated: [number, number, Value][] = [];
  after.rows.forEach((values, position) => {
    const was = kept.get(position);
    if (was === undefined) inserted.push([position, after.ids[position] ?? -1, values]);
    else {
      values.forEach((value, column) => {
        if (value !== before.rows[was]?.[column]) updated.push([position, column, value]);
      });
    }
  });
  return { type: "patch", total: after.total, removed, inserted, updated };
}
