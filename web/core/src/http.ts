/** Requests over HTTP, for what is asked once. */
import { LivetablesError } from "./errors.js";
import type { Problem } from "./errors.js";
import type { Value } from "./protocol.js";

/** Where on the control topic a message is. */
export interface ControlReceipt {
  readonly topic: string;
  readonly partition: number;
  readonly offset: number;
  /** What tells the message from any other at that place, as there may be one of an earlier topic: its row's `raw` has it. */
  readonly messageId: string;
}

export interface SqlAnswer {
  /** With types as Arrow names them. */
  readonly columns: readonly { readonly name: string; readonly type: string }[];
  readonly rows: readonly (readonly Value[])[];
  /** Whether there are more rows than these. */
  readonly truncated: boolean;
}

/** No answer came: the server may have done what it was asked for. */
export class UnansweredError extends LivetablesError {}

/** An id that no other message has. `crypto.randomUUID` is missing on pages that were not loaded over https. */
export function messageId(random: () => number): string {
  return Array.from({ length: 4 }, () =>
    Math.floor(random() * 2 ** 32)
      .toString(16)
      .padStart(8, "0"),
  ).join("");
}

/** Asks for a path below the server's address; an answer that is not what was asked for is a LivetablesError. */
export async function request(
  fetch: typeof globalThis.fetch,
  base: URL,
  token: string,
  path: string,
  init: RequestInit = {},
): Promise<Response> {
  const headers = new Headers(init.headers);
  try {
    headers.set("Authorization", `Bearer ${token}`);
  } catch {
    throw new LivetablesError({
      code: "unauthorized",
      problem: "the key has characters that cannot be sent over HTTP",
      cure: "give the server a key of ASCII letters, digits and signs",
    });
  }
  let response: Response;
  try {
    response = await fetch(new URL(path.replace(/^\//, ""), base), { ...init, headers });
  } catch (error) {
    throw new UnansweredError({
      code: "unavailable",
      problem: `the server does not answer: ${messageOf(error)}`,
      cure: "check that it runs, and that this page may ask it (server.origins)",
    });
  }
  if (!response.ok) throw new LivetablesError(await problemOf(response));
  return response;
}

/** The JSON of an answer. One that breaks off, or that something else has given, is none. */
export async function answer<T>(response: Response): Promise<T> {
  try {
    return (await response.json()) as T;
  } catch (error) {
    throw new UnansweredError({
      code: "unavailable",
      problem: `the answer cannot be read: ${messageOf(error)}`,
      cure: "try again, and check that the address is that of a livetables server",
    });
  }
}

export function json(body: unknown, headers: Readonly<Record<string, string>> = {}): RequestInit {
  return { method: "POST", headers: { "Content-Type": "application/json", ...headers }, body: JSON.stringify(body) };
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

async function problemOf(response: Response): Promise<Problem> {
  try {
    const { code, problem, cure } = (await response.json()) as Partial<Problem>;
    if (code && problem && cure) return { code, problem, cure };
  } catch {
    // It is from something on the way to the server.
  }
  return {
    code: "unavailable",
    problem: `the answer is ${response.status} ${response.statusText}`.trimEnd(),
    cure: "check that the address is that of a livetables server",
  };
}
