/** Node 20 does not read TypeScript by itself; Vite does. */
import { runnerImport } from "vite";

await runnerImport("./painted.ts", { root: import.meta.dirname, configFile: false });
