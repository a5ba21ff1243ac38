/**
 * How far the server's clock is ahead of this one. Pure.
 *
 * It is measured at the hello and at each heartbeat: the server's time belongs to the middle between the question and the
 * answer, give or take half the way there and back. Of the last minute's measurements the one with the shortest way
 * counts, so that a page that was busy when an answer came does not shift the time.
 */
export interface ClockDifference {
  /** What to add to this clock's time to get the server's. */
  readonly aheadMs: number;
  /** How wrong that may be. */
  readonly uncertaintyMs: number;
}

const MEASUREMENTS_MAX = 6; // a minute of heartbeats

/** The measurements with another one, the latest last. A time that cannot be read measures nothing. */
export function measured(
  before: readonly ClockDifference[],
  askedAt: number,
  answeredAt: number,
  serverTime: string,
): readonly ClockDifference[] {
  const server = Date.parse(serverTime);
  // A clock that was set back meanwhile measures nothing either.
  if (Number.isNaN(server) || answeredAt < askedAt) return before;
  const latest = { aheadMs: server - (askedAt + answeredAt) / 2, uncertaintyMs: (answeredAt - askedAt) / 2 };
  return [...before, latest].slice(-MEASUREMENTS_MAX);
}

/** The most certain one, the latest of equals; null if there is none. */
export function best(measurements: readonly ClockDifference[]): ClockDifference | null {
  return measurements.reduce<ClockDifference | null>(
    (found, each) => (found && found.uncertaintyMs < each.uncertaintyMs ? found : each),
    null,
  );
}
