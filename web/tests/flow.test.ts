import { describe, expect, it } from "vitest";
import type { FlowStep } from "../src/api/flows";
import { type Done, graphOf, isTaken, pathOf } from "../src/lib/flow";

const STEPS: FlowStep[] = [
  { key: "large", type: "condition", config: { onFalse: "done" } },
  { key: "ask", type: "approval", config: { onRejected: "done", onTimeout: "done" } },
  { key: "maybe", type: "set", next: "done" },
  { key: "late", type: "fail" },
  { key: "done", type: "end" },
];

const step = (key: string, output: Done["output"] = {}, status = "COMPLETED"): Done => ({ key, type: String(STEPS.find((one) => one.key === key)?.type), status, output });

/** The ways that were taken, as "from to". */
const taken = (...done: Done[]): string[] => {
  const path = pathOf(done);
  return graphOf(STEPS)
    .edges.filter((edge) => isTaken(edge, path))
    .map((edge) => `${edge.from} ${edge.to}`);
};

describe("the path of a run", () => {
  it("is the way that it went, and not those beside it", () => {
    expect(taken(step("large", { result: true }), step("ask", { approved: true }), step("maybe"), step("done"))).toEqual(["large ask", "ask maybe", "maybe done"]);
    expect(taken(step("large", { result: false }), step("done"))).toEqual(["large done"]);
    expect(taken(step("large", { result: true }), step("ask", { approved: false }), step("done"))).toEqual(["large ask", "ask done"]);
    expect(taken(step("large", { result: true }), step("ask", { timedOut: true }), step("done"))).toEqual(["large ask", "ask done"]);
  });

  it("goes past a step that is skipped, and ends where one waits or failed", () => {
    expect(taken(step("large", {}, "SKIPPED"), step("ask", {}, "RUNNING"))).toEqual(["large ask"]);
    expect(taken(step("maybe", {}, "SKIPPED"), step("done"))).toEqual(["maybe done"]);
    expect(taken(step("large", { result: true }), step("ask", {}, "FAILED"), step("done"))).toEqual(["large ask"]);
  });

  it("leads into blocks", () => {
    const steps: FlowStep[] = [
      { key: "each", type: "for_each", config: { steps: [{ key: "one", type: "set" }] } },
      { key: "done", type: "end" },
    ];
    const path = pathOf([
      { key: "each", type: "for_each", status: "RUNNING", output: null },
      { key: "one", type: "set", status: "COMPLETED", output: {} },
    ]);
    expect(graphOf(steps).edges.map((edge) => [edge.from, edge.to, isTaken(edge, path)])).toEqual([
      ["each", "one", true],
      ["each", "done", false],
    ]);
  });

  it("has one edge for several ways to the same step", () => {
    const found = graphOf(STEPS).edges.find((edge) => edge.from === "ask" && edge.to === "done");
    expect(found?.labels).toEqual(["rejected", "too late"]);
  });
});
