/** Which names a table may have: the server has no others, so that asking it for one is a mistake of the page. Pure. */
import type { Problem } from "./errors.js";

const TABLE_NAME = /^[A-Za-z_][A-Za-z0-9_]*$/;

/** Return why a table cannot have this name; null if it can. */
export function tableNameProblem(name: string): Problem | null {
  if (TABLE_NAME.test(name)) return null;
  return {
    code: "bad_name",
    problem: `${JSON.stringify(name.slice(0, 80))} is not a table's name`,
    cure: "use letters, digits and underscores only, and no digit first",
  };
}
