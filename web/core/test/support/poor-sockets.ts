/** Real sockets on a poor line: what comes over them may get lost or be changed, and is not read for a while. */
import { WebSocket } from "ws";
import type { MessageEvent } from "ws";
import type { Socket, SocketConstructor, SocketEvent } from "../../src/index.js";
import type { ServerFrame } from "../../src/protocol.js";

/** Decides what arrives instead of a frame; null: nothing does. */
export type OnTheWay = (frame: ServerFrame) => ServerFrame | null;

export function poorSockets(onTheWay: OnTheWay): {
  readonly Socket: SocketConstructor;
  readonly pause: () => void;
  readonly resume: () => void;
} {
  const opened: WebSocket[] = [];

  class PoorSocket implements Socket {
    readonly #socket: WebSocket;

    constructor(url: string) {
      this.#socket = new WebSocket(url);
      opened.push(this.#socket);
    }

    send(text: string): void {
      this.#socket.send(text);
    }

    close(code?: number): void {
      this.#socket.close(code);
    }

    addEventListener(type: SocketEvent["type"], listener: (event: SocketEvent) => void): void {
      if (type !== "message") {
        this.#socket.addEventListener(type as "close", listener);
        return;
      }
      this.#socket.addEventListener(type, ({ data }: MessageEvent) => {
        const frame = onTheWay(JSON.parse(data as string) as ServerFrame);
        if (frame) listener({ type, data: JSON.stringify(frame) });
      });
    }
  }

  const each = (change: (socket: WebSocket) => void) => () => {
    for (const socket of opened) if (socket.readyState === WebSocket.OPEN) change(socket);
  };
  return {
    Socket: PoorSocket,
    pause: each((socket) => {
      socket.pause();
    }),
    resume: each((socket) => {
      socket.resume();
    }),
  };
}
