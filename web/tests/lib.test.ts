import { describe, expect, it } from "vitest";
import type { Run, Schema } from "../src/api/types";
import { niceTop } from "../src/lib/charts";
import { bareName } from "../src/lib/failures";
import { brief, changes, inline, parseJson, pretty, tokens } from "../src/lib/json";
import { mergePage, newest, rowsOf, type RunPages } from "../src/lib/pages";
import { control, givenArgs, initial, initialArgs } from "../src/lib/schema";
import { rank } from "../src/lib/search";

describe("JSON", () => {
  it("stays on a line while it is short", () => expect(pretty({ a: [1, true, null] })).toBe('{"a": [1, true, null]}'));
  it("is cut for lists", () => expect(brief("x".repeat(200), 10)).toBe('"xxxxxxxx…'));
  it("is told by what changed", () => {
    expect(changes({ rate: null, concurrency: 20 }, { rate: "200/min", concurrency: 20 })).toBe("rate none → 200/min");
    expect(changes(null, { id: "a", at: 1, key_rate: null })).toBe("id a · at 1");
    expect(changes("closed", "open")).toBe("closed → open");
    expect(changes(null, "open")).toBe("open");
    expect(changes(null, null)).toBe("");
  });
  it("is cut into parts that make the same text", () => {
    const text = inline({ "k:1": "a \"b\": <b>", n: -1.5e3, ok: false });
    expect(
      tokens(text)
        .map((part) => part.text)
        .join(""),
    ).toBe(text);
    expect(tokens('{"a": "b"}').map((part) => part.kind)).toEqual([null, "key", null, null, "text", null]);
  });
  it("says why it is none", () => expect(parseJson("{")).toHaveProperty("problem"));
});

describe("pages of runs", () => {
  const run = (id: string, state = "running"): Run => ({ run_id: id, state, created_at: `2026-01-0${id}` }) as Run;
  const held: RunPages = { pages: [{ cursor: null, runs: [run("3"), run("2")], next: "c" }, { cursor: "c", runs: [run("1")], next: null }], fresh: [] };
  it("change in place, and announce what is new", () => {
    const after = mergePage(held, 0, [run("4"), run("3", "failed")], "c");
    expect(rowsOf(after).map((one) => `${one.run_id} ${one.state}`)).toEqual(["3 failed", "2 running", "1 running"]);
    expect(after.fresh.map((one) => one.run_id)).toEqual(["4"]);
    expect(rowsOf(newest(after)).map((one) => one.run_id)).toEqual(["4", "3", "2", "1"]);
  });
  it("show at once what comes into an empty list", () => {
    const empty: RunPages = { pages: [{ cursor: null, runs: [], next: null }], fresh: [] };
    expect(rowsOf(mergePage(empty, 0, [run("4")], null))).toHaveLength(1);
  });
});

describe("forms from types", () => {
  const schema: Schema = {
    type: "object",
    required: ["to", "size"],
    properties: { to: { $ref: "#/$defs/Name" }, size: { type: "integer" }, kind: { enum: ["a", "b"] }, note: { anyOf: [{ type: "string" }, { type: "null" }] } },
    $defs: { Name: { type: "string" } },
  };
  it("have a control for each field", () => {
    const found = control(schema, schema);
    expect(found.kind === "object" && found.fields.map((field) => control(field.schema, schema).kind)).toEqual(["text", "number", "choice", "text"]);
  });
  it("begin with what is required", () => expect(initial(schema, schema)).toEqual({ to: "", size: 0 }));
  it("have rows for lists of known things", () => {
    expect(control({ type: "array", items: { type: "string" } }, {}).kind).toBe("list");
    expect(control({ type: "array" }, {}).kind).toBe("json");
  });
  it("leave out arguments at the end that are optional and unchanged", () => {
    const parameters = [
      { name: "a", schema: { type: "string" }, required: true, default: null },
      { name: "b", schema: { type: "integer" }, required: false, default: 3 },
      { name: "c", schema: {}, required: false, default: null },
    ];
    expect(initialArgs(parameters)).toEqual(["", 3, null]);
    expect(givenArgs(parameters, ["x", 3, null])).toEqual(["x"]);
    expect(givenArgs(parameters, ["x", 3, { y: 1 }])).toEqual(["x", 3, { y: 1 }]);
  });
  it("are JSON where the type says nothing", () => expect(control({}, {}).kind).toBe("json"));
});

it("what was typed finds commands by letters in order", () => {
  expect(rank(["Go to runs", "Go to queues", "Sign out"], "gq", (text) => text)).toEqual(["Go to queues"]);
  expect(rank(["b runs", "runs"], "runs", (text) => text)[0]).toBe("runs");
});

it("charts end at round numbers", () => {
  expect([0, 1, 7, 11, 23, 60].map(niceTop)).toEqual([1, 1, 8, 12, 30, 60]);
});

it("errors have bare names", () => expect(bareName("shop.errors:Outer.Declined")).toBe("Declined"));
