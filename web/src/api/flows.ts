/** Flows: their routes, and the shapes of their answers. */

import { get, segment, write } from "./http";
import type { JsonSchema } from "../lib/complete";
import type { Json } from "./types";

export interface FlowStep {
  key?: string;
  type?: string;
  next?: string;
  config?: Record<string, Json>;
  [name: string]: Json | undefined;
}

export interface Workflow {
  id: string;
  name: string;
  description: string | null;
  trigger_type: string;
  trigger: Json;
  version: number;
  is_active: boolean;
  published_at: string | null;
  steps: FlowStep[];
  updated_at: string;
}

export interface Version {
  id: string;
  version: number;
  is_active: boolean;
  published_at: string | null;
  updated_at: string;
}

export interface LastRun {
  id: string;
  status: string;
  created_at: string;
  finished_at: string | null;
}

export interface FlowRow {
  name: string;
  description: string | null;
  trigger_type: string;
  versions: Version[];
  runs: LastRun[];
}

export interface Fault {
  path: string;
  message: string;
  hint: string;
}

export interface RehearsedStep {
  key: string;
  type: string;
  status: string;
  input: Json;
  output: Json;
  error: string | null;
  request: Json;
  to: string | null;
}

export interface Rehearsal {
  status: string;
  error: string | null;
  steps: RehearsedStep[];
  context: Json;
}

export interface StepRun {
  id: string;
  step_key: string;
  step_type: string;
  /** Of its item of a list. */
  index: number | null;
  status: string;
  input: Json;
  output: Json;
  error: string | null;
  provider_ref: string | null;
  attempt: number;
  started_at: string | null;
  finished_at: string | null;
}

export interface RunLog {
  id: string;
  level: string;
  message: string;
  created_at: string;
}

export interface FlowRun {
  id: string;
  workflow_id: string;
  event_id: string;
  status: string;
  dispatch_status: string;
  context: Json;
  error: string | null;
  reason: string | null;
  started_at: string | null;
  finished_at: string | null;
  created_at: string;
  steps: StepRun[];
  logs: RunLog[];
}

export interface FlowEvent {
  id: string;
  type: string;
  source: string;
  external_id: string | null;
  payload: Json;
  created_at: string;
  runs: string[];
}

export interface Approval {
  run_id: string;
  name: string;
  step: string;
  step_run_id: string;
  title: string;
  data: Json;
  since: string | null;
}

type Signal = AbortSignal | undefined;
const one = (id: string): string => `/workflows/${segment(id)}`;

export const flows = (signal: Signal): Promise<{ flows: FlowRow[]; cursor: string | null }> => get("flows", undefined, signal);
export const flow = (id: string, signal: Signal): Promise<{ workflow: Workflow; versions: Version[]; runs: LastRun[] }> => get(`flows/${segment(id)}`, undefined, signal);
export const flowRun = (id: string, signal: Signal): Promise<{ run: FlowRun; workflow: Workflow | null }> => get(`flow-runs/${segment(id)}`, undefined, signal);
export const events = (cursor: string | null, signal: Signal): Promise<{ events: FlowEvent[]; cursor: string | null }> => get("flow-events", { cursor }, signal);
export const approvals = (signal: Signal): Promise<{ approvals: Approval[] }> => get("flow-approvals", undefined, signal);

export const checkFlow = (text: string): Promise<{ valid: boolean; faults: Fault[]; document: Json }> => write("POST", "/workflows/validate", { text });
export const flowSchema = (): Promise<{ schema: JsonSchema }> => get("/workflows/schema");
export const rehearse = (text: string, payload: Json): Promise<Rehearsal> => write("POST", "/workflows/dry-run", { text, payload });
export const createFlow = (document: Json): Promise<Workflow> => write("POST", "/workflows", document);
export const changeFlow = (id: string, changes: Json): Promise<Workflow> => write("PATCH", one(id), changes);
export const actOnFlow = (id: string, verb: "publish" | "versions" | "activate" | "deactivate", reason = ""): Promise<Workflow> => write("POST", `${one(id)}/${verb}`, { reason });
export const sendEvent = (body: Record<string, Json>): Promise<FlowEvent> => write("POST", "/events", body);
export const replayEvent = (id: string, reason: string): Promise<FlowEvent> => write("POST", `/events/${segment(id)}/replay`, { reason });
export const actOnFlowRun = (id: string, verb: "retry" | "cancel", reason: string): Promise<unknown> => write("POST", `/runs/${segment(id)}/${verb}`, { reason });
export const decide = (id: string, step: string, stepRun: string, approved: boolean, comment: string): Promise<{ pending?: boolean }> => write("POST", `/runs/${segment(id)}/decide`, { step, step_run_id: stepRun, approved, comment });
