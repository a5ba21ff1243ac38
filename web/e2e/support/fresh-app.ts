/**
 * An app that `ng new` makes, with our packed packages: the README's examples, and the pages written for the old client.
 *
 * It has the workspace's Angular, or the version that LIVETABLES_ANGULAR names, which is installed for it.
 */
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Page } from "playwright-core";
import { BUILT, run, WEB } from "./built-app.js";

export type AppName = "table" | "grid" | "old-pages";

const NAME = "fresh-app";
/** For Angular 18 and newer; the next one needs Angular 20. */
const AG_GRID = "^35";

/** Build all of it, once for all tests. */
export async function buildFreshApp(): Promise<void> {
  const version = process.env["LIVETABLES_ANGULAR"];
  const place = version === undefined ? BUILT : mkdtempSync(join(tmpdir(), "livetables-angular-"));
  mkdirSync(place, { recursive: true });
  const app = join(place, NAME);
  try {
    rmSync(app, { recursive: true, force: true });
    const ng = version === undefined ? await createHere(place, app) : await createWith(version, place, app);
    writeSources(join(app, "src"));
    const target = join(BUILT, NAME, "dist");
    const options = ["--configuration", "development", "--base-href", "./", "--output-path", target];
    await run(app, ng, "build", ...options);
  } finally {
    if (version !== undefined) rmSync(place, { recursive: true, force: true });
  }
}

/** Open one of the apps, and have it connect to a server. */
export async function openFreshApp(page: Page, origin: string, app: AppName, url: string, key: string): Promise<void> {
  const address = new URLSearchParams({ app, url, key });
  await page.goto(`${origin}/${NAME}/dist/browser/index.html#${address.toString()}`);
}

/** Below the workspace, so that Angular itself is found there; our packages are the packed ones. Returns its `ng`. */
async function createHere(place: string, app: string): Promise<string> {
  const ng = join(WEB, "node_modules/.bin/ng");
  await create(place, ng);
  for (const [name, tarball] of packed()) {
    const target = join(app, "node_modules", name);
    mkdirSync(target, { recursive: true });
    await run(target, "tar", "--extract", "--gzip", "--strip-components=1", "--file", tarball);
  }
  return ng;
}

/** Elsewhere, with everything installed, so that npm checks the ranges of versions. Returns its `ng`. */
async function createWith(version: string, place: string, app: string): Promise<string> {
  await create(place, "npm", "exec", "--yes", "--package", `@angular/cli@${version}`, "--", "ng");
  pin(join(app, "package.json"), version);
  const grid = [`ag-grid-angular@${AG_GRID}`, `ag-grid-community@${AG_GRID}`];
  const tarballs = packed().map(([, tarball]) => tarball);
  await run(app, "npm", "install", "--no-audit", "--no-fund", ...tarballs, ...grid);
  return join(app, "node_modules/.bin/ng");
}

async function create(place: string, ...ng: readonly string[]): Promise<void> {
  const options = ["--defaults", "--minimal", "--routing=false", "--ssr=false", "--skip-git", "--skip-install"];
  await run(place, ...ng, "new", NAME, ...options);
}

/** Have that version of Angular, and no later one of the same major version. */
function pin(file: string, version: string): void {
  const manifest = JSON.parse(readFileSync(file, "utf-8")) as Record<string, Record<string, string>>;
  for (const group of ["dependencies", "devDependencies"]) {
    const packages = manifest[group] ?? {};
    for (const name of Object.keys(packages)) if (/^@angular(-devkit)?\//.test(name)) packages[name] = `~${version}`;
  }
  writeFileSync(file, JSON.stringify(manifest, null, 2));
}

function writeSources(directory: string): void {
  cpSync(join(WEB, "e2e/fresh-app/main.ts"), join(directory, "main.ts"));
  cpSync(join(WEB, "angular/test/old-pages"), join(directory, "old-pages"), { recursive: true });
  const [table, grid] = examples();
  writeFileSync(join(directory, "table.ts"), table);
  writeFileSync(join(directory, "grid.ts"), grid);
}

/** The README's two examples, with the address and the key from the page's own address in place of those written there. */
function examples(): readonly [table: string, grid: string] {
  const text = readFileSync(join(WEB, "README.md"), "utf-8");
  const blocks = [...text.matchAll(/^```ts\n([^]*?)^```$/gm)].map(([, code = ""]) => code);
  const given = '{ url: "http://127.0.0.1:8765", token: "the key" }';
  const [table, grid, ...others] = blocks.map((code) => code.replace(given, "options"));
  if (!table?.includes("(options)") || !grid?.includes("(options)") || others.length > 0)
    throw new Error(`web/README.md should have two examples in TypeScript, each with ${given}`);
  const options = `
const address = new URLSearchParams(location.hash.slice(1));
const options = { url: address.get("url") ?? "", token: address.get("key") ?? "" };
`;
  return [options + table, options + grid];
}

function packed(): readonly (readonly [name: string, tarball: string])[] {
  return (["core", "angular"] as const).map((source) => {
    const manifest = readFileSync(join(WEB, source, "package.json"), "utf-8");
    const { name, version } = JSON.parse(manifest) as { readonly name: string; readonly version: string };
    const tarball = join(WEB, `../dist/${name.slice(1).replace("/", "-")}-${version}.tgz`);
    if (!existsSync(tarball)) throw new Error(`there is no ${tarball}: run \`make npm\`, which packs it`);
    return [name, tarball] as const;
  });
}
