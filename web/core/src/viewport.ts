/**
 * One viewport's talk with the server: immutable states × frames in a table that the compiler checks. Pure.
 *
 * | phase   | means                                                          |
 * |---------|----------------------------------------------------------------|
 * | unsent  | the server does not know of it                                 |
 * | asked   | the server knows of it, its window is still to come            |
 * | current | its window is here, and follows by patches                     |
 * | lost    | a patch did not fit; the whole window was asked for            |
 * | refused | the server does not take it, as there are too many             |
 */
import type { Problem } from "./errors.js";
import type { Column, SetView, Subscribe, SubscriptionFrame } from "./protocol.js";
import type { View } from "./view.js";
import { areSame, patched, shown } from "./window.js";
import type { Window } from "./window.js";

export type Phase = "unsent" | "asked" | "current" | "lost" | "refused";

export interface Viewport {
  readonly table: string;
  readonly view: View;
  readonly sub: number;
  readonly revision: number;
  readonly phase: Phase;
  /** The columns that the server last told, which it will not tell again. */
  readonly columns: readonly Column[];
  readonly generation: string | null;
  readonly window: Window | null;
  readonly problem: Problem | null;
}

/** What those who look are told. */
export type News =
  | { readonly kind: "rebound"; readonly before: string; readonly generation: string }
  | { readonly kind: "window"; readonly window: Window }
  | { readonly kind: "problem"; readonly problem: Problem };

/** What is to be sent to the server. */
export type Ask = "nothing" | "resync" | "subscribe";

export interface Step {
  readonly viewport: Viewport;
  readonly news: readonly News[];
  readonly ask: Ask;
}

export function viewport(table: string, view: View, sub: number): Viewport {
  return {
    table,
    view,
    sub,
    revision: 0,
    phase: "unsent",
    columns: [],
    generation: null,
    window: null,
    problem: null,
  };
}

/** The frame that opens it. */
export function subscribeFrame({ table, view, sub, revision }: Viewport): Subscribe {
  const { columns, ...rest } = view;
  return { type: "subscribe", sub, table, view: columns ? { columns, ...rest } : rest, revision, format: "json" };
}

/** The frame that makes it look elsewhere. It names everything: the server may not have taken an earlier one. */
export function setFrame({ view, sub, revision }: Viewport): SetView {
  return { type: "set", sub, revision, ...view };
}

/** It was sent to the server. */
export function asked(before: Viewport): Viewport {
  return { ...before, phase: "asked", problem: null };
}

/** It looks elsewhere, and what it showed is not what it will show. */
export function moved(before: Viewport, view: View): Viewport {
  return { ...before, view, revision: before.revision + 1, window: null, problem: null };
}

/** The whole window is asked for. */
export function lost(before: Viewport): Viewport {
  return { ...before, phase: "lost" };
}

/** The server did not take one of several frames, and did not say which: whoever waits may have sent it. */
export function doubted(before: Viewport, problem: Problem): Step {
  return before.phase === "asked" && before.problem === null
    ? told({ ...before, problem }, { kind: "problem", problem })
    : stay(before);
}

export function step(before: Viewport, frame: SubscriptionFrame): Step {
  // The server takes the columns for known once it has told them, though a `set` may have been under way meanwhile:
  // so those count whatever their revision. Rows of an earlier revision are of another view.
  if ((frame.type === "snapshot" || frame.type === "patch") && frame.revision !== before.revision) return stay(before);
  const react = TABLE[before.phase][frame.type] as (before: Viewport, frame: SubscriptionFrame) => Step;
  return react(before, frame);
}

type Kind = SubscriptionFrame["type"];
type FrameOf<K extends Kind> = Extract<SubscriptionFrame, { type: K }>;
type Table = Readonly<Record<Phase, { readonly [K in Kind]: (before: Viewport, frame: FrameOf<K>) => Step }>>;

const TABLE = {
  unsent: { schema: stay, rebound: stay, snapshot: stay, patch: stay, error: stay },
  asked: { schema: learn, rebound: rebind, snapshot: show, patch: ask, error: fail },
  current: { schema: learn, rebound: rebind, snapshot: show, patch: follow, error: fail },
  lost: { schema: learn, rebound: rebind, snapshot: show, patch: stay, error: fail },
  refused: { schema: stay, rebound: stay, snapshot: stay, patch: stay, error: stay },
} satisfies Table;

function stay(before: Viewport): Step {
  return { viewport: before, news: [], ask: "nothing" };
}

function told(viewport: Viewport, ...news: readonly News[]): Step {
  return { viewport, news, ask: "nothing" };
}

function learn(before: Viewport, { columns }: FrameOf<"schema">): Step {
  return {
    viewport: { ...before, columns: areSame(columns, before.columns) ? before.columns : columns },
    news: [],
    ask: "nothing",
  };
}

function rebind(before: Viewport, frame: FrameOf<"rebound">): Step {
  return told({ ...before, generation: frame.generation }, rebound(frame.before, frame.generation));
}

function show(before: Viewport, frame: FrameOf<"snapshot">): Step {
  const window = shown(frame, before.columns);
  const after: Viewport = { ...before, phase: "current", generation: frame.generation, window, problem: null };
  // After a reconnect nobody says that it is another generation.
  const isOther = before.generation !== null && before.generation !== frame.generation;
  const first = isOther ? [rebound(before.generation, frame.generation)] : [];
  return told(after, ...first, { kind: "window", window });
}

function follow(before: Viewport, frame: FrameOf<"patch">): Step {
  const window = before.window && patched(before.window, frame);
  return window ? told({ ...before, window }, { kind: "window", window }) : ask(before);
}

function ask(before: Viewport): Step {
  return { viewport: lost(before), news: [], ask: "resync" };
}

function fail(before: Viewport, { code, problem, cure }: FrameOf<"error">): Step {
  if (code === "unknown_subscription") return { viewport: { ...before, phase: "unsent" }, news: [], ask: "subscribe" };
  const why: Problem = { code, problem, cure };
  const isRefused = code === "limit" || code === "bad_frame";
  // Otherwise the server keeps it, and sends its window when it can.
  const after: Viewport = { ...before, phase: isRefused ? "refused" : "asked", problem: why };
  return told(after, { kind: "problem", problem: why });
}

function rebound(before: string, generation: string): News {
  return { kind: "rebound", before, generation };
}
