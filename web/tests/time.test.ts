import { describe, expect, it } from "vitest";
import { compact, duration, millis, numberOf, parseDuration, percent, relative } from "../src/lib/time";

describe("duration", () => {
  it.each([
    [0, "0 s"],
    [0.0004, "<1 ms"],
    [0.038, "38 ms"],
    [0.9996, "1 s"],
    [1.34, "1.3 s"],
    [42, "42 s"],
    [59.99, "1 min"],
    [180, "3 min"],
    [5_400, "1.5 h"],
    [587_520, "6.8 d"],
    [-3, "-3 s"],
    [NaN, "–"],
  ])("says %s seconds as %s", (seconds, said) => expect(duration(seconds)).toBe(said));
});

describe("relative", () => {
  it("looks back and ahead", () => {
    expect(relative(0, 42_900)).toBe("42 s ago");
    expect(relative(180_000, 0)).toBe("in 3 min");
    expect(relative(500, 0)).toBe("now");
  });
});

it("never rounds a share up to 100 %", () => {
  expect(percent(0.9999)).toBe("99.9 %");
  expect(percent(1)).toBe("100 %");
  expect(percent(0 / 0)).toBe("–");
});

it("keeps badges short", () => {
  expect(compact(1_284)).toBe("1,284");
  expect(compact(12_345)).toBe("12.3k");
  expect(compact(1_000_000)).toBe("1M");
});

it("reads durations and times, and nothing else", () => {
  expect(parseDuration("1.5h")).toBe(5_400);
  expect(parseDuration("90")).toBe(90);
  expect(parseDuration("soon")).toBeNull();
  expect(millis("2026-11-18T09:00:00.5Z")).toBe(Date.UTC(2026, 10, 18, 9, 0, 0, 500));
  expect(millis("")).toBeNull();
  expect(millis("never")).toBeNull();
});

describe("numberOf", () => {
  it.each([
    [numberOf(0, "run"), "0 runs"],
    [numberOf(1, "run"), "1 run"],
    [numberOf(2_000, "run is", "runs are"), "2,000 runs are"],
  ])("says %s", (said, wanted) => expect(said).toBe(wanted));
});
