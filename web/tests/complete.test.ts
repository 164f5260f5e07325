import { describe, expect, it } from "vitest";
import document from "../../docs/flows/flow-1.schema.json";
import { complete, type JsonSchema } from "../src/lib/complete";

const schema = document as unknown as JsonSchema;
const labels = (text: string): string[] => {
  const at = text.indexOf("|");
  return complete(text.replace("|", ""), at, schema)?.proposals.map((one) => one.label) ?? [];
};
/** The text after the first proposal was taken. */
const taken = (text: string): string => {
  const at = text.indexOf("|");
  const whole = text.replace("|", "");
  const found = complete(whole, at, schema);
  return found ? whole.slice(0, found.from) + (found.proposals[0]?.insert ?? "") + whole.slice(found.to) : whole;
};

describe("the editor of flows proposes", () => {
  it("names that the document does not have yet", () => {
    expect(labels('{"name": "x", |}')).toEqual(["description", "trigger_type", "trigger", "steps", "format"]);
    expect(labels('{"na|')).toEqual(["name"]);
    expect(labels('{"na|": 1, "steps": []}')).toEqual(["name"]);
  });
  it("types of steps, also in blocks", () => {
    expect(labels('{"steps": [{"key": "a", "type": "c|"}]}')).toEqual(["condition", "compensate"]);
    expect(labels('{"steps": [{"type": "try", "config": {"catch": [{"type": "wa|')).toEqual(["wait_event"]);
  });
  it("names of the config of that type of step, wherever the type stands", () => {
    expect(labels('{"steps": [{"type": "condition", "config": {"|"}}]}')).toEqual(["rule", "onTrue", "onFalse"]);
    expect(labels('{"steps": [{"config": {|}, "type": "condition"}]}')).toEqual(["rule", "onTrue", "onFalse"]);
    expect(labels('{"trigger": {"concurrency": {"key": "k", "|')).toEqual(["limit", "overlap"]);
  });
  it("words, and the keys of steps", () => {
    expect(labels('{"trigger": {"concurrency": {"overlap": "|"}}}')).toEqual(["allow", "buffer", "cancel", "queue", "skip"]);
    expect(labels('{"steps": [{"key": "a", "type": "end"}, {"key": "b", "type": "condition", "config": {"onTrue": "|"}}]}')).toEqual(["a", "b"]);
  });
  it("nothing where all is free, or nothing is known", () => {
    expect(labels('{"name": "|"}')).toEqual([]);
    expect(labels('{"steps": [{"type": "set", "config": {"values": {"|')).toEqual([]);
    expect(labels("|")).toEqual([]);
  });
  it("what takes the place of the word at the cursor", () => {
    expect(taken('{"na|')).toBe('{"name": ""');
    expect(taken('{"na|": 1}')).toBe('{"name": 1}');
    expect(taken('{"steps": [{"type": "cond|"}]}')).toBe('{"steps": [{"type": "condition"}]}');
    expect(taken('{"steps": [{"type": |}]}')).toBe('{"steps": [{"type": "condition"}]}');
    expect(taken('{"name": "x", "st|')).toBe('{"name": "x", "steps": []');
  });
});
