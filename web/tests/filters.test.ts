import { describe, expect, it } from "vitest";
import { fromQuery, inWords, isUnfiltered, NO_FILTERS, type RunFilters, toQuery } from "../src/lib/filters";

const MANY: RunFilters = {
  states: ["failed", "timed_out"],
  name: "checkout",
  kind: "workflow",
  queue: "psp-acme",
  idPrefix: "order/2 &=?",
  tags: ["merchant=acme", "note=a=b"],
  key: "k",
  parent: "01a1ef29-cb86-7668-9456-3e311628309f",
  since: "24h",
  until: "2026-11-18T00:00:00Z",
  retrying: true,
  tries: 3,
};

describe("filters in the address", () => {
  it("come back as they were", () => expect(fromQuery(new URLSearchParams(toQuery(MANY).toString()))).toEqual(MANY));
  it("are nothing when there are none", () => {
    expect(toQuery(NO_FILTERS).toString()).toBe("");
    expect(fromQuery(new URLSearchParams())).toEqual(NO_FILTERS);
    expect(isUnfiltered(NO_FILTERS)).toBe(true);
    expect(isUnfiltered(MANY)).toBe(false);
  });
  it("ignore what is no number", () => expect(fromQuery(new URLSearchParams("tries=many")).tries).toBe(0));
});

it("are said in words", () => {
  expect(inWords(NO_FILTERS)).toBe("runs");
  expect(inWords({ ...NO_FILTERS, kind: "job", retrying: true }, 1)).toBe("job that retries");
  expect(inWords({ ...NO_FILTERS, states: ["timed_out"], kind: "job", queue: "q" })).toBe("timed out jobs in queue q");
});
