import { describe, expect, it } from "vitest";
import { tableNameProblem } from "../src/table-name.js";

describe("a table's name", () => {
  it.each(["user", "_user", "final_ui", "T1", "a".repeat(200)])("may be %s", (name) => {
    expect(tableNameProblem(name)).toBeNull();
  });

  it.each(["", "1user", "final-ui", "final ui", "user;", "user\n", "üser", "a.b"])("may not be %j", (name) => {
    expect(tableNameProblem(name)?.code).toBe("bad_name");
  });
});
