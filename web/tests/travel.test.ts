import { expect, it } from "vitest";
import type { Entry } from "../src/api/types";
import { momentAt } from "../src/lib/travel";

const at = "2026-11-18T09:00:00Z";
const JOURNAL: Entry[] = [
  {
    ord: 0,
    kind: "started",
    at,
    body: {
      name: "checkout",
      value: ["order-1"],
      commands: [
        { seq: 1, kind: "publish", name: "stage", value: "charging" },
        { seq: 2, kind: "activity", name: "charge", value: ["order-1"] },
        { seq: 3, kind: "timer", value: 10_000_000 },
      ],
    },
  },
  { ord: 1, kind: "activity_done", at, body: { seq: 2, value: "ch_1", commands: [{ seq: 4, kind: "cancel", target: 3 }] } },
  { ord: 2, kind: "signal", at, body: { name: "approve", value: true, commands: [{ seq: 5, kind: "complete", value: "done" }] } },
];

it("awaits what has no answer yet", () => {
  const moment = momentAt(JOURNAL, 0);
  expect(moment?.awaited.map((call) => call.seq)).toEqual([2, 3]);
  expect(moment?.known).toEqual([]);
  expect(moment?.published).toEqual({ stage: "charging" });
});

it("knows answers, by the name of the call, and drops what was cancelled", () => {
  const moment = momentAt(JOURNAL, 1);
  expect(moment?.awaited).toEqual([]);
  expect(moment?.known).toEqual([{ seq: 2, kind: "activity_done", name: "charge", entry: 1, value: "ch_1" }]);
});

it("ends with the end", () => {
  const moment = momentAt(JOURNAL, 99);
  expect(moment?.ord).toBe(2);
  expect(moment?.ended?.kind).toBe("complete");
  expect(moment?.known.map((one) => one.name)).toEqual(["charge", "approve"]);
});

it("is nothing without entries", () => expect(momentAt([], 0)).toBeNull());
