/** Apps that the tests build, on an address of their own, as `ng serve` has one: the server lets it in by its settings. */
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { extname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { output, started } from "./child.js";

export const WEB = fileURLToPath(new URL("../../", import.meta.url));
/** Where they are built. */
export const BUILT = join(WEB, "e2e/dist");

const TYPES: Readonly<Record<string, string>> = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css" };

export interface AppServer {
  readonly origin: string;
  readonly close: () => void;
}

/** Serve what is built, or will be. */
export async function appServer(): Promise<AppServer> {
  const server = createServer(({ url = "/" }, response) => {
    const { pathname } = new URL(url, "http://127.0.0.1");
    try {
      const body = readFileSync(join(BUILT, pathname));
      response.writeHead(200, { "Content-Type": TYPES[extname(pathname)] ?? "text/plain" }).end(body);
    } catch {
      response.writeHead(404).end();
    }
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  return {
    origin: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    close: () => {
      server.close();
      server.closeAllConnections();
    },
  };
}

/** Run a command that builds something, to its end. */
export async function run(directory: string, ...command: readonly string[]): Promise<void> {
  const { code, text } = await output(started(command, { directory, environment: process.env }));
  if (code !== 0) throw new Error(`${command.join(" ")} failed:\n${text}`);
}
