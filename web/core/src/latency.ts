/**
 * How long records take from Kafka to this client, in the last minute: p50 and p99, the whole way and by phase. Pure.
 *
 * Nothing is kept of a frame but a count in a bucket: memory is bounded however many frames come. A figure is right to
 * 2 %, or to 0.02 ms near zero. It may be below zero, where clocks differ.
 */
import type { Receipt } from "./protocol.js";

/** From one place of a receipt to the next: out of Spark, applied by the server, sent, here. */
export const PHASES = ["spark", "applied", "sent", "here"] as const;
export type LatencyPhase = (typeof PHASES)[number];

/** In ms. */
export interface Percentiles {
  readonly p50: number;
  readonly p99: number;
}

export interface Latency {
  /** How many frames had a receipt. */
  readonly frames: number;
  /** From Kafka to here. */
  readonly total: Percentiles;
  readonly phases: Readonly<Record<LatencyPhase, Percentiles>>;
}

const SLICE_MS = 5_000;
const SLICES = 12;

/** The receipts of the last minute, in slices of 5 seconds of which the oldest go. */
export class LatencyMeter {
  #slices: Slice[] = [];

  /** A frame's rows are here. All times are by the server's clock. */
  record({ kafka, spark, applied, sent }: Receipt, hereMs: number): void {
    const number = Math.floor(hereMs / SLICE_MS);
    let slice = this.#slices.at(-1);
    if (slice?.number !== number) {
      slice = { number, counts: counts() };
      this.#slices = [...this.#recent(hereMs), slice];
    }
    count(slice.counts.total, hereMs - kafka);
    count(slice.counts.spark, spark - kafka);
    count(slice.counts.applied, applied - spark);
    count(slice.counts.sent, sent - applied);
    count(slice.counts.here, hereMs - sent);
  }

  /** Null if there were no receipts. */
  summary(nowMs: number): Latency | null {
    this.#slices = this.#recent(nowMs);
    if (this.#slices.length === 0) return null;
    const of = (what: keyof Counts): Percentiles => percentiles(this.#slices.map((slice) => slice.counts[what]));
    return {
      frames: this.#slices.reduce((sum, { counts: { total } }) => sum + size(total), 0),
      total: of("total"),
      phases: { spark: of("spark"), applied: of("applied"), sent: of("sent"), here: of("here") },
    };
  }

  /** How many counts it keeps. */
  get buckets(): number {
    return this.#slices.flatMap(({ counts }) => Object.values(counts)).reduce((sum, { size }) => sum + size, 0);
  }

  /** A clock that was set back leaves nothing of a later time either. */
  #recent(nowMs: number): Slice[] {
    const now = Math.floor(nowMs / SLICE_MS);
    return this.#slices.filter(({ number }) => number > now - SLICES && number <= now);
  }
}

/** How many values fell into which bucket. */
type Histogram = Map<number, number>;
type Counts = Readonly<Record<"total" | LatencyPhase, Histogram>>;

interface Slice {
  readonly number: number;
  readonly counts: Counts;
}

function counts(): Counts {
  return { total: new Map(), spark: new Map(), applied: new Map(), sent: new Map(), here: new Map() };
}

// The inverse hyperbolic sine is as good as linear below 1 ms, logarithmic above, and takes both signs. Half a bucket is
// sqrt(1 + ms²) / (2 × BUCKETS_PER_E) wide: at 1 ms, where that is most of what is promised, 0.0196 ms.
const BUCKETS_PER_E = 36;

function count(histogram: Histogram, ms: number): void {
  const bucket = Math.round(Math.asinh(ms) * BUCKETS_PER_E);
  histogram.set(bucket, (histogram.get(bucket) ?? 0) + 1);
}

function size(histogram: Histogram): number {
  return [...histogram.values()].reduce((sum, each) => sum + each, 0);
}

function percentiles(histograms: readonly Histogram[]): Percentiles {
  const all: Histogram = new Map();
  for (const histogram of histograms) {
    for (const [bucket, times] of histogram) all.set(bucket, (all.get(bucket) ?? 0) + times);
  }
  const sorted = [...all].sort(([one], [other]) => one - other);
  const frames = size(all);
  /** The least value that so large a part of all does not exceed. */
  const percentile = (part: number): number => {
    let left = Math.ceil(part * frames);
    const found = sorted.find(([, times]) => (left -= times) <= 0);
    return found ? Math.sinh(found[0] / BUCKETS_PER_E) : NaN;
  };
  return { p50: percentile(0.5), p99: percentile(0.99) };
}
