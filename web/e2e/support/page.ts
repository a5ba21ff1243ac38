/** The page as a person uses it. */
import { expect } from "vitest";
import type { BrowserContext, Locator, Page, WebSocket } from "playwright-core";
import { Panel } from "./panel.js";

export type TabName = "Status" | "Control" | "Generations" | "Dead letters" | "Plots";

/** What the browser logs when a server is down, or refuses a key: the page shows it in its own words. */
const AWAY = /WebSocket connection|Failed to load resource/;

export class LivePage {
  readonly page: Page;
  /** What the page's own code has thrown, and what the browser did not let it do. */
  readonly errors: string[] = [];
  readonly #sockets: WebSocket[] = [];
  readonly #url: string;

  private constructor(page: Page, url: string) {
    this.page = page;
    this.#url = url;
    page.on("websocket", (socket) => this.#sockets.push(socket));
    page.on("pageerror", (error) => this.errors.push(error.stack ?? error.message));
    page.on("console", (message) => {
      if (message.type() === "error" && !AWAY.test(message.text())) this.errors.push(message.text());
    });
  }

  /** In a tab of its own. */
  static async made(context: BrowserContext, url: string): Promise<LivePage> {
    return new LivePage(await context.newPage(), url);
  }

  /** With the key in the address, as in a link; without one, as somebody who has none. */
  async open(key?: string): Promise<void> {
    await this.page.goto(key === undefined ? this.#url : `${this.#url}/#key=${encodeURIComponent(key)}`);
  }

  panel(table: string): Panel {
    return new Panel(this.page, table);
  }

  get banner(): Locator {
    return this.page.getByTestId("banner");
  }

  get health(): Locator {
    return this.page.getByTestId("health");
  }

  /** How long records take to it, as its header shows. */
  get latency(): Locator {
    return this.page.getByTestId("latency");
  }

  /** The same by phase, once it is opened. */
  get latencyPhases(): Locator {
    return this.page.getByTestId("latency-phases");
  }

  /** Have the server's frames changed or kept back on their way to the page, for what the server does not do at will. */
  async onItsWay(change: (frame: Frame) => Frame | Promise<Frame>): Promise<void> {
    await this.page.routeWebSocket(/\/ws$/, (route) => {
      const server = route.connectToServer();
      let arrived = Promise.resolve();
      server.onMessage((text) => {
        arrived = arrived.then(async () => {
          route.send(JSON.stringify(await change(JSON.parse(String(text)) as Frame)));
        });
      });
    });
  }

  /** The frames that the page sends, those of a kind; call it before the page is opened. */
  sent(type: string): readonly Frame[] {
    const frames: Frame[] = [];
    this.page.on("websocket", (socket) => {
      socket.on("framesent", ({ payload }) => {
        const frame = JSON.parse(String(payload)) as Frame;
        if (frame["type"] === type) frames.push(frame);
      });
    });
    return frames;
  }

  get openSockets(): number {
    return this.#sockets.filter((socket) => !socket.isClosed()).length;
  }

  async showTab(name: TabName): Promise<void> {
    const tab = this.page.getByRole("tab", { name, exact: true });
    await tab.click();
    await expect.poll(() => tab.getAttribute("aria-selected")).toBe("true");
  }

  // Login

  get login(): Locator {
    return this.page.getByTestId("login");
  }

  async logIn(key: string): Promise<void> {
    await this.login.getByLabel("Key").fill(key);
    await this.login.getByRole("button", { name: "Log in" }).click();
  }

  /** What the browser keeps for this page, all of it. */
  async stored(storage: "sessionStorage" | "localStorage"): Promise<string> {
    return await this.page.evaluate((name) => JSON.stringify(Object.entries(window[name])), storage);
  }

  // Control

  get outcome(): Locator {
    return this.page.getByTestId("control-outcome");
  }

  /** The outcome of the message that was sent last; undefined while none was. */
  async outcomeName(): Promise<string | null | undefined> {
    return (await this.outcome.count()) === 0 ? undefined : await this.outcome.getAttribute("data-outcome");
  }

  async fillControl({ users, accounts, join }: ControlFields): Promise<void> {
    if (users !== undefined) await this.page.getByLabel("Users topic").fill(users);
    if (accounts !== undefined) await this.page.getByLabel("Accounts topic").fill(accounts);
    if (join !== undefined) await this.page.getByLabel("Join", { exact: true }).selectOption(join);
  }

  async sendControl(): Promise<void> {
    await this.page.getByRole("button", { name: "Send", exact: true }).click();
  }
}

/** A frame of docs/PROTOCOL.md. */
export type Frame = Readonly<Record<string, unknown>>;

interface ControlFields {
  readonly users?: string;
  readonly accounts?: string;
  readonly join?: string;
}
