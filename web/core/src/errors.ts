/** What went wrong, for people and programs: the form of the server's errors, and of this client's. */
export interface Problem {
  /** For programs: `unauthorized`, `unknown_table`, `bad_filter`, ... */
  readonly code: string;
  readonly problem: string;
  /** The fix. */
  readonly cure: string;
}

/** A problem that is thrown, or that a promise is rejected with. */
export class LivetablesError extends Error implements Problem {
  override readonly name = "LivetablesError";
  readonly code: string;
  readonly problem: string;
  readonly cure: string;

  constructor({ code, problem, cure }: Problem) {
    super(`${problem}\n  cure: ${cure}`);
    this.code = code;
    this.problem = problem;
    this.cure = cure;
  }
}
