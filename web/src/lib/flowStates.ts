/** How the statuses of flows and of their steps look. */

import type { Look } from "./states";

const LOOKS: Record<string, Look> = {
  PENDING: { tone: "wait", label: "pending" },
  RUNNING: { tone: "run", label: "running" },
  COMPLETED: { tone: "done", label: "completed" },
  FAILED: { tone: "fail", label: "failed" },
  CANCELLED: { tone: "stop", label: "cancelled" },
  SKIPPED: { tone: "stop", label: "skipped" },
  RETRYING: { tone: "retry", label: "retrying" },
};

export function flowLook(status: string): Look {
  return LOOKS[status] ?? { tone: "wait", label: status.toLowerCase() };
}

/** Null: the step was not reached. */
export function stepLook(status: string): Look | null {
  return status ? flowLook(status) : null;
}
