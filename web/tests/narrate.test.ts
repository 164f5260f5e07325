import { describe, expect, it } from "vitest";
import type { Run, Step, Timeline } from "../src/api/types";
import { narrate } from "../src/lib/narrate";

const at = (ms: number): string => new Date(ms).toISOString();
const run = (more: Partial<Run>): Run => ({ state: "waiting", reason: "", deaths: 0, paused_at: null, ...more }) as Run;
const queued = { kind: "activity", name: "pay", seq: 1, state: "open", to: "", began_at: at(0), tries: 0, attempts: [], segments: [{ kind: "queued", start: at(0), end: null, attempt: 0 }] };
const timeline = (steps: unknown[]): Timeline => ({ sealed: "", segments: [], steps: steps as Step[] }) as unknown as Timeline;

describe("a run that waits", () => {
  it("says which gate holds it, and not that no worker takes its call", () => {
    expect(narrate(run({ reason: "gate:issuer" }), timeline([queued]), 60_000)).toEqual([
      "It waits at the gate issuer, which costs no attempt: the page Partners shows what the breaker or limit allows.",
    ]);
  });
  it("says beside it that no worker is there", () => {
    const said = narrate(run({ reason: "gate:card network; no live worker serves queue 'default'" }), timeline([queued]), 60_000);
    expect(said[0]).toContain("the gate card network,");
    expect(said[1]).toBe("No live worker serves queue 'default'.");
  });
  it("says that its call waits for a worker", () => {
    expect(narrate(run({}), timeline([queued]), 60_000)).toEqual(["pay waits for a worker, for 1 min."]);
  });
});
