/** Where the bars of a timeline stand: scales, ticks and bars. Pure arithmetic, no DOM. */

import type { Segment, Step } from "../api/types";
import { duration, millis } from "./time";

/** Maps a time (ms) to a place: 0 is the left end, 1 the right. */
export interface Scale {
  start: number;
  end: number;
  place(at: number): number;
  time(place: number): number;
  /** Waits that are drawn shorter than they were. */
  breaks: Break[];
}

export interface Break {
  from: number;
  to: number;
  seconds: number;
}

export interface Span {
  start: number;
  end: number;
}

const IDLE = new Set(["asleep", "waiting", "outside", "paused", "delayed", "parked"]);

export function linear(start: number, end: number): Scale {
  const length = Math.max(end - start, 1);
  return {
    start,
    end: start + length,
    place: (at) => (at - start) / length,
    time: (place) => start + place * length,
    breaks: [],
  };
}

/** A scale on which long waits take little room, so that what was done in between can be seen. */
export function compressed(start: number, end: number, idle: readonly Span[]): Scale {
  const waits = idle
    .map((span) => ({ start: Math.max(span.start, start), end: Math.min(span.end, end) }))
    .filter((span) => span.end > span.start)
    .sort((a, b) => a.start - b.start);
  const idleTime = waits.reduce((sum, span) => sum + span.end - span.start, 0);
  const busy = Math.max(end - start - idleTime, 1);
  const most = Math.max(busy * 0.25, 1);
  const real: number[] = [start];
  const drawn: number[] = [0];
  const shortened: Span[] = [];
  const push = (at: number, length: number): void => {
    real.push(at);
    drawn.push((drawn.at(-1) ?? 0) + length);
  };
  let at = start;
  for (const span of waits) {
    const from = Math.max(span.start, at);
    if (span.end <= from) continue;
    if (from > at) push(from, from - at);
    const length = span.end - from;
    push(span.end, Math.min(length, most));
    if (length > most) shortened.push({ start: from, end: span.end });
    at = span.end;
  }
  if (end > at || real.length === 1) push(Math.max(end, at + 1), Math.max(end - at, 1));
  const total = drawn.at(-1) ?? 1;
  const place = (time: number): number => interpolate(real, drawn, time) / total;
  return {
    start,
    end: real.at(-1) ?? end,
    place,
    time: (share) => interpolate(drawn, real, share * total),
    breaks: shortened.map((span) => ({
      from: place(span.start),
      to: place(span.end),
      seconds: (span.end - span.start) / 1000,
    })),
  };
}

/** Looks up `value` among rising `xs`; beyond the ends the slope of the whole goes on. */
function interpolate(xs: readonly number[], ys: readonly number[], value: number): number {
  const last = xs.length - 1;
  let low = 0;
  let high = last;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if ((xs[middle] ?? 0) <= value) low = middle;
    else high = middle;
  }
  const [x0, x1, y0, y1] = [xs[low] ?? 0, xs[high] ?? 1, ys[low] ?? 0, ys[high] ?? 1];
  return x1 === x0 ? y0 : y0 + ((value - x0) / (x1 - x0)) * (y1 - y0);
}

/** A part of another scale, stretched over the whole width. */
export function zoomed(scale: Scale, from: number, to: number): Scale {
  const left = scale.place(from);
  const width = Math.max(scale.place(to) - left, 1e-9);
  return {
    start: from,
    end: to,
    place: (at) => (scale.place(at) - left) / width,
    time: (place) => scale.time(left + place * width),
    breaks: scale.breaks.map((one) => ({ ...one, from: (one.from - left) / width, to: (one.to - left) / width })),
  };
}

/** The waits of a run: what it did while nothing of it was at work. */
export function idleSpans(segments: readonly Segment[], now: number): Span[] {
  const found: Span[] = [];
  for (const one of segments) {
    const start = millis(one.start);
    if (start !== null && IDLE.has(one.kind)) found.push({ start, end: millis(one.end) ?? now });
  }
  return found;
}

/** Whether waits take so much of the time that the rest could not be seen. */
export function isMostlyIdle(idle: readonly Span[], start: number, end: number): boolean {
  const sum = idle.reduce((total, span) => total + span.end - span.start, 0);
  return end > start && sum < end - start && sum / (end - start) > 0.7;
}

export interface Tick {
  place: number;
  label: string;
}

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000].concat(
  [1, 2, 5, 10, 15, 30].map((minutes) => minutes * 60_000),
  [1, 2, 3, 6, 12, 24, 48, 120, 240, 720, 2_400].map((hours) => hours * 3_600_000),
);

/** At round distances from `origin` on a linear scale; evenly spread where waits are compressed. */
export function ticks(scale: Scale, origin: number, most = 7): Tick[] {
  if (scale.breaks.length) {
    return Array.from({ length: most }, (_, index) => {
      const place = index / (most - 1);
      return { place, label: duration(Math.max(0, (scale.time(place) - origin) / 1000)) };
    });
  }
  const length = scale.end - scale.start;
  const step = STEPS.find((one) => length / one <= most - 1) ?? length;
  const found: Tick[] = [];
  for (let at = Math.ceil((scale.start - origin) / step) * step; at <= scale.end - origin + 0.001; at += step) {
    found.push({ place: scale.place(origin + at), label: duration(at / 1000) });
  }
  return found;
}

/** One piece of a bar, in shares of the width. `kind` is a segment's, or `failed` for an attempt that failed. */
export interface Bar {
  kind: string;
  left: number;
  width: number;
  attempt: number;
  open: boolean;
}

const FINEST = 0.0008;

/** The pieces of a bar that lie in view; of very many tiny ones of a kind, one. */
export function bars(segments: readonly Segment[], scale: Scale, now: number, failed?: ReadonlySet<number>): Bar[] {
  const found: Bar[] = [];
  for (const one of segments) {
    const start = millis(one.start);
    if (start === null) continue;
    const left = clamp(scale.place(start));
    const right = clamp(scale.place(millis(one.end) ?? now));
    if (right === 0 && scale.place(millis(one.end) ?? now) < 0) continue;
    if (left === 1 && scale.place(start) > 1) continue;
    const kind = one.kind === "running" && failed?.has(one.attempt) ? "failed" : one.kind;
    const before = found.at(-1);
    if (before && before.kind === kind && left - before.left - before.width < FINEST && right - left < FINEST) {
      before.width = right - before.left;
      before.open = one.end === null;
      continue;
    }
    const isTiny = before !== undefined && right - before.left < FINEST && before.width < FINEST && kind !== "failed";
    if (isTiny) continue;
    found.push({ kind, left, width: right - left, attempt: one.attempt ?? 0, open: one.end === null });
  }
  return found;
}

function clamp(place: number): number {
  return Math.min(1, Math.max(0, place));
}

/** The numbers of a step's attempts that ended with an error, or were cut off: another came after them. */
export function failedAttempts(step: Step): Set<number> {
  const last = Math.max(0, ...step.attempts.map((one) => one.number));
  return new Set(
    step.attempts
      .filter((one) => one.error !== null || (one.number < last && !one.outside))
      .map((one) => one.number),
  );
}

const POINTS = new Set(["start", "publish", "side_effect", "patch", "send", "signal", "fork", "end", "cancel", "undo"]);

/** Steps that take no time are drawn as a mark. */
export function isPoint(step: Step): boolean {
  return step.segments.length === 0 && POINTS.has(step.kind);
}

/** Its name in the list: `charge_card`, `timer 10 s`, `signal approve`, `child ship`. */
export function stepName(step: Step): string {
  if (step.kind === "activity") return step.name;
  if (step.kind === "timer" && typeof step.input === "number") return `timer ${duration(step.input)}`;
  return [step.kind.replace("_", " "), step.name].filter(Boolean).join(" ");
}
