/** What the REST API answers: field names are those of the command line's --json. Times are ISO 8601. */

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

export interface Failure {
  type: string;
  message: string;
  details?: Json;
  retryable?: boolean;
  traceback?: string;
  cause?: Failure | null;
  members?: Failure[];
}

export interface Attempt {
  seq: number;
  number: number;
  started_at: string | null;
  ended_at: string | null;
  next_at: string | null;
  /** JSON of a failure. */
  error: string | null;
  details: string | null;
  outside: boolean;
  worker: string | null;
  /** Its worker died; the attempt was made again. */
  lost: boolean;
}

export interface Run {
  id: string;
  run_id: string;
  workflow: string;
  kind: string;
  state: string;
  reason: string;
  queue: string;
  priority: number;
  entries: number;
  worker: string | null;
  created_at: string | null;
  closed_at: string | null;
  wake_at: string | null;
  deadline: string | null;
  deaths: number;
  key: string;
  expires_at: string | null;
  paused_at: string | null;
  version: string;
  tags: Record<string, string>;
  memo: Json;
  /** The run id of the run that started it. */
  parent: string | null;
  forked_from: string | null;
  forked_at: number | null;
  attempts: Attempt[];
}

/** One call for the whole run page. */
export interface RunPageDocument {
  run: RunDetail;
  timeline: Timeline;
  /** null: no worker has published it. */
  takes: CodeSchema | null;
  parent: Run | null;
  /** The newest 200. */
  children: Run[];
  /** Made from this run by a fork, a retry or a reset. */
  forks: Run[];
}

export interface Wait {
  kind: string;
  name: string;
  seq: number;
  tries: number;
  since: string;
}

export interface RunDetail extends Run {
  input: Json;
  waiting_for: Wait[];
  published?: Record<string, Json>;
  result?: Json;
  error?: string;
  traceback?: string;
}

export interface Segment {
  kind: string;
  start: string;
  end: string | null;
  attempt: number;
}

export interface Step {
  kind: string;
  name: string;
  seq: number;
  entry: number;
  answer: number | null;
  state: string;
  input: Json;
  output: Json;
  error: Failure | null;
  to: string;
  key: string;
  began_at: string;
  ended_at: string | null;
  tries: number;
  attempts: Attempt[];
  segments: Segment[];
  kept: boolean;
}

export interface Timeline {
  id: string;
  run_id: string;
  workflow: string;
  kind: string;
  state: string;
  reason: string;
  queue: string;
  as_of: string;
  created_at: string;
  began_at: string | null;
  closed_at: string | null;
  forked_from: string | null;
  continued_as: string | null;
  segments: Segment[];
  seconds: Record<string, number>;
  steps: Step[];
  sealed: string;
}

export interface Command {
  seq: number;
  kind: string;
  name?: string;
  value?: Json;
  error?: Failure;
  target?: number;
  to?: string;
  message_id?: string;
}

export interface EntryBody {
  seq?: number;
  name?: string;
  value?: Json;
  error?: Failure;
  attempts?: number;
  started_at?: number;
  message_id?: string;
  reason?: string;
  commands?: Command[];
  forked?: { source_id: string; source_run_id: string };
}

export interface Entry {
  ord: number;
  kind: string;
  at: string;
  body: EntryBody;
}

export interface Side {
  id: string;
  run_id: string;
  state: string;
  created_at: string;
  closed_at: string | null;
}

export interface StepDiff {
  left: Step | null;
  right: Step | null;
  differs: string[];
}

export interface Diff {
  workflow: string;
  kind: string;
  left: Side;
  right: Side;
  same: number;
  steps: StepDiff[];
}

export interface Letter {
  id: string;
  run_id: string;
  kind: string;
  name: string;
  queue: string;
  key: string;
  state: string;
  at: string;
  reason: string;
  error: string;
  message: string;
  fingerprint: string;
  activity: string;
  seq: number;
  attempts: number;
  trace: string;
  resolved_at: string | null;
  note: string;
  successor: string | null;
}

export interface LetterGroup {
  fingerprint: string;
  count: number;
  first_at: string;
  last_at: string;
  example: Letter;
}

export interface Schedule {
  id: string;
  when: string;
  workflow: string;
  kind: string;
  arguments: Json;
  overlap: string;
  queue: string;
  paused: boolean;
  /** Why it is paused. */
  reason: string;
  next_at: string | null;
  last_at: string | null;
  last_id: string;
  running: boolean;
  waiting: string | null;
  /** The next few slots. */
  next?: string[];
}

export interface Queue {
  name: string;
  paused: boolean;
  /** Why it is paused. */
  reason: string;
  ready: number;
  delayed: number;
  running: number;
  oldest: string | null;
  workers: number;
  concurrency: number | null;
  key_concurrency: number | null;
  rate: string | null;
  key_rate: string | null;
}

export interface Worker {
  worker_id: string;
  host: string;
  pid: number;
  queues: string[];
  code: Record<string, string>;
  started_at: string;
  beat_at: string;
  silent: number;
  live: boolean;
  /** How many runs it owns, and for how many seconds a beat keeps it alive. */
  runs: number;
  lease: number;
}

export interface Quota {
  name: string;
  limit: number | null;
  burst: number | null;
  used: number | null;
  own: boolean;
}

export interface Breaker {
  name: string;
  state: string;
  reason: string;
  forced: string;
  since: string | null;
  until: string | null;
  failures: number;
  openings: number;
  probes: number;
  settings: { failures: number | null; failure_rate: number | null; [name: string]: number | null };
}

export interface PartnerLimit {
  name: string;
  rates: string[];
  concurrency: number | null;
  capacity: number | null;
  refill: string | null;
  changed: boolean;
  declared: string;
  reason: string;
  keys: { key: string; used: Record<string, number>; running: number; balance: number | null; held_until: string | null }[];
}

export interface Partners {
  breakers: Breaker[];
  limits: PartnerLimit[];
}

export interface RetentionRule {
  /** null: any. */
  workflow: string | null;
  state: string | null;
  /** Such as `30d`, or `forever`. */
  keep: string;
}

/** A table on a page of the application. */
/** What a page of an application shows. */
export interface ApplicationPage {
  tables: PageTable[];
  gauges: PageGauges[];
  actions: PageAction[];
}

export interface PageGauge {
  name: string;
  value: number;
  most: number;
  tone: "done" | "retry" | "fail" | "pause";
  label: string;
  note: string;
  history: (number | null)[];
}

export interface PageGauges {
  title: string;
  gauges: PageGauge[];
  note: string;
}

export interface PageAction {
  name: string;
  title: string;
  about: string;
  danger: boolean;
  form: Parameter[];
}

export interface PageTable {
  title: string;
  columns: string[];
  rows: Json[][];
  note: string;
}

export interface AuditRow {
  number: number;
  at: string;
  actor: string;
  verb: string;
  target: string;
  run_id: string;
  reason: string;
  detail: Json;
  before: Json;
  after: Json;
  hash: string;
}

export interface ApiKey {
  id: string;
  name: string;
  prefix: string;
  scope: string;
  namespace: string;
  created_at: string;
  created_by: string;
  expires_at: string | null;
  last_used_at: string | null;
  revoked_at: string | null;
}

/** Work on many that goes on in the server. */
export interface Operation {
  id: string;
  verb: string;
  state: "running" | "interrupted" | "done" | "failed";
  matched: number;
  done: number;
  refused: Record<string, number>;
  started_at: string;
  ended_at: string | null;
  problem: { title: string; detail: string } | null;
  result: Json;
}

export interface Bucket {
  at: string;
  started: number;
  completed: number;
  failed: number;
  p50: number | null;
  p95: number | null;
}

export interface WorkflowSummary {
  name: string;
  kind: string;
  last: { id: string; run_id: string; state: string; created_at: string; closed_at: string | null; seconds: number | null }[];
  failed: number;
  completed: number;
  open: number;
  p50: number | null;
  p95: number | null;
}

export interface Overview {
  as_of: string;
  states: Record<string, number>;
  total: number;
  needs_attention: {
    needs_code: number;
    poisoned: number;
    paused: number;
    retrying: number;
    retrying_often: number;
    dead_letters: number;
  };
  workflows: WorkflowSummary[];
  chart: { seconds: number; buckets: Bucket[] };
  sampled: number;
  p50: number | null;
  p95: number | null;
  queues: Queue[];
  workers: Worker[];
}

/** A part of JSON Schema: what the types of messages and arguments need. */
export interface Schema {
  type?: string | string[];
  title?: string;
  description?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema | false;
  prefixItems?: Schema[];
  enum?: Json[];
  const?: Json;
  anyOf?: Schema[];
  default?: Json;
  format?: string;
  $ref?: string;
  $defs?: Record<string, Schema>;
}

/** An argument, in order. */
export interface Parameter {
  name: string;
  /** Empty: anything. */
  schema: Schema;
  required: boolean;
  default: Json;
}

/** A signal, an update or a query. */
export interface MessageInfo {
  name: string;
  /** null: not known. A signal has one, its value, or none. */
  args: Parameter[] | null;
}

/** What a workflow or a job takes, as a worker published it. */
export interface CodeSchema {
  name: string;
  about: string;
  input: Parameter[] | null;
  signals: MessageInfo[];
  updates: MessageInfo[];
  queries: MessageInfo[];
}

/** Something that live workers can run. */
export interface WorkflowInfo {
  name: string;
  version: string;
  kind: string;
  workers: string[];
}

export interface WebhookEndpoint {
  id: string;
  url: string;
  description: string;
  types: string[];
  enabled: boolean;
  reason: string;
  created_at: string;
  disable_after: number | null;
  failing_since: string | null;
  secrets: { created_at: string; signs_until: string | null }[];
  /** State of its breaker; empty before its first delivery. */
  breaker: string;
  limit: string;
}

export interface BusTopic {
  name: string;
  messages: number;
  unsent: number;
  last_at: number | null;
}

export interface BusSubscription {
  name: string;
  topic: string;
  via: string;
  ordered: boolean;
  waiting: number;
  running: number;
  oldest_at: number | null;
  behind: number | null;
  job: string;
  dead_letters: number;
}

export interface BusMessage {
  number: number;
  id: string;
  topic: string;
  key: string;
  type: string;
  source: string;
  published_at: string;
  problem: string;
  subscription: string;
  via: string;
  taken: boolean;
}

export interface BusPage {
  topics: BusTopic[];
  subscriptions: BusSubscription[];
  topic: string;
  messages: BusMessage[];
  failed: Letter[];
}

export interface WebhooksPage {
  endpoints: WebhookEndpoint[];
  deliveries: Run[];
  cursor: string | null;
}

export interface CacheDocument {
  configured: boolean;
  where: string;
  up: boolean;
  error: string;
  seconds: number;
  info: { kind: string; keys: number; memory_used: number; memory_max: number; evicted: number; hits: number; misses: number } | null;
  entities: { entity: string; hits: number; absent: number; misses: number; failed: number; seconds: number }[];
}
