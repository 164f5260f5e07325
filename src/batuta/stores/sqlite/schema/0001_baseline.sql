-- The tables of a SQLite store, as a new file has them. Times are integer microseconds since 1970, UTC; run ids are 16-byte
-- blobs; payloads are JSON text. No foreign keys: they would double the cost of an insert, and they do not fence.

-- Narrow: what is claimed, fenced and listed. `head`, which every commit changes, is in no index and no index's
-- predicate. The columns are read by position (rows.py): new ones go to the end.
CREATE TABLE runs (
    run_id        BLOB    NOT NULL,
    namespace     TEXT    NOT NULL,
    id            TEXT    NOT NULL,
    chain_id      BLOB    NOT NULL,
    kind          TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    queue         TEXT    NOT NULL,
    priority      INTEGER NOT NULL,
    state         TEXT    NOT NULL,
    epoch         INTEGER NOT NULL,
    head          INTEGER NOT NULL,
    owner         TEXT,
    wake_at       INTEGER,
    created_at    INTEGER NOT NULL,
    closed_at     INTEGER,
    deadline      INTEGER,
    deaths        INTEGER NOT NULL DEFAULT 0,
    reason        TEXT    NOT NULL DEFAULT '',
    failed_code   TEXT    NOT NULL DEFAULT '[]',
    version       TEXT    NOT NULL,
    tags          TEXT    NOT NULL,
    memo          TEXT    NOT NULL,
    parent_run_id BLOB,
    parent_seq    INTEGER NOT NULL,
    parent_policy TEXT    NOT NULL,
    flow_key      TEXT    NOT NULL,
    claimed_head  INTEGER NOT NULL,
    current       INTEGER NOT NULL,
    -- What a worker must have to run it.
    code          TEXT    NOT NULL,
    -- When it is closed if nobody has claimed it, and the key that later starts find it by until then.
    expires_at    INTEGER,
    debounce      TEXT,
    -- Children that must close before it is due.
    awaits        INTEGER NOT NULL DEFAULT 0,
    -- Since when an operator holds it, and the wake_at that it had then.
    paused_at     INTEGER,
    resume_at     INTEGER,
    -- The run whose journal it began with, and the last entry that they have in common.
    forked_from   BLOB,
    forked_at     INTEGER NOT NULL DEFAULT -1,
    PRIMARY KEY (namespace, run_id)
) STRICT;

-- An id has one current run, open or closed.
CREATE UNIQUE INDEX runs_current ON runs (namespace, id) WHERE current = 1;
-- The chains that had an id before: only a run that another one follows is in it.
CREATE INDEX runs_earlier ON runs (namespace, id, chain_id) WHERE current = 0;
-- What can be claimed now or later: wake_at is set only while nobody owns the run. Runs with a flow key apart, so that
-- those of a key that must wait do not stand in the way of others; and those by key, so that keys have their turns.
CREATE INDEX runs_due ON runs (namespace, queue, priority, wake_at, code, flow_key)
    WHERE wake_at IS NOT NULL AND flow_key = '';
CREATE INDEX runs_keyed ON runs (namespace, queue, priority, wake_at, code)
    WHERE wake_at IS NOT NULL AND flow_key <> '';
CREATE INDEX runs_turns ON runs (namespace, queue, priority, flow_key, wake_at, code)
    WHERE wake_at IS NOT NULL AND flow_key <> '';
-- What has begun is claimed again although a rate lets nothing new begin.
CREATE INDEX runs_begun ON runs (namespace, queue, priority, wake_at, code) WHERE wake_at IS NOT NULL AND epoch > 0;
CREATE INDEX runs_owned ON runs (namespace, owner, queue, flow_key) WHERE owner IS NOT NULL;
CREATE INDEX runs_expiring ON runs (namespace, expires_at) WHERE expires_at IS NOT NULL AND paused_at IS NULL;
CREATE UNIQUE INDEX runs_debounced ON runs (namespace, debounce) WHERE debounce IS NOT NULL;
-- Runs that workers died with: few, and each to be run alone.
CREATE INDEX runs_suspect_due ON runs (namespace, queue, priority DESC, wake_at)
    WHERE deaths >= 2 AND wake_at IS NOT NULL;
CREATE INDEX runs_suspect_owned ON runs (namespace, owner) WHERE deaths >= 2 AND owner IS NOT NULL;
CREATE INDEX runs_deadline ON runs (namespace, deadline)
    WHERE deadline IS NOT NULL AND closed_at IS NULL AND paused_at IS NULL;
CREATE INDEX runs_parked ON runs (namespace, code) WHERE state = 'needs_code';
CREATE INDEX runs_children ON runs (namespace, parent_run_id, closed_at) WHERE parent_run_id IS NOT NULL;
-- The few that a person looks for among the many that went well. The tests are repeated in queries.sql. One by one and
-- the likely ones first: a list would be built anew for each run that begins or ends, which costs as much as the rest.
CREATE INDEX runs_unhappy ON runs (namespace, run_id, state)
    WHERE state <> 'completed' AND state <> 'running' AND state <> 'waiting' AND state <> 'pending'
        AND state <> 'continued';

CREATE TABLE journal (
    run_id    BLOB    NOT NULL,
    ord       INTEGER NOT NULL,
    namespace TEXT    NOT NULL,
    kind      TEXT    NOT NULL,
    at        INTEGER NOT NULL,
    crc       INTEGER NOT NULL,
    epoch     INTEGER NOT NULL,
    body      TEXT    NOT NULL,
    PRIMARY KEY (run_id, ord)
) STRICT;

-- Belongs to the chain. Consumed rows are marked, so that a message id stays taken.
CREATE TABLE inbox (
    number      INTEGER PRIMARY KEY,
    namespace   TEXT    NOT NULL,
    chain_id    BLOB    NOT NULL,
    message_id  TEXT    NOT NULL,
    kind        TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    body        TEXT    NOT NULL,
    at          INTEGER NOT NULL,
    consumed_at INTEGER,
    UNIQUE (chain_id, message_id)
) STRICT;
CREATE INDEX inbox_unread ON inbox (chain_id, number) WHERE consumed_at IS NULL;

-- Published values and answers to updates, written over by the turn that makes a newer one. Answers belong to the
-- chain: run_id is its first run's.
CREATE TABLE outputs (
    run_id    BLOB    NOT NULL,
    kind      TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    namespace TEXT    NOT NULL,
    ord       INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    value     TEXT,
    error     TEXT,
    PRIMARY KEY (run_id, kind, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE attempts (
    run_id     BLOB    NOT NULL,
    seq        INTEGER NOT NULL,
    number     INTEGER NOT NULL,
    namespace  TEXT    NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at   INTEGER,
    next_at    INTEGER,
    error      TEXT,
    details    TEXT,
    outside    INTEGER NOT NULL DEFAULT 0,
    tokens     TEXT,
    PRIMARY KEY (run_id, seq, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE workers (
    namespace     TEXT    NOT NULL,
    worker_id     TEXT    NOT NULL,
    host          TEXT    NOT NULL,
    pid           INTEGER NOT NULL,
    queues        TEXT    NOT NULL,
    code          TEXT    NOT NULL,
    registered_at INTEGER NOT NULL,
    beat_at       INTEGER NOT NULL,
    lease_until   INTEGER NOT NULL,
    locked        INTEGER NOT NULL DEFAULT 1, -- always; behind a pooler PostgreSQL has others
    process       TEXT    NOT NULL DEFAULT '',
    PRIMARY KEY (namespace, worker_id)
) STRICT, WITHOUT ROWID;

-- Queues that were limited or paused, and those (`keyed`) that a run with a flow key was ever started into.
CREATE TABLE queues (
    namespace       TEXT    NOT NULL,
    name            TEXT    NOT NULL,
    keyed           INTEGER NOT NULL DEFAULT 0,
    paused          INTEGER NOT NULL DEFAULT 0,
    note            TEXT    NOT NULL DEFAULT '',
    concurrency     INTEGER,
    key_concurrency INTEGER,
    rate_count      INTEGER,
    rate_period     INTEGER,
    key_rate_count  INTEGER,
    key_rate_period INTEGER,
    PRIMARY KEY (namespace, name)
) STRICT, WITHOUT ROWID;

-- How many runs began in a queue with a rate, by the end of a sub-window of its period; '' counts for the queue itself.
CREATE TABLE begun (
    namespace TEXT    NOT NULL,
    queue     TEXT    NOT NULL,
    flow_key  TEXT    NOT NULL,
    slot      INTEGER NOT NULL,
    count     INTEGER NOT NULL,
    PRIMARY KEY (namespace, queue, flow_key, slot)
) STRICT, WITHOUT ROWID;
CREATE INDEX begun_slot ON begun (namespace, queue, slot);

-- `spec` is JSON: when, what, and how to catch up. `state` is JSON, too: what is remembered between two looks.
CREATE TABLE schedules (
    namespace  TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    revision   INTEGER NOT NULL,
    paused     INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    next_at    INTEGER,
    last_at    INTEGER,
    last_id    TEXT    NOT NULL DEFAULT '',
    spec       TEXT    NOT NULL,
    state      TEXT    NOT NULL DEFAULT '{}',
    note       TEXT    NOT NULL DEFAULT '',
    PRIMARY KEY (namespace, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX schedules_due ON schedules (namespace, next_at, id) WHERE paused = 0 AND next_at IS NOT NULL;

-- What operators did: one row for each thing that an act was done to, each with the hash of itself and the one before.
CREATE TABLE audit (
    namespace TEXT    NOT NULL,
    number    INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    actor     TEXT    NOT NULL,
    verb      TEXT    NOT NULL,
    target    TEXT    NOT NULL,
    run_id    TEXT    NOT NULL,
    reason    TEXT    NOT NULL,
    detail    TEXT    NOT NULL,
    before    TEXT    NOT NULL,
    after     TEXT    NOT NULL,
    hash      TEXT    NOT NULL,
    salt      TEXT    NOT NULL DEFAULT '',
    PRIMARY KEY (namespace, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX audit_target ON audit (namespace, target, number);

-- Where the log of a namespace ends: without it, nobody could tell that its last rows are gone.
CREATE TABLE audit_heads (
    namespace TEXT    NOT NULL PRIMARY KEY,
    number    INTEGER NOT NULL,
    hash      TEXT    NOT NULL,
    salt      TEXT    NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID;

CREATE TRIGGER audit_stays BEFORE UPDATE ON audit
BEGIN
    SELECT raise(ABORT, 'the audit log is only added to');
END;
CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit
BEGIN
    SELECT raise(ABORT, 'the audit log is only added to');
END;
-- Where a log ends moves on by updates alone, and no row is put in behind it. Nor in place of another: INSERT OR REPLACE
-- deletes without asking the triggers for that.
CREATE TRIGGER audit_ends BEFORE INSERT ON audit
WHEN NEW.number > coalesce((SELECT number FROM audit_heads WHERE namespace = NEW.namespace), 0)
  OR EXISTS (SELECT 1 FROM audit WHERE namespace = NEW.namespace AND number = NEW.number)
BEGIN
    SELECT raise(ABORT, 'the audit log is only added to');
END;
CREATE TRIGGER audit_heads_begin BEFORE INSERT ON audit_heads
WHEN NEW.number <> 0 OR NEW.hash <> '' OR EXISTS (SELECT 1 FROM audit_heads WHERE namespace = NEW.namespace)
BEGIN
    SELECT raise(ABORT, 'the audit log begins with nothing');
END;
CREATE TRIGGER audit_heads_move BEFORE UPDATE ON audit_heads
WHEN NEW.namespace <> OLD.namespace OR NEW.number <= OLD.number
BEGIN
    SELECT raise(ABORT, 'the audit log is only added to');
END;
CREATE TRIGGER audit_heads_stay BEFORE DELETE ON audit_heads
BEGIN
    SELECT raise(ABORT, 'the audit log is only added to');
END;

-- Dead letters: runs that were given up, and wait for a person.
CREATE TABLE dead_letters (
    run_id      BLOB    NOT NULL,
    namespace   TEXT    NOT NULL,
    id          TEXT    NOT NULL,
    kind        TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    queue       TEXT    NOT NULL,
    flow_key    TEXT    NOT NULL,
    state       TEXT    NOT NULL CHECK (state IN ('open', 'reprocessed', 'discarded')),
    at          INTEGER NOT NULL,
    reason      TEXT    NOT NULL,
    error       TEXT    NOT NULL,
    message     TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    activity    TEXT    NOT NULL,
    seq         INTEGER NOT NULL,
    attempts    INTEGER NOT NULL,
    keep        INTEGER NOT NULL,
    trace       TEXT    NOT NULL,
    resolved_at INTEGER,
    note        TEXT    NOT NULL DEFAULT '',
    successor   BLOB,
    PRIMARY KEY (namespace, run_id)
) STRICT;
CREATE INDEX dead_letters_newest ON dead_letters (namespace, state, at, run_id);
CREATE INDEX dead_letters_alike ON dead_letters (namespace, fingerprint, state, at, run_id);

-- How many there are of each kind, kept as letters come and go: groups are listed without looking at their letters.
-- `error` and `activity` are the same wherever the fingerprint is.
CREATE TABLE letter_groups (
    namespace   TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    state       TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    reason      TEXT    NOT NULL,
    error       TEXT    NOT NULL,
    activity    TEXT    NOT NULL,
    count       INTEGER NOT NULL,
    first_at    INTEGER NOT NULL,
    last_at     INTEGER NOT NULL,
    PRIMARY KEY (namespace, fingerprint, state, name, reason)
) STRICT, WITHOUT ROWID;
CREATE INDEX letter_groups_newest ON letter_groups (namespace, state, last_at, fingerprint);

-- How long runs are kept once they are closed: empty names and states stand for any, no `keep` (microseconds from the
-- close) for ever.
CREATE TABLE retention (
    namespace TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    state     TEXT    NOT NULL,
    keep      INTEGER,
    PRIMARY KEY (namespace, name, state)
) STRICT, WITHOUT ROWID;

-- Runs that are gone but for long journals and inboxes, which go in several transactions. Nobody finds those any more.
CREATE TABLE leftovers (run_id BLOB NOT NULL PRIMARY KEY) STRICT, WITHOUT ROWID;

-- How much a namespace may start, by the name of the quota; those of namespace '*' hold for whoever has none of that name.
-- No `at_most`: there is none. `burst`: how many starts may come at once; null: as many as in a second.
CREATE TABLE quotas (
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    at_most   REAL,
    burst     INTEGER,
    PRIMARY KEY (namespace, name)
) STRICT, WITHOUT ROWID;

-- How many starts of its burst a namespace had left, and when. Below zero: clients have started more before they saw.
CREATE TABLE allowances (
    namespace TEXT    NOT NULL PRIMARY KEY,
    starts    REAL    NOT NULL,
    at        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What is said of a namespace, for all who connect to it: that it is encrypted, or that commands redact.
CREATE TABLE marks (
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    value     TEXT NOT NULL,
    PRIMARY KEY (namespace, name)
) STRICT, WITHOUT ROWID;

-- For people: ids as text, times as text in UTC. The columns are those of the views in PostgreSQL.
CREATE VIEW batuta_runs AS
SELECT
    r.namespace, r.id,
    lower(printf('%s-%s-%s-%s-%s', substr(r.run, 1, 8), substr(r.run, 9, 4), substr(r.run, 13, 4),
        substr(r.run, 17, 4), substr(r.run, 21))) AS run_id,
    r.kind, r.name, r.queue, r.priority, r.state, r.reason, r.owner, r.epoch, r.head + 1 AS entries, r.deaths,
    strftime('%Y-%m-%d %H:%M:%f', r.created_at / 1e6, 'unixepoch') AS created_at,
    strftime('%Y-%m-%d %H:%M:%f', r.closed_at / 1e6, 'unixepoch') AS closed_at,
    strftime('%Y-%m-%d %H:%M:%f', r.wake_at / 1e6, 'unixepoch') AS wake_at,
    strftime('%Y-%m-%d %H:%M:%f', r.deadline / 1e6, 'unixepoch') AS deadline,
    r.current,
    lower(printf('%s-%s-%s-%s-%s', substr(r.chain, 1, 8), substr(r.chain, 9, 4), substr(r.chain, 13, 4),
        substr(r.chain, 17, 4), substr(r.chain, 21))) AS chain_id,
    nullif(lower(printf('%s-%s-%s-%s-%s', substr(r.parent, 1, 8), substr(r.parent, 9, 4), substr(r.parent, 13, 4),
        substr(r.parent, 17, 4), substr(r.parent, 21))), '----') AS parent_run_id,
    r.version, r.tags, r.memo, r.flow_key,
    strftime('%Y-%m-%d %H:%M:%f', r.expires_at / 1e6, 'unixepoch') AS expires_at, r.awaits,
    nullif(lower(printf('%s-%s-%s-%s-%s', substr(r.source, 1, 8), substr(r.source, 9, 4), substr(r.source, 13, 4),
        substr(r.source, 17, 4), substr(r.source, 21))), '----') AS forked_from,
    iif(r.forked_from IS NULL, NULL, r.forked_at) AS forked_at
FROM (
    SELECT *, hex(run_id) AS run, hex(chain_id) AS chain, hex(parent_run_id) AS parent, hex(forked_from) AS source
    FROM runs
) AS r;

-- One row for each activity that a run has asked for: its command stands in one entry, its end in a later one.
-- `output` asks for two paths, of which the second is not there, and cuts the array: a single one would come as a value
-- of SQL, which is not the JSON that was written.
CREATE VIEW batuta_activities AS
SELECT
    j.namespace, r.id,
    lower(printf('%s-%s-%s-%s-%s', substr(hex(j.run_id), 1, 8), substr(hex(j.run_id), 9, 4),
        substr(hex(j.run_id), 13, 4), substr(hex(j.run_id), 17, 4), substr(hex(j.run_id), 21))) AS run_id,
    json_extract(c.value, '$.seq') AS seq,
    json_extract(c.value, '$.name') AS name,
    CASE d.kind WHEN 'activity_done' THEN 'completed' WHEN 'activity_failed' THEN 'failed' ELSE 'pending' END AS state,
    json_extract(c.value, '$.value') AS input,
    iif(json_type(d.body, '$.value') IS NULL, NULL, substr(json_extract(d.body, '$.value', '$.none'), 2,
        length(json_extract(d.body, '$.value', '$.none')) - length('[,null]'))) AS output,
    iif(d.kind IS NULL, a.error, json_extract(d.body, '$.error')) AS error,
    coalesce(json_extract(d.body, '$.attempts'), a.number, 0) AS attempts,
    strftime('%Y-%m-%d %H:%M:%f', j.at / 1e6, 'unixepoch') AS scheduled_at,
    strftime('%Y-%m-%d %H:%M:%f', coalesce(json_extract(d.body, '$.started_at'), a.started_at) / 1e6,
        'unixepoch') AS started_at,
    strftime('%Y-%m-%d %H:%M:%f', d.at / 1e6, 'unixepoch') AS ended_at
FROM journal AS j
JOIN json_each(j.body, '$.commands') AS c ON json_extract(c.value, '$.kind') = 'activity'
JOIN runs AS r ON r.namespace = j.namespace AND r.run_id = j.run_id
LEFT JOIN journal AS d
    ON d.run_id = j.run_id AND d.ord > j.ord AND d.kind IN ('activity_done', 'activity_failed')
    AND json_extract(d.body, '$.seq') = json_extract(c.value, '$.seq')
LEFT JOIN attempts AS a
    ON a.run_id = j.run_id AND a.seq = json_extract(c.value, '$.seq')
    AND a.number = (SELECT max(t.number) FROM attempts AS t WHERE t.run_id = a.run_id AND t.seq = a.seq);

CREATE VIEW batuta_audit AS
SELECT
    namespace, number, strftime('%Y-%m-%d %H:%M:%f', at / 1e6, 'unixepoch') AS at, actor, verb, target,
    nullif(run_id, '') AS run_id, reason, detail, before, after, hash, salt
FROM audit;

CREATE VIEW batuta_dead_letters AS
SELECT
    l.namespace, l.id,
    lower(printf('%s-%s-%s-%s-%s', substr(l.run, 1, 8), substr(l.run, 9, 4), substr(l.run, 13, 4),
        substr(l.run, 17, 4), substr(l.run, 21))) AS run_id,
    l.kind, l.name, l.queue, l.flow_key, l.state,
    strftime('%Y-%m-%d %H:%M:%f', l.at / 1e6, 'unixepoch') AS at,
    l.reason, l.error, l.message, l.fingerprint, l.activity, l.seq, l.attempts, l.trace,
    strftime('%Y-%m-%d %H:%M:%f', l.resolved_at / 1e6, 'unixepoch') AS resolved_at,
    l.note,
    nullif(lower(printf('%s-%s-%s-%s-%s', substr(l.next, 1, 8), substr(l.next, 9, 4), substr(l.next, 13, 4),
        substr(l.next, 17, 4), substr(l.next, 21))), '----') AS successor
FROM (SELECT *, hex(run_id) AS run, hex(successor) AS next FROM dead_letters) AS l;
