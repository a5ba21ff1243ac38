/** Show one of the apps, by its name in the page's address. The README's are written beside this file when it is built. */
const APPS: Readonly<Record<string, () => Promise<unknown>>> = {
  table: () => import("./table"),
  grid: () => import("./grid"),
  "old-pages": () => import("./old-pages/main"),
};

void APPS[new URLSearchParams(location.hash.slice(1)).get("app") ?? ""]?.();
