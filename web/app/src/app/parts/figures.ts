/** Numbers and durations as people read them. */

const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export function count(value: number): string {
  return value.toLocaleString("en", { maximumFractionDigits: 0 });
}

export function compact(value: number): string {
  return COMPACT.format(value);
}

/** A duration that is short, to two digits or so. */
export function milliseconds(ms: number): string {
  const size = Math.abs(ms);
  if (size < 9.95) return `${ms.toFixed(1)} ms`;
  if (size < 999.5) return `${ms.toFixed(0)} ms`;
  return size < 59_950 ? `${(ms / 1000).toFixed(1)} s` : duration(ms);
}

export function duration(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86_400)} d`;
}
