import fc from "fast-check";
import { expect, it } from "vitest";
import { LatencyMeter, PHASES } from "../src/latency.js";
import type { Latency } from "../src/latency.js";

const NOW = 1_769_860_800_000;

/** A frame whose record was in Kafka so long before it is here, with the phases after that. */
function record(meter: LatencyMeter, hereMs: number, phases: readonly [number, number, number, number]): void {
  const [spark, applied, sent, here] = phases;
  const times = { kafka: hereMs - here - sent - applied - spark, spark: hereMs - here - sent - applied };
  meter.record({ ...times, applied: hereMs - here - sent, sent: hereMs - here }, hereMs);
}

function rounded(latency: Latency | null): unknown {
  if (!latency) return null;
  const { frames, total, phases } = latency;
  return [frames, total, ...PHASES.map((phase) => phases[phase])].map((each) =>
    typeof each === "number" ? each : [Math.round(each.p50), Math.round(each.p99)],
  );
}

it("is reported for the whole way and by phase", () => {
  const meter = new LatencyMeter();
  record(meter, NOW, [14, 6, 1, 7]);
  expect(rounded(meter.summary(NOW))).toEqual([1, [28, 28], [14, 14], [6, 6], [1, 1], [7, 7]]);
});

it("is that of the last minute, whenever it is asked for", () => {
  const meter = new LatencyMeter();
  record(meter, NOW, [1000, 0, 0, 0]);
  record(meter, NOW + 30_000, [10, 0, 0, 0]);
  expect(meter.summary(NOW + 30_000)?.frames).toBe(2);
  expect(meter.summary(NOW + 62_000)?.frames).toBe(1);
  expect(meter.summary(NOW + 95_000)).toBeNull();
  record(meter, NOW + 96_000, [10, 0, 0, 0]);
  expect(meter.summary(NOW + 96_000)?.frames).toBe(1);
});

it("starts anew when the clock is set back", () => {
  const meter = new LatencyMeter();
  record(meter, NOW, [1000, 0, 0, 0]);
  record(meter, NOW - 3_600_000, [10, 0, 0, 0]);
  expect(meter.summary(NOW - 3_600_000)?.frames).toBe(1);
});

it("is null where nothing came", () => {
  expect(new LatencyMeter().summary(NOW)).toBeNull();
});

it("has percentiles as exact as promised, of any values", () => {
  const ms = fc.oneof(fc.double({ min: -50, max: 50, noNaN: true }), fc.double({ min: 0, max: 1e7, noNaN: true }));
  fc.assert(
    fc.property(fc.array(ms, { minLength: 1, maxLength: 300 }), (values) => {
      const meter = new LatencyMeter();
      for (const value of values) record(meter, NOW, [0, 0, 0, value]);
      const sorted = Float64Array.from(values).sort();
      const latency = meter.summary(NOW);
      for (const [part, key] of [[0.5, "p50"], [0.99, "p99"]] as const) {
        const exact = sorted[Math.ceil(part * values.length) - 1] ?? NaN;
        // A receipt's own times are this exact.
        expect(Math.abs((latency?.phases.here[key] ?? NaN) - exact)).toBeLessThan(0.021 * Math.max(1, Math.abs(exact)) + 0.001);
      }
    }),
  ); // prettier-ignore
});

it("takes no more memory for more frames", () => {
  const meter = new LatencyMeter();
  const values = fc.sample(fc.double({ min: -1e6, max: 1e9, noNaN: true }), 20_000);
  values.forEach((value, index) => {
    record(meter, NOW + index, [value, value, value, value]);
  });
  expect(meter.summary(NOW + values.length)?.frames).toBe(20_000);
  expect(meter.buckets).toBeLessThan(5 * 12 * 2_000);
});
