/** Rows of the tables in which the pipeline reports its status, and this page's views of them. */
import { inject } from "@angular/core";
import type { Signal } from "@angular/core";
import { LiveTableService } from "@livetables/angular";
import type { Column, Row, ViewOptions, Window } from "@livetables/angular";

/** The one row of orchestrator_status; beside these it has a column for the topic of each table. */
export interface OrchestratorRow extends Row {
  readonly joinType: string | null;
  readonly generation: string | null;
  readonly state: string;
  readonly message: string | null;
}

export interface ControlRow extends Row {
  readonly ts: string | null;
  readonly partition: number;
  readonly offset: number;
  readonly rollback: boolean | null;
  readonly raw: string | null;
  /** Null until it is decided. */
  readonly outcome: string | null;
  readonly why: string | null;
  readonly generation: string | null;
}

export interface GenerationRow extends Row {
  readonly generation: string;
  readonly joinType: string | null;
  readonly state: string;
  readonly started: string | null;
  readonly switched: string | null;
  readonly retired: string | null;
  readonly rows: number | null;
  readonly message: string | null;
}

export interface DeadLetterRow extends Row {
  readonly topic: string;
  readonly partition: number;
  readonly offset: number;
  readonly ts: string | null;
  readonly reason: string;
}

export const NEWEST_GENERATIONS: ViewOptions = { sort: [{ column: "started", descending: true }], size: 50 };

/** The one row that shows what is live. Call in an injection context; however many do, it is one viewport. */
export function orchestratorStatus(): Signal<Window | undefined> {
  return inject(LiveTableService).windowOf(
    () => "orchestrator_status",
    () => ({ size: 1 }),
  );
}

const TOPIC = "Topic";
const JOIN = "Join";
const JOIN_TYPE = "joinType";

/** The columns that name the topic of a table: one for each table, whatever they are called. */
export function topicFields(columns: readonly Column[]): readonly string[] {
  return columns.map(({ name }) => name).filter((name) => name.endsWith(TOPIC));
}

/** The columns that name the join of a view: joinType, and one for each view that it does not mean. */
export function joinFields(columns: readonly Column[]): readonly string[] {
  return columns.map(({ name }) => name).filter((name) => name === JOIN_TYPE || name.endsWith(JOIN));
}

export function tableOf(topicField: string): string {
  return topicField.slice(0, -TOPIC.length);
}

/** Like "Users topic" for usersTopic. */
export function label(field: string): string {
  if (field === JOIN_TYPE) return "Join";
  const words = field.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`).replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** Like "users ← user · accounts ← account · left join", with the view where joinType does not mean it. */
export function sentence(row: Row, columns: readonly Column[]): string {
  const topics = topicFields(columns)
    .filter((field) => row[field] !== null)
    .map((field) => `${tableOf(field)} ← ${String(row[field])}`);
  const joins = joinFields(columns)
    .filter((field) => row[field])
    .map((field) => `${field === JOIN_TYPE ? "" : `${field.slice(0, -JOIN.length)} `}${String(row[field])} join`);
  return [...topics, ...joins].join(" · ");
}
