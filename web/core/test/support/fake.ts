/**
 * Fake time, chance and sockets, for what a real server and a real clock cannot be made to do at will: to be silent, to
 * close between any two frames, to be away for as long as it takes. test/real-server.test.ts has the real ones.
 */
import type { ClientFrame, ServerFrame } from "../../src/protocol.js";
import type { Socket, SocketEvent, Surroundings, WakeListener } from "../../src/surroundings.js";

type Listener = (event: SocketEvent) => void;

export class FakeSocket implements Socket {
  readonly url: string;
  readonly sent: ClientFrame[] = [];
  isClosed = false;
  readonly #listeners = new Map<string, Listener[]>();

  constructor(url: string) {
    this.url = url;
  }

  addEventListener(type: string, listener: Listener): void {
    this.#listeners.set(type, [...(this.#listeners.get(type) ?? []), listener]);
  }

  send(text: string): void {
    if (this.isClosed) throw new Error("the socket is closed");
    this.sent.push(JSON.parse(text) as ClientFrame);
  }

  /** The event comes later, as with a real one. */
  close(): void {
    if (this.isClosed) return;
    this.isClosed = true;
    queueMicrotask(() => {
      this.#emit({ type: "close", code: 1000, reason: "" });
    });
  }

  // What the other side does

  open(): void {
    this.#emit({ type: "open" });
  }

  receive(frame: ServerFrame | Record<string, unknown>): void {
    this.receiveText(JSON.stringify(frame));
  }

  receiveText(data: unknown): void {
    this.#emit({ type: "message", data });
  }

  drop(code = 1006, reason = ""): void {
    this.isClosed = true;
    this.#emit({ type: "close", code, reason });
  }

  /** The frames of one type that were sent. */
  of<T extends ClientFrame["type"]>(type: T): Extract<ClientFrame, { type: T }>[] {
    return this.sent.filter((frame): frame is Extract<ClientFrame, { type: T }> => frame.type === type);
  }

  #emit(event: SocketEvent): void {
    for (const listener of this.#listeners.get(event.type) ?? []) listener(event);
  }
}

export class FakeSurroundings implements Surroundings {
  readonly sockets: FakeSocket[] = [];
  /** What `random` gives. */
  chance = 0.5;
  /** Called with every new socket. */
  onSocket: (socket: FakeSocket) => void = () => undefined;
  #now = 1_000_000;
  readonly #timers = new Set<{ readonly at: number; readonly call: () => void }>();
  readonly #wakeListeners = new Set<WakeListener>();

  now(): number {
    return this.#now;
  }

  readonly later = (call: () => void, ms: number): (() => void) => {
    const timer = { at: this.#now + ms, call };
    this.#timers.add(timer);
    return () => this.#timers.delete(timer);
  };

  random(): number {
    return this.chance;
  }

  connect(url: string): Socket {
    const socket = new FakeSocket(url);
    this.sockets.push(socket);
    this.onSocket(socket);
    return socket;
  }

  onWake(listener: WakeListener): () => void {
    this.#wakeListeners.add(listener);
    return () => this.#wakeListeners.delete(listener);
  }

  // What tests do

  get timers(): number {
    return this.#timers.size;
  }

  get wakeListeners(): number {
    return this.#wakeListeners.size;
  }

  get openSockets(): FakeSocket[] {
    return this.sockets.filter((socket) => !socket.isClosed);
  }

  get socket(): FakeSocket {
    const newest = this.sockets.at(-1);
    if (!newest) throw new Error("nothing has connected");
    return newest;
  }

  wake(asleepMs: number): void {
    for (const listener of [...this.#wakeListeners]) listener(asleepMs);
  }

  /** Let time pass, and what is due happen in its order. */
  async pass(ms: number): Promise<void> {
    const until = this.#now + ms;
    for (;;) {
      const [first] = [...this.#timers].sort((one, other) => one.at - other.at);
      if (!first || first.at > until) break;
      this.#timers.delete(first);
      this.#now = first.at;
      first.call();
      await settled();
    }
    this.#now = until;
    await settled();
  }
}

/** Everything that was to happen at once has happened. */
export async function settled(): Promise<void> {
  await new Promise((resolve) => setImmediate(resolve));
}
