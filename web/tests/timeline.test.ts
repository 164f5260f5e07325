import { describe, expect, it } from "vitest";
import type { Attempt, Segment, Step } from "../src/api/types";
import { bars, compressed, failedAttempts, idleSpans, isMostlyIdle, linear, stepName, ticks, zoomed } from "../src/lib/timeline";

const at = (ms: number): string => new Date(ms).toISOString();
const segment = (kind: string, start: number, end: number | null, attempt = 0): Segment => ({ kind, start: at(start), end: end === null ? null : at(end), attempt });
const attempt = (number: number, error: string | null, ended = true): Attempt => ({
  seq: 1,
  number,
  started_at: at(0),
  ended_at: ended ? at(1) : null,
  next_at: null,
  error,
  details: null,
  outside: false,
  worker: null,
  lost: false,
});
const step = (more: Partial<Step>): Step => ({
  kind: "activity",
  name: "charge",
  seq: 1,
  entry: 0,
  answer: null,
  state: "open",
  input: null,
  output: null,
  error: null,
  to: "",
  key: "",
  began_at: at(0),
  ended_at: null,
  tries: 1,
  attempts: [],
  segments: [],
  kept: false,
  ...more,
});

describe("a linear scale", () => {
  const scale = linear(1_000, 3_000);
  it("maps both ends and back", () => {
    expect(scale.place(1_000)).toBe(0);
    expect(scale.place(3_000)).toBe(1);
    expect(scale.time(0.25)).toBe(1_500);
  });
  it("has round ticks", () => {
    expect(ticks(linear(0, 42_000), 0).map((one) => one.label)).toEqual(["0 s", "10 s", "20 s", "30 s", "40 s"]);
    expect(ticks(zoomed(linear(0, 42_000), 10_500, 12_500), 0)[0]?.label).toBe("11 s");
  });
});

describe("a scale with shortened waits", () => {
  const scale = compressed(0, 100_000, [{ start: 1_000, end: 99_000 }]);
  it("gives what was done most of the room", () => {
    expect(scale.place(1_000)).toBeCloseTo(0.4);
    expect(scale.place(99_000) - scale.place(1_000)).toBeLessThan(0.25);
    expect(scale.place(100_000)).toBeCloseTo(1);
    expect(scale.breaks).toHaveLength(1);
    expect(scale.breaks[0]?.seconds).toBe(98);
  });
  it("rises everywhere, and maps back", () => {
    const places = [0, 500, 1_000, 50_000, 99_000, 99_500, 100_000].map((time) => scale.place(time));
    expect([...places].sort((a, b) => a - b)).toEqual(places);
    expect(scale.time(scale.place(50_000))).toBeCloseTo(50_000);
  });
  it("copes with waits that touch, overlap or reach beyond the run", () => {
    const odd = compressed(0, 10_000, [
      { start: -5, end: 2_000 },
      { start: 1_000, end: 3_000 },
      { start: 3_000, end: 50_000 },
    ]);
    expect(odd.place(0)).toBe(0);
    expect(odd.place(10_000)).toBeCloseTo(1);
  });
  it("is offered when waits take most of the time", () => {
    const spans = idleSpans([segment("running", 0, 1_000), segment("asleep", 1_000, null)], 10_000);
    expect(spans).toEqual([{ start: 1_000, end: 10_000 }]);
    expect(isMostlyIdle(spans, 0, 10_000)).toBe(true);
    expect(isMostlyIdle(spans, 0, 100_000)).toBe(false);
  });
});

describe("bars", () => {
  it("show an attempt that failed as failed", () => {
    const segments = [segment("running", 0, 500, 1), segment("backoff", 500, 600, 1), segment("running", 600, null, 2)];
    expect(bars(segments, linear(0, 1_000), 1_000, new Set([1])).map((bar) => [bar.kind, bar.left, bar.open])).toEqual([
      ["failed", 0, false],
      ["backoff", 0.5, false],
      ["running", 0.6, true],
    ]);
  });
  it("leave out what is not in view", () => {
    const scale = zoomed(linear(0, 1_000), 400, 600);
    expect(bars([segment("running", 0, 100), segment("asleep", 100, 500), segment("running", 700, 900)], scale, 1_000)).toEqual([
      { kind: "asleep", left: 0, width: 0.5, attempt: 0, open: false },
    ]);
  });
  it("of ten thousand tiny pieces are few", () => {
    const segments = Array.from({ length: 10_000 }, (_, index) => segment(index % 2 ? "running" : "backoff", index, index + 1, index));
    expect(bars(segments, linear(0, 10_000), 10_000).length).toBeLessThan(2_500);
  });
});

it("an attempt that another came after was cut off", () => {
  expect(failedAttempts(step({ attempts: [attempt(1, null, false), attempt(2, '{"type":"E","message":""}'), attempt(3, null)] }))).toEqual(new Set([1, 2]));
});

it("steps have names", () => {
  expect(stepName(step({}))).toBe("charge");
  expect(stepName(step({ kind: "timer", name: "", input: 10 }))).toBe("timer 10 s");
  expect(stepName(step({ kind: "side_effect", name: "uuid" }))).toBe("side effect uuid");
});
