/** Compares what is drawn with what the server answers over HTTP. */
import { expect } from "vitest";
import type { HttpClient, Question, Row, Value } from "./http-client.js";
import type { Panel, ShownRow } from "./panel.js";

/** How the page sorts until somebody sorts otherwise. */
const FIRST_SORT: Readonly<Record<string, string>> = {
  users_ui: "ts:desc",
  accounts_ui: "ts:desc",
  final_ui: "accounts_ts:desc",
};
const NO_VALUE = "–";
const NOT_FROM_THE_TABLE = "details";

/** Returns when the panel shows, in every row and cell that can be seen, what the server has there. */
export async function expectSame(panel: Panel, httpClient: HttpClient, question: Question = {}): Promise<void> {
  await expect.poll(() => differences(panel, httpClient, question)).toEqual([]);
}

/** Where the panel does not show what it should. */
async function differences(panel: Panel, httpClient: HttpClient, question: Question): Promise<string[]> {
  const [shown, total, found] = [await panel.rows(), await panel.total(), await panel.found()];
  const offset = shown[0]?.index ?? 0;
  const sort = question.sort ?? FIRST_SORT[panel.table] ?? "";
  const wanted = await httpClient.rows(panel.table, { ...question, sort, offset, limit: shown.length });
  const all = await httpClient.total(panel.table);
  const problems = shown.flatMap((row) => rowDifferences(row, wanted.rows[row.index - offset]));
  if (shown.length === 0) problems.push("no rows are shown");
  if (total !== all) problems.push(`${total} rows are shown as the total, and there are ${all}`);
  if (found !== wanted.total) problems.push(`${found} rows are shown as found, and there are ${wanted.total}`);
  return problems;
}

function rowDifferences({ index, cells }: ShownRow, row: Row | undefined): string[] {
  if (!row) return [`row ${index} is shown, and not there`];
  const values = Object.entries(cells).filter(([column]) => column !== NOT_FROM_THE_TABLE);
  if (values.length === 0) return [`row ${index} has no cells`];
  return values
    .filter(([column, text]) => !written(column, row[column] ?? null).includes(text))
    .map(([column, text]) => `row ${index}, ${column}: "${text}" is shown for ${JSON.stringify(row[column])}`);
}

/** How the page may write a value. Its tests are in UTC; of a time today, it leaves the day out. */
function written(column: string, value: Value): readonly string[] {
  if (value === null) return [NO_VALUE];
  if (!column.endsWith("ts")) return [String(value)];
  const [day, time] = String(value).split("T") as [string, string];
  const clock = time.slice(0, "12:00:00.123".length);
  return [`${day} ${clock}`, clock];
}
