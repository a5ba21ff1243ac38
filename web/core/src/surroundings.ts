/** What a browser or Node has to give: time, chance, sockets, and the news that a tab has woken. Tests give their own. */
import { LivetablesError } from "./errors.js";

/** What is used of a WebSocket: the browser's own, and that of the package `ws`. */
export interface Socket {
  send(text: string): void;
  close(code?: number): void;
  addEventListener(type: "open" | "message" | "close" | "error", listener: (event: SocketEvent) => void): void;
}

export interface SocketEvent {
  readonly type: string;
  readonly data?: unknown;
  readonly code?: number;
  readonly reason?: string;
}

export type SocketConstructor = new (url: string) => Socket;

/** How long a tab has slept. */
export type WakeListener = (asleepMs: number) => void;

export interface Surroundings {
  now(): number;
  /** Call once, later; the function that is returned cancels it. */
  readonly later: (call: () => void, ms: number) => () => void;
  /** From 0 to less than 1. */
  random(): number;
  connect(url: string): Socket;
  /** Call it when the page is seen again, or the network is back; the function that is returned ends it. */
  onWake(listener: WakeListener): () => void;
}

export function surroundings(WebSocket: SocketConstructor | undefined): Surroundings {
  const Constructor = WebSocket ?? (globalThis as { WebSocket?: SocketConstructor }).WebSocket;
  if (!Constructor) {
    throw new LivetablesError({
      code: "unavailable",
      problem: "there is no WebSocket here",
      cure: "give one: new LiveTablesClient({ WebSocket }), with import { WebSocket } from 'ws' in Node",
    });
  }
  return {
    now: () => Date.now(), // it goes on while a computer sleeps, which a monotonic clock may not
    later: (call, ms) => {
      const timer = setTimeout(call, ms);
      return () => {
        clearTimeout(timer);
      };
    },
    random: () => Math.random(),
    connect: (url) => new Constructor(url),
    onWake: typeof document === "undefined" ? () => () => undefined : onWakeOfTab,
  };
}

function onWakeOfTab(listener: WakeListener): () => void {
  let hiddenAt = document.visibilityState === "hidden" ? Date.now() : null;
  const onVisibility = (): void => {
    if (document.visibilityState === "hidden") {
      hiddenAt ??= Date.now();
    } else if (hiddenAt !== null) {
      const asleepMs = Date.now() - hiddenAt;
      hiddenAt = null;
      listener(asleepMs);
    }
  };
  const onNetwork = (): void => {
    listener(Infinity); // whatever was connected before may be gone without a word
  };
  document.addEventListener("visibilitychange", onVisibility);
  globalThis.addEventListener("online", onNetwork);
  return () => {
    document.removeEventListener("visibilitychange", onVisibility);
    globalThis.removeEventListener("online", onNetwork);
  };
}
