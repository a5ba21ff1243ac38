/** Chromium as it is installed; each browser context in it is a fresh profile. */
import { chromium } from "playwright-core";
import type { BrowserServer } from "playwright-core";

const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

/** One browser for many test files. */
export async function browserServer(): Promise<BrowserServer> {
  return await chromium.launchServer({
    executablePath: process.env["CHROMIUM"] ?? "/usr/bin/chromium",
    args: FLAGS,
    host: "127.0.0.1",
    // Whoever starts it ends it, after a signal too.
    handleSIGINT: false,
    handleSIGTERM: false,
    handleSIGHUP: false,
  });
}
