/** Times and durations in words that people use: 38 ms, 42 s, 3 min, 6.8 d. */

const UNITS: readonly [string, number][] = [
  ["d", 86_400],
  ["h", 3_600],
  ["min", 60],
];

/** A duration with at most three digits and one unit. */
export function duration(seconds: number): string {
  if (!Number.isFinite(seconds)) return "–";
  const sign = seconds < 0 ? "-" : "";
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size < 0.001) return `${sign}<1 ms`;
  if (size < 0.9995) return `${sign}${Math.round(size * 1000)} ms`;
  for (const [unit, length] of UNITS) {
    if (size >= length * 0.9995) return `${sign}${digits(size / length)} ${unit}`;
  }
  return `${sign}${digits(size)} s`;
}

function digits(value: number): string {
  return value < 9.95 ? trim(value.toFixed(1)) : grouped(Math.round(value));
}

function trim(text: string): string {
  return text.endsWith(".0") ? text.slice(0, -2) : text;
}

/** A whole number with commas. */
export function grouped(value: number): string {
  return Math.round(value).toLocaleString("en-US");
}

/** `1 run`, `2,000 runs`. `many`: what stands after other numbers than one; without it, `one` with an s. */
export function numberOf(count: number, one: string, many = `${one}s`): string {
  return `${grouped(count)} ${count === 1 ? one : many}`;
}

/** A number that must fit a badge: 1,284 but 12.3k and 1.2M. */
export function compact(value: number): string {
  if (value < 10_000) return grouped(value);
  if (value < 999_950) return `${trim((value / 1_000).toFixed(1))}k`;
  return `${trim((value / 1_000_000).toFixed(1))}M`;
}

/** A share as a percentage: 98.9 %, 100 %. Never rounds up to 100. */
export function percent(share: number): string {
  if (!Number.isFinite(share)) return "–";
  const value = share * 100;
  return `${trim((value >= 100 ? 100 : Math.floor(value * 10) / 10).toFixed(1))} %`;
}

/** Milliseconds of an ISO time; null of nothing and of what is no time. */
export function millis(iso: string | null | undefined): number | null {
  if (!iso) return null;
  const found = Date.parse(iso);
  return Number.isNaN(found) ? null : found;
}

/** "42 s ago", "in 3 min". */
export function relative(at: number, now: number): string {
  const seconds = (now - at) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `${duration(whole(seconds))} ago` : `in ${duration(whole(-seconds))}`;
}

function whole(seconds: number): number {
  return seconds < 60 ? Math.floor(seconds) : seconds;
}

/** The exact time, in the reader's zone, with the zone. */
export function exact(at: number): string {
  const date = new Date(at);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock(at)} ${zone(date)}`;
}

/** The time of day, with milliseconds where there are any. */
export function clock(at: number): string {
  const date = new Date(at);
  const fraction = date.getMilliseconds();
  const rest = fraction ? `.${String(fraction).padStart(3, "0")}` : "";
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}${rest}`;
}

function zone(date: Date): string {
  const minutes = -date.getTimezoneOffset();
  if (minutes === 0) return "UTC";
  const size = Math.abs(minutes);
  return `UTC${minutes < 0 ? "-" : "+"}${two(Math.floor(size / 60))}:${two(size % 60)}`;
}

function two(value: number): string {
  return String(value).padStart(2, "0");
}

/** Seconds of "90", "30s", "5m", "2h", "7d"; null of anything else. */
export function parseDuration(text: string): number | null {
  const found = /^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d|w)?\s*$/.exec(text);
  if (!found) return null;
  const size = { ms: 0.001, s: 1, m: 60, min: 60, h: 3_600, d: 86_400, w: 604_800 }[found[2] ?? "s"];
  return size === undefined ? null : Number(found[1]) * size;
}
