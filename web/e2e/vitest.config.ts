import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    globalSetup: ["support/setup.ts"],
    // All files share one system, and each needs it for itself.
    fileParallelism: false,
    isolate: false,
    // Hang guards, not measurements: a busy machine may be slow.
    testTimeout: 120_000,
    hookTimeout: 300_000,
    teardownTimeout: 90_000,
    expect: { poll: { timeout: 60_000, interval: 50 } },
  },
});
