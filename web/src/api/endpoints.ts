/** The routes of the REST API that the pages use. */

import { get, type Query, segment, write } from "./http";
import type {
  BusPage,
  ApiKey,
  ApplicationPage,
  Attempt,
  AuditRow,
  CacheDocument,
  CodeSchema,
  Diff,
  Entry,
  Json,
  Letter,
  LetterGroup,
  Operation,
  Overview,
  Partners,
  Queue,
  Quota,
  RetentionRule,
  Run,
  RunPageDocument,
  Schedule,
  WebhookEndpoint,
  WebhooksPage,
  Worker,
  WorkflowInfo,
} from "./types";

type Signal = AbortSignal | undefined;
type Body = Record<string, unknown>;

const one = (id: string): string => `runs/${segment(id)}`;

export const overview = (query: Query, signal: Signal): Promise<Overview> => get("overview", query, signal);

export const workflows = (): Promise<{ workflows: WorkflowInfo[] }> => get("workflows");
export const codeSchema = (one: WorkflowInfo): Promise<CodeSchema> => get(`workflows/${segment(one.name)}`, { version: one.version, kind: one.kind === "job" ? "job" : "workflow" });

export interface RunList {
  runs: Run[];
  cursor: string | null;
}

/** How many there are in each state. */
export type States = Record<string, number>;

/** With counts to which every filter applies but that of the state; null: there are so many that it takes a while. */
export interface CountedRuns extends RunList {
  states: States | null;
}

export const listRuns = (query: URLSearchParams, signal?: Signal): Promise<RunList> => get("runs", query, signal);
export const runsPage = (query: URLSearchParams): Promise<CountedRuns> => get("runs/page", query);
export const runStates = (query: URLSearchParams): Promise<{ states: States }> => get("runs/states", query);
export const runPage = (id: string, signal?: Signal, query?: Query): Promise<RunPageDocument> => get(`${one(id)}/page`, query, signal);
export const journal = (id: string, after: number, signal?: Signal): Promise<{ entries: Entry[]; next: number | null }> =>
  get(`${one(id)}/journal`, { after, limit: 1000 }, signal);
export const diff = (id: string, other: string, signal?: Signal): Promise<Diff> => get(`${one(id)}/diff`, { with: other }, signal);

export const startRun = (body: Body): Promise<{ id: string; run_id: string; is_new: boolean }> => write("POST", "runs", body);
export const enqueueJob = (body: Body): Promise<{ id: string; run_id: string; is_new: boolean }> => write("POST", "jobs", body);
export const actOnRun = (id: string, verb: string, body: Body): Promise<Record<string, Json>> => write("POST", `${one(id)}/${verb}`, body);
export const forkRun = (id: string, body: Body): Promise<{ id: string; run_id: string }> => write("POST", `${one(id)}/fork`, body);
export const deleteRun = (id: string, reason: string): Promise<unknown> => write("DELETE", one(id), undefined, { reason });
export const countBulk = (body: Body): Promise<{ matched: number }> => write("POST", "runs/bulk/count", body);
export const bulk = (body: Body): Promise<Operation> => write("POST", "runs/bulk", body);
export const operation = (id: string): Promise<Operation> => get(`operations/${segment(id)}`);

export const letterGroups = (query: Query, signal?: Signal): Promise<{ groups: LetterGroup[]; cursor: string | null }> =>
  get("dead-letters/groups", query, signal);
export const letters = (query: Query, signal?: Signal): Promise<{ dead_letters: Letter[]; cursor: string | null }> =>
  get("dead-letters", query, signal);
export const letter = (id: string, signal?: Signal): Promise<Letter & { traceback: string }> => get(`dead-letters/${segment(id)}`, undefined, signal);
export const reprocess = (body: Body): Promise<Operation> => write("POST", "dead-letters/reprocess", body);
export const discard = (body: Body): Promise<Operation> => write("POST", "dead-letters/discard", body);

export const schedules = (query: Query, signal?: Signal): Promise<{ schedules: Schedule[]; cursor: string | null }> => get("schedules", query, signal);
export const nextTimes = (id: string, signal?: Signal): Promise<{ next: string[] }> => get(`schedules/${segment(id)}/next`, { count: 8 }, signal);
export const createSchedule = (body: Body): Promise<Schedule> => write("POST", "schedules", body);
export const actOnSchedule = (id: string, verb: string, body: Body): Promise<Record<string, Json>> => write("POST", `schedules/${segment(id)}/${verb}`, body);
export const deleteSchedule = (id: string, reason: string): Promise<unknown> => write("DELETE", `schedules/${segment(id)}`, undefined, { reason });

export const queues = (signal?: Signal): Promise<{ queues: Queue[] }> => get("queues", undefined, signal);
export const limitQueue = (name: string, body: Body): Promise<Queue> => write("PATCH", `queues/${segment(name)}`, body);
export const actOnQueue = (name: string, verb: "pause" | "resume", body: Body): Promise<Queue> => write("POST", `queues/${segment(name)}/${verb}`, body);
export const workers = (signal?: Signal): Promise<{ workers: Worker[] }> => get("workers", undefined, signal);

export const quotas = (signal?: Signal): Promise<{ quotas: Quota[] }> => get("quotas", undefined, signal);
export const setQuota = (name: string, body: Body): Promise<unknown> => write("PUT", `quotas/${segment(name)}`, body);
export const deleteQuota = (name: string, reason: string): Promise<unknown> => write("DELETE", `quotas/${segment(name)}`, undefined, { reason });

export const partners = (signal?: Signal): Promise<Partners> => get("partners", undefined, signal);
export const forceBreaker = (name: string, body: Body): Promise<unknown> => write("PUT", `partners/breakers/${segment(name)}`, body);
export const changeLimit = (name: string, body: Body): Promise<unknown> => write("PUT", `partners/limits/${segment(name)}`, body);
export const actOnLimit = (name: string, verb: "reset" | "release", body: Body): Promise<unknown> => write("POST", `partners/limits/${segment(name)}/${verb}`, body);

export const bus = (query: URLSearchParams, signal?: Signal): Promise<BusPage> => get("bus", query, signal);
export const dropSubscription = (name: string, reason: string): Promise<unknown> => write("DELETE", `bus/subscriptions/${segment(name)}`, undefined, { reason });
export const webhooks = (query: URLSearchParams, signal?: Signal): Promise<WebhooksPage> => get("webhooks", query, signal);
export const createEndpoint = (body: Body): Promise<WebhookEndpoint & { secret: string }> => write("POST", "webhooks", body);
export const changeEndpoint = (id: string, body: Body): Promise<unknown> => write("PATCH", `webhooks/${segment(id)}`, body);
export const rotateEndpoint = (id: string, body: Body): Promise<{ secret: string }> => write("POST", `webhooks/${segment(id)}/rotate`, body);
export const actOnEndpoint = (id: string, verb: "enable" | "disable" | "test", body?: Body): Promise<unknown> => write("POST", `webhooks/${segment(id)}/${verb}`, body);
export const deleteEndpoint = (id: string, reason: string): Promise<unknown> => write("DELETE", `webhooks/${segment(id)}`, undefined, { reason });
export const resendDelivery = (runId: string, body: Body): Promise<unknown> => write("POST", `webhooks/deliveries/${segment(runId)}/resend`, body);
export const attemptsOf = (runId: string): Promise<{ attempts: Attempt[] }> => get(`jobs/${segment(runId)}/attempts`);
export const cacheNow = (signal?: Signal): Promise<CacheDocument> => get("cache", undefined, signal);

export const retention = (signal?: Signal): Promise<{ retention: RetentionRule[] }> => get("retention", undefined, signal);
export const setRetention = (body: Body): Promise<unknown> => write("PUT", "retention", body);
export const deleteRetention = (workflow: string, state: string, reason: string): Promise<unknown> => write("DELETE", "retention", undefined, { workflow, state, reason });
export const prune = (body: Body): Promise<{ runs: number; dry_run: boolean }> => write("POST", "retention/prune", body);
export const applicationPage = (path: string, signal?: Signal): Promise<ApplicationPage> => get(`pages${path}`, undefined, signal);
export const applicationAct = (path: string, name: string, body: Body): Promise<{ message: string }> => write("POST", `pages${path}/${segment(name)}`, body);

export const audit = (query: Query, signal?: Signal): Promise<{ rows: AuditRow[]; cursor: string | null }> => get("audit", query, signal);
export const verifyAudit = (): Promise<{ rows: number; keyed: number; head: string; problem: string }> => get("audit/verify");

export const namespaces = (signal?: Signal): Promise<{ namespaces: { name: string }[] }> => get("namespaces", undefined, signal);
export const apiKeys = (signal?: Signal): Promise<{ api_keys: ApiKey[] }> => get("api-keys", undefined, signal);
export const createApiKey = (body: Body): Promise<ApiKey & { key: string }> => write("POST", "api-keys", body);
export const rotateApiKey = (id: string, body: Body): Promise<ApiKey & { key: string }> => write("POST", `api-keys/${segment(id)}/rotate`, body);
export const revokeApiKey = (id: string): Promise<unknown> => write("DELETE", `api-keys/${segment(id)}`);
