/** What each state looks like: one tone (colour) and one shape, the same in every list, chart and tree. */

export type Tone = "done" | "run" | "wait" | "retry" | "fail" | "pause" | "park" | "stop";
/** What stands before the word: mostly that of the tone. */
export type Shape = Tone | "queue";

export interface Look {
  tone: Tone;
  label: string;
  shape?: Shape;
}

const RUNS: Record<string, Look> = {
  pending: { tone: "wait", label: "pending", shape: "queue" },
  running: { tone: "run", label: "running" },
  waiting: { tone: "wait", label: "waiting" },
  paused: { tone: "pause", label: "paused" },
  completed: { tone: "done", label: "completed" },
  failed: { tone: "fail", label: "failed" },
  timed_out: { tone: "fail", label: "timed out" },
  cancelled: { tone: "stop", label: "cancelled" },
  terminated: { tone: "stop", label: "terminated" },
  continued: { tone: "done", label: "continued" },
  needs_code: { tone: "park", label: "needs code" },
  poisoned: { tone: "park", label: "poisoned" },
};

const STEPS: Record<string, Look> = {
  open: { tone: "run", label: "open" },
  done: { tone: "done", label: "done" },
  failed: { tone: "fail", label: "failed" },
  cancelled: { tone: "stop", label: "cancelled" },
  dropped: { tone: "stop", label: "dropped" },
};

/** In the order that filters show them: what is open first, then what needs a person, then what has ended. */
export const RUN_STATES = Object.keys(RUNS);

export const CLOSED_STATES: readonly string[] = [
  "completed",
  "failed",
  "timed_out",
  "cancelled",
  "terminated",
  "continued",
];

export function isClosed(state: string): boolean {
  return CLOSED_STATES.includes(state);
}

export function runLook(state: string): Look {
  return RUNS[state] ?? { tone: "wait", label: state };
}

const SEGMENTS: Record<string, Look> = {
  running: { tone: "run", label: "running" },
  queued: { tone: "wait", label: "queued", shape: "queue" },
  lost: { tone: "fail", label: "lost" },
  backoff: { tone: "retry", label: "backoff" },
  outside: { tone: "pause", label: "outside" },
  child: { tone: "run", label: "child runs" },
  asleep: { tone: "wait", label: "asleep" },
  waiting: { tone: "wait", label: "waiting" },
  delayed: { tone: "wait", label: "delayed" },
  paused: { tone: "pause", label: "paused" },
  parked: { tone: "park", label: "parked" },
};

/** A step that is open looks like what it does now. */
export function stepLook(state: string, doing?: string): Look {
  if (state === "open" && doing !== undefined) return SEGMENTS[doing] ?? { tone: "run", label: doing };
  return STEPS[state] ?? { tone: "wait", label: state };
}

export function segmentLabel(kind: string): string {
  return kind === "failed" ? "failed attempt" : (SEGMENTS[kind]?.label ?? kind);
}
