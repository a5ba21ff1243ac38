/**
 * One viewport's talk with the server: immutable states × frames in a table that the compiler checks. Pure.
 *
 * | phase    | means                                                                                        |
 * |----------|----------------------------------------------------------------------------------------------|
 * | unsent   | the server does not know of it                                                               |
 * | rejected | nor is it asked for it, as it cannot have it                                                 |
 * | asked    | the server knows of it, its window is still to come                                          |
 * | current  | its window is here, and follows by patches                                                   |
 * | lost     | a patch did not follow; the whole window was asked for                                       |
 * | refused  | it is over a limit: the server may not have it, or have it and send its window when it can   |
 *
 * Checksums are compared with some frames, as each costs a look at the whole window: with the first patch after a
 * snapshot, with later ones once a second at most, and at a heartbeat if the last frame was not compared. A snapshot is
 * the whole window and needs none. After a difference the window is asked for again, and the next comparison waits for
 * a second: should client and server never agree, that is no storm.
 */
import { checksum } from "./checksum.js";
import type { Problem } from "./errors.js";
import type { Column, ResyncReason, SetView, Subscribe, SubscriptionFrame, ViewOptions } from "./protocol.js";
import type { View } from "./view.js";
import { areSame, patched, shown } from "./window.js";
import type { Window } from "./window.js";

export type Phase = "unsent" | "rejected" | "asked" | "current" | "lost" | "refused";

export interface Viewport {
  readonly table: string;
  readonly view: View;
  readonly sub: number;
  readonly revision: number;
  readonly phase: Phase;
  /** The columns that the server sent last, which it will not send again. */
  readonly columns: readonly Column[];
  readonly generation: string | null;
  readonly window: Window | null;
  readonly problem: Problem | null;
  readonly comparison: Comparison;
}

/** Whether the window is the server's. */
interface Comparison {
  /** When it was last compared. */
  readonly atMs: number;
  readonly wasSame: boolean;
  /** Whether the window is still that of a snapshot. */
  readonly isWhole: boolean;
  /** The checksum of the window that is yet to be compared. */
  readonly open: string | null;
}

export const COMPARE_MS = 1_000;

/** What subscribers are notified of. */
export type News =
  | { readonly kind: "rebound"; readonly before: string; readonly generation: string }
  | { readonly kind: "window"; readonly window: Window }
  | { readonly kind: "problem"; readonly problem: Problem };

/** What is to be sent to the server: nothing, its window anew, or a resync for a reason. */
export type Ask = "nothing" | "subscribe" | ResyncReason;

export interface Step {
  readonly viewport: Viewport;
  readonly news: readonly News[];
  readonly ask: Ask;
  /** Whether a checksum was compared. */
  readonly isCompared: boolean;
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
    comparison: { atMs: -Infinity, wasSame: true, isWhole: true, open: null },
  };
}

/** The frame that opens it; with an interval and checksums, if the server knows of them. */
export function subscribeFrame({ table, view, sub, revision }: Viewport, hasChecksums: boolean): Subscribe {
  const { columns, interval_ms, ...rest } = view;
  const shown: ViewOptions = {
    ...(columns && { columns }),
    ...rest,
    ...(hasChecksums && interval_ms !== null && { interval_ms }),
  };
  const frame: Subscribe = { type: "subscribe", sub, table, view: shown, revision, format: "json" };
  return hasChecksums ? { ...frame, checksum: true } : frame;
}

/** The frame that makes it look elsewhere. It names everything that may change: the server may not have taken an earlier one. */
export function setFrame({ view, sub, revision }: Viewport): SetView {
  const { columns, sort, filters, quick, offset, size } = view;
  return { type: "set", sub, revision, columns, sort, filters, quick, offset, size };
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

/** The server refused one of several frames, without naming it: each that waits may have sent it. */
export function doubted(before: Viewport, problem: Problem): Step {
  return before.phase === "asked" && before.problem === null
    ? notified({ ...before, problem }, { kind: "problem", problem })
    : stay(before);
}

/** The server is not asked for it, as it cannot have it. */
export function rejected(before: Viewport, problem: Problem): Step {
  if (before.phase === "rejected" && before.problem) return stay(before);
  return notified({ ...before, phase: "rejected", problem }, { kind: "problem", problem });
}

/** A heartbeat came: there is time to compare what was not. */
export function compared(before: Viewport, nowMs: number): Step {
  const { window, comparison, phase } = before;
  if (phase !== "current" || !window || comparison.open === null) return stay(before);
  const isSame = checksum(window) === comparison.open;
  const after = { ...before, comparison: { ...comparison, atMs: nowMs, wasSame: isSame, open: null } };
  return { ...(isSame ? stay(after) : ask(after, "checksum")), isCompared: true };
}

export function step(before: Viewport, frame: SubscriptionFrame, nowMs: number): Step {
  // The server takes the columns for known once it has sent them, though a `set` may have been under way meanwhile:
  // so those count whatever their revision. Rows of an earlier revision are of another view.
  if ((frame.type === "snapshot" || frame.type === "patch") && frame.revision !== before.revision) return stay(before);
  const react = TABLE[before.phase][frame.type] as Reaction<SubscriptionFrame>;
  return react(before, frame, nowMs);
}

type Kind = SubscriptionFrame["type"];
type FrameOf<K extends Kind> = Extract<SubscriptionFrame, { type: K }>;
type Reaction<F> = (before: Viewport, frame: F, nowMs: number) => Step;
type Table = Readonly<Record<Phase, { readonly [K in Kind]: Reaction<FrameOf<K>> }>>;

const TABLE = {
  unsent: { schema: stay, rebound: stay, snapshot: stay, patch: stay, error: stay },
  rejected: { schema: stay, rebound: stay, snapshot: stay, patch: stay, error: stay },
  asked: { schema: learn, rebound: rebind, snapshot: show, patch: miss, error: fail },
  current: { schema: learn, rebound: rebind, snapshot: show, patch: follow, error: fail },
  lost: { schema: learn, rebound: rebind, snapshot: show, patch: stay, error: fail },
  refused: { schema: learn, rebound: rebind, snapshot: show, patch: stay, error: fail },
} satisfies Table;

function stay(before: Viewport): Step {
  return { viewport: before, news: [], ask: "nothing", isCompared: false };
}

function notified(viewport: Viewport, ...news: readonly News[]): Step {
  return { ...stay(viewport), news };
}

function learn(before: Viewport, { columns }: FrameOf<"schema">): Step {
  return stay({ ...before, columns: areSame(columns, before.columns) ? before.columns : columns });
}

function rebind(before: Viewport, frame: FrameOf<"rebound">): Step {
  return notified({ ...before, generation: frame.generation }, rebound(frame.before, frame.generation));
}

function show(before: Viewport, frame: FrameOf<"snapshot">): Step {
  const window = shown(frame, before.columns);
  const comparison: Comparison = { ...before.comparison, isWhole: true, open: null };
  const after: Viewport = {
    ...before,
    phase: "current",
    generation: frame.generation,
    window,
    problem: null,
    comparison,
  };
  // After a reconnect no frame announces another generation.
  const isOther = before.generation !== null && before.generation !== frame.generation;
  const first = isOther ? [rebound(before.generation, frame.generation)] : [];
  return notified(after, ...first, { kind: "window", window });
}

function follow(before: Viewport, frame: FrameOf<"patch">, nowMs: number): Step {
  const window = before.window && patched(before.window, frame);
  if (!window) return miss(before);
  const open = frame.checksum ?? null;
  const after: Viewport = { ...before, window, comparison: { ...before.comparison, isWhole: false, open } };
  const step = isDue(before.comparison, nowMs) ? compared(after, nowMs) : stay(after);
  return step.ask === "nothing"
    ? { ...step, news: [{ kind: "window", window }] }
    : { ...step, viewport: { ...step.viewport, window: before.window } }; // what is wrong is not shown
}

function isDue({ atMs, wasSame, isWhole }: Comparison, nowMs: number): boolean {
  return (isWhole && wasSame) || nowMs - atMs >= COMPARE_MS;
}

function miss(before: Viewport): Step {
  return ask(before, "gap");
}

function ask(before: Viewport, reason: ResyncReason): Step {
  return { ...stay(lost(before)), ask: reason };
}

function fail(before: Viewport, { code, problem, cure }: FrameOf<"error">): Step {
  if (code === "unknown_subscription") return { ...stay({ ...before, phase: "unsent" }), ask: "subscribe" };
  const why: Problem = { code, problem, cure };
  // The server does not open a subscription too many, and keeps one whose evaluation is over a limit: both are a `limit`.
  const isRefused = code === "limit" || code === "bad_frame";
  const after: Viewport = { ...before, phase: isRefused ? "refused" : "asked", problem: why };
  return notified(after, { kind: "problem", problem: why });
}

function rebound(before: string, generation: string): News {
  return { kind: "rebound", before, generation };
}
