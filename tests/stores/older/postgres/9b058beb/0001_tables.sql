-- The tables of the store. `batuta` stands for the schema in use; it is replaced when another one is set.
--
-- Times are microseconds since 1970. Payloads are JSON text: never looked into by the store. There are no foreign
-- keys: they double the cost of an insert and fence nothing. Nor has `runs` a CHECK: the server reads its text anew in
-- every statement that writes a row, also where the column stays, and for a list of twelve words that took a third of
-- what a step costs above a bare insert. Names compare byte by byte (COLLATE "C").

CREATE TABLE batuta.runs (
    run_id        uuid    NOT NULL,
    chain_id      uuid    NOT NULL,
    epoch         integer NOT NULL,
    head          integer NOT NULL,
    claimed_head  integer NOT NULL,
    priority      integer NOT NULL,
    deaths        integer NOT NULL DEFAULT 0,
    current       boolean NOT NULL DEFAULT true,
    signalled     boolean NOT NULL DEFAULT false,
    created_at    bigint  NOT NULL,
    closed_at     bigint,
    wake_at       bigint,
    deadline      bigint,
    expires_at    bigint,
    awaits        integer NOT NULL DEFAULT 0,
    forked_at     integer NOT NULL DEFAULT -1,
    paused_at     bigint,
    resume_at     bigint,
    forked_from   uuid,
    parent_run_id uuid,
    parent_seq    integer NOT NULL DEFAULT 0,
    namespace     text COLLATE "C" NOT NULL,
    id            text COLLATE "C" NOT NULL,
    kind          text COLLATE "C" NOT NULL,
    name          text COLLATE "C" NOT NULL,
    code          text COLLATE "C" NOT NULL,
    queue         text COLLATE "C" NOT NULL,
    state         text COLLATE "C" NOT NULL,
    owner         text COLLATE "C",
    parent_policy text COLLATE "C" NOT NULL DEFAULT 'cancel',
    flow_key      text COLLATE "C" NOT NULL DEFAULT '',
    debounce      text COLLATE "C",
    version       text   NOT NULL DEFAULT '',
    reason        text   NOT NULL DEFAULT '',
    failed_code   text[] NOT NULL DEFAULT '{}',
    tags          text   NOT NULL DEFAULT '{}',
    memo          text   NOT NULL DEFAULT 'null',
    start         text,
    -- A run_id is unique by itself. With the namespace, this index does for lists, too: those of one namespace pass the
    -- entries of others without a look at their rows, and each version of a row is in one index less.
    PRIMARY KEY (run_id, namespace)
) WITH (
    -- Each commit moves `head`: no index that knows it, and room on the page, keep that update cheap (HOT). Half of the
    -- page: one batch may touch every run on it, and the old versions go only when it is committed.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_analyze_threshold = 1000,
    autovacuum_vacuum_cost_delay = 1
);

COMMENT ON TABLE batuta.runs IS 'One row per run, without payloads. `head` is the ord of its last journal entry.';
COMMENT ON COLUMN batuta.runs.epoch IS 'Rises at every claim, reap and close from outside: the fence';
COMMENT ON COLUMN batuta.runs.claimed_head IS 'head at the last claim: a death at the same head counts';
COMMENT ON COLUMN batuta.runs.current IS 'The last run begun under its id, open or closed';
COMMENT ON COLUMN batuta.runs.signalled IS 'Signals or updates came to its chain: who closes it looks for unread ones';
COMMENT ON COLUMN batuta.runs.code IS 'What a worker must have to run it';
COMMENT ON COLUMN batuta.runs.wake_at IS 'When it may be claimed; null when owned, parked, closed or waiting for a message';
COMMENT ON COLUMN batuta.runs.expires_at IS 'When it is closed if nobody has claimed it; null once it was claimed';
COMMENT ON COLUMN batuta.runs.awaits IS 'Children that must close before it is due';
COMMENT ON COLUMN batuta.runs.paused_at IS 'Since when an operator holds it: deadline and expiry are put off by as long as that';
COMMENT ON COLUMN batuta.runs.resume_at IS 'The wake_at that it had when it was paused';
COMMENT ON COLUMN batuta.runs.forked_from IS 'The run whose journal it began with';
COMMENT ON COLUMN batuta.runs.forked_at IS 'The last entry that it has in common with that one';
COMMENT ON COLUMN batuta.runs.start IS 'Its start message while nobody has read it, unless that lies in the inbox: see travels';
COMMENT ON COLUMN batuta.runs.debounce IS 'While it was never claimed, starts of this key replace what it is to do';

-- `head` is in none of these, nor in their conditions. Each of them costs every statement that writes a row, also where the
-- row is not in it: the server opens it, and plans its condition anew (2 to 3 % of a start, a step or an end).
-- By id first: the others begin with the namespace, and an empty table tempts the planner to take any of them. Without runs
-- that have their own run_id for an id, since nobody gave them another: they are found by that. Most jobs are such runs,
-- and an index that has every version of a row is what they cost most: see current_run.
CREATE UNIQUE INDEX runs_current ON batuta.runs (id, namespace) WHERE current AND id <> run_id::text;
-- What is due: by time in the first where there is no flow key, in the second where there is one. What has begun before
-- is not held up by those that a rate keeps from beginning.
CREATE INDEX runs_due ON batuta.runs (namespace, queue, priority DESC, flow_key, wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX runs_due_keyed ON batuta.runs (namespace, queue, priority DESC, wake_at)
    WHERE wake_at IS NOT NULL AND flow_key <> '';
CREATE INDEX runs_due_again ON batuta.runs (namespace, queue, priority DESC, wake_at)
    WHERE wake_at IS NOT NULL AND epoch > 0;
CREATE INDEX runs_owned ON batuta.runs (namespace, owner, queue, flow_key) WHERE owner IS NOT NULL;
-- What waits for a message, or for other code.
CREATE INDEX runs_idle ON batuta.runs (namespace, state, code, queue)
    WHERE closed_at IS NULL AND owner IS NULL AND wake_at IS NULL;
CREATE INDEX runs_suspect ON batuta.runs (namespace, owner) WHERE deaths >= 2 AND closed_at IS NULL;
CREATE INDEX runs_ending ON batuta.runs (namespace, least(deadline, expires_at))
    WHERE least(deadline, expires_at) IS NOT NULL AND closed_at IS NULL AND paused_at IS NULL;
CREATE UNIQUE INDEX runs_debounced ON batuta.runs (debounce, namespace) WHERE debounce IS NOT NULL;
CREATE INDEX runs_children ON batuta.runs (parent_run_id, parent_seq) WHERE parent_run_id IS NOT NULL;
-- For lists. With a word of its own for the namespace: on a small table it would do for any query that names one, and the
-- plan would stay when the table has grown.
CREATE INDEX runs_notable ON batuta.runs ((namespace || ':'), run_id)
    WHERE state IN ('failed', 'timed_out', 'cancelled', 'terminated', 'paused', 'needs_code', 'poisoned');

CREATE TABLE batuta.journal (
    run_id    uuid    NOT NULL,
    ord       integer NOT NULL,
    epoch     integer NOT NULL,
    at        bigint  NOT NULL,
    crc       bigint  NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    kind      text COLLATE "C" NOT NULL,
    body      text    NOT NULL,
    PRIMARY KEY (run_id, ord)
) WITH (
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.1
);

COMMENT ON TABLE batuta.journal IS 'One row per turn: the input it consumed and the commands it issued. Never changed.';

CREATE TABLE batuta.inbox (
    chain_id    uuid    NOT NULL,
    number      bigint  NOT NULL GENERATED ALWAYS AS IDENTITY,
    at          bigint  NOT NULL,
    consumed_at bigint,
    namespace   text COLLATE "C" NOT NULL,
    message_id  text COLLATE "C" NOT NULL,
    kind        text COLLATE "C" NOT NULL,
    name        text COLLATE "C" NOT NULL,
    body        text    NOT NULL,
    PRIMARY KEY (chain_id, message_id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);

COMMENT ON TABLE batuta.inbox IS 'What came from outside. Read rows but starts are marked, not deleted: an id is unique for the chain''s life.';

CREATE INDEX inbox_unread ON batuta.inbox (chain_id, number) WHERE consumed_at IS NULL;

CREATE TABLE batuta.outputs (
    run_id    uuid    NOT NULL,
    ord       integer NOT NULL,
    at        bigint  NOT NULL,
    namespace text COLLATE "C" NOT NULL,
    kind      text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    value     text,
    error     text,
    PRIMARY KEY (run_id, kind, name)
);

COMMENT ON TABLE batuta.outputs IS 'Published values and answers to updates, upserted with the turn that made them.';
COMMENT ON COLUMN batuta.outputs.run_id IS 'Of an answer: the chain. Who waits for it need not know which run answers';

CREATE TABLE batuta.attempts (
    run_id     uuid    NOT NULL,
    seq        integer NOT NULL,
    number     integer NOT NULL,
    started_at bigint  NOT NULL,
    ended_at   bigint,
    next_at    bigint,
    outside    boolean NOT NULL DEFAULT false,
    namespace  text COLLATE "C" NOT NULL,
    error      text,
    details    text,
    PRIMARY KEY (run_id, seq, number)
);

COMMENT ON TABLE batuta.attempts IS 'Tries of activities that have no journal entry yet. With seq 0: times in which the run was paused';
COMMENT ON COLUMN batuta.attempts.outside IS 'It has ended without an answer: that comes from outside, by token';

CREATE TABLE batuta.workers (
    namespace     text COLLATE "C" NOT NULL,
    worker_id     text COLLATE "C" NOT NULL,
    registered_at bigint  NOT NULL,
    beat_at       bigint  NOT NULL,
    lease_until   bigint  NOT NULL,
    pid           bigint  NOT NULL,
    locked        boolean NOT NULL,
    host          text    NOT NULL,
    queues        text[]  NOT NULL,
    code          text    NOT NULL,
    PRIMARY KEY (namespace, worker_id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

COMMENT ON COLUMN batuta.workers.lease_until IS 'The worker is live until then; a missing row is not live';
COMMENT ON COLUMN batuta.workers.locked IS 'It holds a lock while it lives; behind a pooler it may not, and its lease must tell';
COMMENT ON COLUMN batuta.workers.code IS 'JSON: the workflows and jobs it can run, with their fingerprints';

CREATE TABLE batuta.queues (
    namespace       text COLLATE "C" NOT NULL,
    name            text COLLATE "C" NOT NULL,
    paused          boolean NOT NULL DEFAULT false,
    limited         boolean NOT NULL GENERATED ALWAYS AS (
        concurrency IS NOT NULL OR key_concurrency IS NOT NULL OR rate_count IS NOT NULL OR key_rate_count IS NOT NULL
    ) STORED,
    concurrency     integer,
    key_concurrency integer,
    rate_count      integer,
    key_rate_count  integer,
    rate_period     bigint,
    key_rate_period bigint,
    note            text    NOT NULL DEFAULT '',
    PRIMARY KEY (namespace, name)
);

COMMENT ON TABLE batuta.queues IS 'Queues that were paused or limited. Who claims from one with limits locks its row.';

CREATE TABLE batuta.begun (
    namespace text COLLATE "C" NOT NULL,
    queue     text COLLATE "C" NOT NULL,
    flow_key  text COLLATE "C" NOT NULL,
    slot      bigint  NOT NULL,
    over_at   bigint  NOT NULL,
    count     integer NOT NULL,
    PRIMARY KEY (namespace, queue, flow_key, slot)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);

COMMENT ON TABLE batuta.begun IS 'Runs that began in a queue with a rate, by sub-windows of its period: see rate_left';
COMMENT ON COLUMN batuta.begun.flow_key IS 'Empty: all runs of the queue';
COMMENT ON COLUMN batuta.begun.slot IS 'The end of the sub-window';
COMMENT ON COLUMN batuta.begun.over_at IS 'No rate looks at it any more';

CREATE INDEX begun_over ON batuta.begun (namespace, over_at);

CREATE TABLE batuta.schedules (
    namespace  text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    revision   bigint  NOT NULL,
    paused     boolean NOT NULL DEFAULT false,
    created_at bigint  NOT NULL,
    updated_at bigint  NOT NULL,
    next_at    bigint,
    last_at    bigint,
    last_id    text COLLATE "C" NOT NULL DEFAULT '',
    spec       text    NOT NULL,
    state      text    NOT NULL DEFAULT '{}',
    note       text    NOT NULL DEFAULT '',
    PRIMARY KEY (namespace, id)
) WITH (fillfactor = 70);

COMMENT ON TABLE batuta.schedules IS 'What starts runs by the calendar. `spec` is JSON: when, what, and how to catch up. `state` is JSON, too: what is remembered between two looks.';
COMMENT ON COLUMN batuta.schedules.revision IS 'Rises with every write: the fence. Begins with the time';

CREATE INDEX schedules_due ON batuta.schedules (namespace, next_at, id) WHERE next_at IS NOT NULL AND NOT paused;

-- For people. The columns are those of the views in SQLite.

CREATE VIEW batuta.batuta_runs AS
SELECT namespace, id, run_id, kind, name, queue, priority, state, reason, owner, epoch, head + 1 AS entries, deaths,
       to_timestamp(created_at / 1e6) AS created_at,
       to_timestamp(closed_at / 1e6) AS closed_at,
       to_timestamp(wake_at / 1e6) AS wake_at,
       to_timestamp(deadline / 1e6) AS deadline,
       current, chain_id, parent_run_id, version, tags, memo, flow_key,
       to_timestamp(expires_at / 1e6) AS expires_at, awaits,
       forked_from, CASE WHEN forked_from IS NOT NULL THEN forked_at END AS forked_at
FROM batuta.runs;

COMMENT ON VIEW batuta.batuta_runs IS 'Runs, with times that people can read';

-- JSON that PostgreSQL can look into: it refuses a document with \u0000 anywhere, and one of them would take the whole
-- view with it.
CREATE FUNCTION batuta.readable(body text) RETURNS json LANGUAGE sql IMMUTABLE AS $$
    SELECT replace(body, '\u0000', '\ufffd')::json
$$;

CREATE VIEW batuta.batuta_activities AS
WITH asked AS (
    SELECT j.run_id, (c ->> 'seq')::integer AS seq, c ->> 'name' AS name, c -> 'value' AS input, j.at
    FROM batuta.journal j CROSS JOIN LATERAL json_array_elements(batuta.readable(j.body) -> 'commands') c
    WHERE c ->> 'kind' = 'activity'
), done AS (
    SELECT j.run_id, (b.body ->> 'seq')::integer AS seq, j.kind, j.at,
           b.body -> 'value' AS output, b.body -> 'error' AS error,
           (b.body ->> 'attempts')::integer AS attempts, (b.body ->> 'started_at')::bigint AS started_at
    FROM batuta.journal j CROSS JOIN LATERAL (SELECT batuta.readable(j.body) AS body) b
    WHERE j.kind IN ('activity_done', 'activity_failed')
)
SELECT r.namespace, r.id, a.run_id, a.seq, a.name,
       CASE d.kind WHEN 'activity_done' THEN 'completed' WHEN 'activity_failed' THEN 'failed' ELSE 'pending' END AS state,
       a.input, d.output,
       CASE WHEN d.kind IS NULL THEN batuta.readable(t.error) ELSE d.error END AS error,
       coalesce(d.attempts, t.number, 0) AS attempts,
       to_timestamp(a.at / 1e6) AS scheduled_at,
       to_timestamp(coalesce(d.started_at, t.started_at) / 1e6) AS started_at,
       to_timestamp(d.at / 1e6) AS ended_at
FROM asked a
JOIN batuta.runs r ON r.run_id = a.run_id
LEFT JOIN done d ON d.run_id = a.run_id AND d.seq = a.seq
LEFT JOIN LATERAL (
    SELECT t.number, t.started_at, t.error FROM batuta.attempts t
    WHERE t.run_id = a.run_id AND t.seq = a.seq ORDER BY t.number DESC LIMIT 1
) t ON true;

COMMENT ON VIEW batuta.batuta_activities IS 'One row per activity that a run has called: input, outcome, attempts and times';
