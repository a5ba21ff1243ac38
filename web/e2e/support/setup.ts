/** One system and one browser for all test files. */
import type { TestProject } from "vitest/node";
import { browserServer } from "./browser.js";
import { Stack } from "./stack.js";

declare module "vitest" {
  interface ProvidedContext {
    directory: string;
    browser: string;
  }
}

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const browser = await browserServer();
  let stack: Stack;
  try {
    stack = await Stack.started();
  } catch (error) {
    await browser.close();
    throw error;
  }
  project.provide("directory", stack.directory);
  project.provide("browser", browser.wsEndpoint());

  const end = async (): Promise<void> => {
    process.off("SIGINT", interrupted).off("SIGTERM", interrupted);
    await browser.close();
    await stack.end();
  };
  const interrupted = (): void => {
    void end().finally(() => process.exit(1));
  };
  process.on("SIGINT", interrupted).on("SIGTERM", interrupted);
  return end;
}
