-- Statements of the SQLite store. `SELECT *` of runs is decoded by position in rows.py.

-- applied_migrations --
SELECT name, checksum FROM migrations;

-- create_migrations --
CREATE TABLE IF NOT EXISTS migrations (
    name TEXT PRIMARY KEY, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- record_migration --
INSERT INTO migrations (name, checksum, applied_at) VALUES (?, ?, ?);

-- has_migrations --
SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'migrations';

-- insert_run --
-- Does nothing when the run or its id is there already.
INSERT INTO runs (
    run_id, namespace, id, chain_id, kind, name, queue, priority, state, epoch, head, owner, wake_at, created_at,
    deadline, version, tags, memo, parent_run_id, parent_seq, parent_policy, flow_key, claimed_head, current
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1) ON CONFLICT DO NOTHING;

-- supersede --
-- The id's closed run is its current one no more.
UPDATE runs SET current = 0 WHERE namespace = ? AND id = ? AND current = 1 AND closed_at IS NOT NULL;

-- run_by_id --
SELECT * FROM runs WHERE namespace = ? AND id = ? AND current = 1;

-- run_by_run_id --
SELECT * FROM runs WHERE namespace = ? AND run_id = ?;

-- fence_state --
SELECT epoch, head, closed_at IS NOT NULL FROM runs WHERE namespace = ? AND run_id = ?;

-- epoch_and_chain --
SELECT iif(closed_at IS NULL, epoch, -1), chain_id FROM runs WHERE namespace = ? AND run_id = ?;

-- id_taken --
SELECT closed_at IS NOT NULL FROM runs WHERE namespace = ? AND id = ? AND current = 1;

-- created_at --
SELECT created_at FROM runs WHERE namespace = ? AND run_id = ?;

-- advance --
-- The fence: ownership, contiguity and openness in one, by the row itself.
UPDATE runs SET head = ? WHERE namespace = ? AND run_id = ? AND epoch = ? AND head = ? AND closed_at IS NULL;

-- finish --
UPDATE runs SET head = ?, state = ?, closed_at = ?, reason = ?, owner = NULL, wake_at = NULL
WHERE namespace = ? AND run_id = ? AND epoch = ? AND head = ? AND closed_at IS NULL;

-- hand_back --
UPDATE runs SET head = ?, state = ?, wake_at = ?, reason = ?, owner = NULL
WHERE namespace = ? AND run_id = ? AND epoch = ? AND head = ? AND closed_at IS NULL;

-- evict --
-- Handed back until a time, if it has read all.
UPDATE runs SET head = ?, state = 'waiting', wake_at = ?, reason = ?, owner = NULL
WHERE namespace = ? AND run_id = ? AND epoch = ? AND head = ? AND closed_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM inbox WHERE inbox.chain_id = runs.chain_id AND consumed_at IS NULL);

-- evict_unread --
-- The same for what has not: due at once.
UPDATE runs SET head = ?, state = 'waiting', wake_at = ?, reason = ?, owner = NULL
WHERE namespace = ? AND run_id = ? AND epoch = ? AND head = ? AND closed_at IS NULL
    AND EXISTS (SELECT 1 FROM inbox WHERE inbox.chain_id = runs.chain_id AND consumed_at IS NULL);

-- park --
UPDATE runs SET head = ?, state = ?, reason = ?, owner = NULL, wake_at = NULL, failed_code = CASE
    WHEN ?4 = '' OR EXISTS (SELECT 1 FROM json_each(failed_code) WHERE value = ?4) THEN failed_code
    ELSE json_insert(failed_code, '$[#]', ?4) END
WHERE namespace = ? AND run_id = ? AND epoch = ? AND head = ? AND closed_at IS NULL;

-- insert_entry --
INSERT INTO journal (run_id, ord, namespace, kind, at, crc, epoch, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- upsert_attempt --
INSERT INTO attempts (run_id, seq, number, namespace, started_at, ended_at, next_at, error, details)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (run_id, seq, number) DO UPDATE SET started_at = excluded.started_at, ended_at = excluded.ended_at,
    next_at = excluded.next_at, error = excluded.error, details = excluded.details;

-- consume --
UPDATE inbox SET consumed_at = ?
WHERE chain_id = (SELECT chain_id FROM runs WHERE namespace = ? AND run_id = ?) AND message_id = ?
    AND consumed_at IS NULL;

-- insert_message --
INSERT INTO inbox (namespace, chain_id, message_id, kind, name, body, at) VALUES (?, ?, ?, ?, ?, ?, ?);

-- message_known --
SELECT 1 FROM inbox WHERE chain_id = ? AND message_id = ?;

-- wake --
-- Only what nobody owns, and what is not parked or paused, becomes due.
UPDATE runs SET wake_at = min(coalesce(wake_at, ?1), ?1)
WHERE namespace = ?2 AND run_id = ?3 AND state IN ('pending', 'waiting');

-- close_from_outside --
UPDATE runs SET head = head + 1, epoch = epoch + 1, state = ?, closed_at = ?, reason = ?, owner = NULL, wake_at = NULL
WHERE namespace = ? AND run_id = ? AND head = ? AND closed_at IS NULL;

-- register --
INSERT INTO workers (namespace, worker_id, host, pid, queues, code, registered_at, beat_at, lease_until)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8)
ON CONFLICT (namespace, worker_id) DO UPDATE SET host = excluded.host, pid = excluded.pid, queues = excluded.queues,
    code = excluded.code, registered_at = excluded.registered_at, beat_at = excluded.beat_at,
    lease_until = excluded.lease_until;

-- renew --
UPDATE workers SET beat_at = ?1, lease_until = ?2 WHERE namespace = ?3 AND worker_id = ?4 AND lease_until > ?1;

-- is_live --
SELECT 1 FROM workers WHERE namespace = ? AND worker_id = ? AND lease_until > ?;

-- forget_worker --
DELETE FROM workers WHERE namespace = ? AND worker_id = ?;

-- all_workers --
SELECT worker_id FROM workers WHERE namespace = ?;

-- release_all --
-- A worker leaves in order: its runs are due, and no death is counted.
UPDATE runs SET epoch = epoch + 1, owner = NULL, wake_at = ?1, state = iif(head < 0, 'pending', 'waiting')
WHERE namespace = ?2 AND owner = ?3;

-- next_priority --
-- Steps down the priorities of a queue, one index look-up each.
SELECT max(priority) FROM runs WHERE namespace = ? AND queue = ? AND wake_at IS NOT NULL AND priority < ?;

-- due --
SELECT * FROM runs
WHERE namespace = ? AND queue = ? AND priority = ? AND wake_at <= ? AND name IN (SELECT value FROM json_each(?))
ORDER BY wake_at LIMIT ?;

-- due_at --
SELECT wake_at FROM runs
WHERE namespace = ? AND queue = ? AND priority = ? AND wake_at IS NOT NULL
    AND name IN (SELECT value FROM json_each(?))
ORDER BY wake_at LIMIT 1;

-- own --
-- Progress since the claim before takes the deaths back.
UPDATE runs SET epoch = epoch + 1, state = 'running', owner = ?, wake_at = NULL,
    deaths = iif(head = claimed_head, deaths, 0), claimed_head = head
WHERE namespace = ? AND run_id = ?;

-- owned --
SELECT run_id, epoch FROM runs WHERE namespace = ? AND owner = ?;

-- owned_unread --
SELECT run_id FROM runs WHERE namespace = ? AND owner = ?
    AND EXISTS (SELECT 1 FROM inbox WHERE inbox.chain_id = runs.chain_id AND consumed_at IS NULL);

-- overdue --
-- Runs over their deadline, with time and crc of their last entry.
SELECT r.run_id, r.head, r.epoch, r.owner, j.at, j.crc
FROM runs AS r LEFT JOIN journal AS j ON j.run_id = r.run_id AND j.ord = r.head
WHERE r.namespace = ? AND r.deadline <= ? AND r.deadline IS NOT NULL AND r.closed_at IS NULL
ORDER BY r.deadline LIMIT ?;

-- parked --
SELECT run_id, queue, failed_code FROM runs WHERE namespace = ? AND name = ? AND state = 'needs_code' LIMIT ?;

-- revive --
UPDATE runs SET state = 'waiting', wake_at = ? WHERE namespace = ? AND run_id = ? AND state = 'needs_code';

-- owners --
-- Steps through the owners in the index, not through their runs.
WITH RECURSIVE owners (owner) AS (
    SELECT min(owner) FROM runs WHERE namespace = ?1 AND owner IS NOT NULL
    UNION ALL
    SELECT (SELECT min(owner) FROM runs WHERE namespace = ?1 AND owner IS NOT NULL AND owner > owners.owner)
    FROM owners WHERE owners.owner IS NOT NULL
)
SELECT owner FROM owners WHERE owner IS NOT NULL;

-- reap --
-- Set a dead owner's runs free: up to a number of them, the fence raised.
UPDATE runs SET epoch = epoch + 1, owner = NULL,
    deaths = iif(head = claimed_head, deaths + 1, 1),
    state = CASE WHEN head = claimed_head AND deaths + 1 >= ?1 THEN 'poisoned'
        WHEN head < 0 THEN 'pending' ELSE 'waiting' END,
    wake_at = iif(head = claimed_head AND deaths + 1 >= ?1, NULL, ?2),
    reason = iif(head = claimed_head AND deaths + 1 >= ?1, ?3, reason)
WHERE namespace = ?4 AND run_id IN (SELECT run_id FROM runs WHERE namespace = ?4 AND owner = ?5 LIMIT ?6);

-- entries --
SELECT ord, kind, at, crc, body FROM journal WHERE run_id = ? AND ord > ? AND ord <= ? ORDER BY ord LIMIT ?;

-- last_entry --
SELECT ord, kind, at, crc, body FROM journal WHERE run_id = ? AND ord = ?;

-- epochs --
SELECT epoch FROM journal WHERE run_id = ? AND namespace = ? ORDER BY ord;

-- unread --
SELECT message_id, kind, name, body, at, number FROM inbox
WHERE chain_id = ? AND consumed_at IS NULL ORDER BY number;

-- attempts --
SELECT seq, number, started_at, ended_at, next_at, error, details FROM attempts
WHERE run_id = ? AND namespace = ? ORDER BY seq, number;

-- list_runs --
-- Newest first by run id, which is of time. Every restriction can be left out with NULL.
SELECT * FROM runs
WHERE namespace = :namespace AND run_id < :before
    AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
    AND (:name IS NULL OR name = :name)
    AND (:kind IS NULL OR kind = :kind)
    AND (:queue IS NULL OR queue = :queue)
    AND (:id_prefix IS NULL OR substr(id, 1, length(:id_prefix)) = :id_prefix)
    AND (:created_after IS NULL OR created_at > :created_after)
    AND (:created_before IS NULL OR created_at < :created_before)
    AND (:tags IS NULL OR NOT EXISTS (
        SELECT 1 FROM json_each(:tags) AS wanted WHERE NOT EXISTS (
            SELECT 1 FROM json_each(runs.tags) AS tag
            WHERE tag.key = json_extract(wanted.value, '$[0]') AND tag.value = json_extract(wanted.value, '$[1]'))))
ORDER BY run_id DESC LIMIT :limit;

-- list_unhappy_runs --
-- The same, through the index of what went wrong (its predicate must be repeated here word by word).
SELECT * FROM runs INDEXED BY runs_unhappy
WHERE namespace = :namespace AND run_id < :before
    AND state IN ('failed', 'timed_out', 'cancelled', 'terminated', 'needs_code', 'poisoned', 'paused')
    AND state IN (SELECT value FROM json_each(:states))
    AND (:name IS NULL OR name = :name)
    AND (:kind IS NULL OR kind = :kind)
    AND (:queue IS NULL OR queue = :queue)
    AND (:id_prefix IS NULL OR substr(id, 1, length(:id_prefix)) = :id_prefix)
    AND (:created_after IS NULL OR created_at > :created_after)
    AND (:created_before IS NULL OR created_at < :created_before)
    AND (:tags IS NULL OR NOT EXISTS (
        SELECT 1 FROM json_each(:tags) AS wanted WHERE NOT EXISTS (
            SELECT 1 FROM json_each(runs.tags) AS tag
            WHERE tag.key = json_extract(wanted.value, '$[0]') AND tag.value = json_extract(wanted.value, '$[1]'))))
ORDER BY run_id DESC LIMIT :limit;

-- count_runs --
SELECT count(*) FROM runs
WHERE namespace = :namespace
    AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
    AND (:name IS NULL OR name = :name)
    AND (:kind IS NULL OR kind = :kind)
    AND (:queue IS NULL OR queue = :queue)
    AND (:id_prefix IS NULL OR substr(id, 1, length(:id_prefix)) = :id_prefix)
    AND (:created_after IS NULL OR created_at > :created_after)
    AND (:created_before IS NULL OR created_at < :created_before)
    AND (:tags IS NULL OR NOT EXISTS (
        SELECT 1 FROM json_each(:tags) AS wanted WHERE NOT EXISTS (
            SELECT 1 FROM json_each(runs.tags) AS tag
            WHERE tag.key = json_extract(wanted.value, '$[0]') AND tag.value = json_extract(wanted.value, '$[1]'))))
