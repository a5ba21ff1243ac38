import { expect } from "vitest";
import type { Locator } from "playwright-core";
import { expectSame } from "../support/comparison.js";
import type { Value } from "../support/http-client.js";
import { stack, test } from "../support/test.js";

const OFFSET_BITS = 44n; // an id is a record's partition and offset

test("a joined row's details show the place of both its records", async ({ browsing }) => {
  const question = { q: "mortgage", sort: "accounts_ts:desc" };
  const page = await browsing.opened();
  const panel = page.panel("final_ui");
  await panel.quick(question.q);
  await expectSame(panel, stack.httpClient, question);
  const [row] = (await stack.httpClient.rows("final_ui", { ...question, limit: 1 })).rows;
  const topics = await stack.topics();

  await panel.cell(0, "name").dblclick();
  await expect
    .poll(() => placeIn(page.page.getByTestId("record-users")))
    .toEqual(place(topics.users, row?.["_left_id"]));
  const account = page.page.getByTestId("record-accounts");
  await expect.poll(() => placeIn(account)).toEqual(place(topics.accounts, row?.["_right_id"]));
});

test("a row's details show the place of its record", async ({ browsing }) => {
  const page = await browsing.opened();
  const panel = page.panel("users_ui");
  await expectSame(panel, stack.httpClient);
  const [row] = (await stack.httpClient.rows("users_ui", { sort: "ts:desc", limit: 1 })).rows;
  const { users } = await stack.topics();

  await panel.cell(0, "name").dblclick();
  await expect.poll(() => placeIn(page.page.getByTestId("record-users_ui"))).toEqual(place(users, row?.["_id"]));
});

interface Place {
  readonly topic: string;
  readonly partition: string;
  readonly offset: string;
}

function place(topic: string, id: Value | undefined): Place {
  if (typeof id !== "number") throw new Error("the row has no such record");
  const partition = BigInt(id) >> OFFSET_BITS;
  return { topic, partition: String(partition), offset: String(BigInt(id) - (partition << OFFSET_BITS)) };
}

async function placeIn(record: Locator): Promise<Place> {
  const field = (name: string): Promise<string> => record.locator(`[data-field="${name}"]`).innerText();
  return { topic: await field("topic"), partition: await field("partition"), offset: await field("offset") };
}
