/** One system and one browser for all test files, and an address for apps that they build. */
import type { TestProject } from "vitest/node";
import { browserServer } from "./browser.js";
import { appServer } from "./built-app.js";
import { SECOND_VIEW, Stack } from "./stack.js";

/** For the form's selectors; the pictures of the documentation show the preset alone. */
const VIEWS = process.env["LIVETABLES_SCREENSHOTS"] === undefined ? SECOND_VIEW : "";

declare module "vitest" {
  interface ProvidedContext {
    directory: string;
    browser: string;
    apps: string;
  }
}

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const browser = await browserServer();
  const apps = await appServer();
  let stack: Stack;
  try {
    stack = await Stack.started({ origins: [apps.origin], views: VIEWS });
  } catch (error) {
    apps.close();
    await browser.close();
    throw error;
  }
  project.provide("directory", stack.directory);
  project.provide("browser", browser.wsEndpoint());
  project.provide("apps", apps.origin);

  const end = async (): Promise<void> => {
    process.off("SIGINT", interrupted).off("SIGTERM", interrupted);
    apps.close();
    await browser.close();
    await stack.end();
  };
  const interrupted = (): void => {
    void end().finally(() => process.exit(1));
  };
  process.on("SIGINT", interrupted).on("SIGTERM", interrupted);
  return end;
}
