/** `livetables demo-data`, and its report of what it has sent. */

export interface Topics {
  readonly users: string;
  readonly accounts: string;
}

export interface DemoOptions {
  /** Records a second; 0: as fast as possible. */
  readonly rate?: number;
  readonly users?: number;
  readonly accounts?: number;
  readonly seed?: number;
  readonly badShare?: number;
}

/** Records by the table that they come to. */
export interface Sent {
  readonly users: number;
  readonly accounts: number;
  readonly deadLetters: number;
}

export function demoArguments(kafka: string, topics: Topics, options: DemoOptions): string[] {
  const { rate = 0, users = 20, accounts, seed = 1, badShare = 0 } = options;
  return [
    ...["demo-data", "--bootstrap-servers", kafka, "--users-topic", topics.users, "--accounts-topic", topics.accounts],
    ...["--rate", rate, "--users", users, "--seed", seed, "--bad-share", badShare].map(String),
    ...(accounts === undefined ? [] : ["--accounts", String(accounts)]),
  ];
}

export function sent(summary: string): Sent {
  return {
    users: count(summary, /: ([\d,]+) good user records/),
    accounts: count(summary, /: ([\d,]+) good account records/),
    deadLetters: count(summary, /to become dead letters: ([\d,]+)/),
  };
}

function count(summary: string, pattern: RegExp): number {
  const found = pattern.exec(summary)?.[1];
  if (found === undefined) throw new Error(`demo-data has not reported what it sent:\n${summary}`);
  return Number(found.replaceAll(",", ""));
}
