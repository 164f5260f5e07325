-- Statements of the SQLite store. rows.py decodes `SELECT *` of runs by position. OR FAIL where many rows are written
-- at once: SQLite need not be able to undo a statement whose transaction is rolled back when it fails.

-- insert_run --
-- Does nothing when the run or its id is there already.
INSERT OR FAIL INTO runs (
    current, namespace, kind, name, queue, priority, state, epoch, head, owner, wake_at, created_at, deadline, version,
    tags, memo, parent_run_id, parent_seq, parent_policy, flow_key, claimed_head, code, expires_at, debounce,
    run_id, id, chain_id
) VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING;

-- insert_owned_run --
-- The same for a run that a worker begins at once, if it is live and the queue allows it: see must_wait.
INSERT INTO runs (
    current, namespace, kind, name, queue, priority, state, epoch, head, owner, wake_at, created_at, deadline, version,
    tags, memo, parent_run_id, parent_seq, parent_policy, flow_key, claimed_head, code, expires_at, debounce,
    run_id, id, chain_id
) SELECT 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
WHERE EXISTS (SELECT 1 FROM workers WHERE namespace = ? AND worker_id = ? AND lease_until > ?)
    AND NOT EXISTS (SELECT 1 FROM queues WHERE namespace = ? AND name = ? AND (paused OR concurrency IS NOT NULL
        OR key_concurrency IS NOT NULL OR rate_count IS NOT NULL OR key_rate_count IS NOT NULL))
ON CONFLICT DO NOTHING;

-- supersede --
-- The id's closed run is its current one no more.
UPDATE runs SET current = 0 WHERE namespace = ? AND id = ? AND current = 1 AND closed_at IS NOT NULL;

-- run_by_id --
SELECT * FROM runs WHERE namespace = ? AND id = ? AND current = 1;

-- run_by_run_id --
SELECT * FROM runs WHERE namespace = ? AND run_id = ?;

-- fence_state --
SELECT epoch, head, closed_at IS NOT NULL, owner,
    (SELECT crc FROM journal AS j WHERE j.run_id = runs.run_id AND j.namespace = runs.namespace AND ord = runs.head), chain_id
FROM runs WHERE namespace = ? AND run_id = ?;

-- epoch_and_chain --
SELECT iif(closed_at IS NULL, epoch, -1), chain_id, head FROM runs WHERE namespace = ? AND run_id = ?;

-- id_taken --
SELECT closed_at IS NOT NULL, created_at FROM runs WHERE namespace = ? AND id = ? AND current = 1;

-- created_at --
SELECT created_at FROM runs WHERE namespace = ? AND run_id = ?;

-- advance --
-- The fence: ownership, contiguity and openness in one, by the row itself. The owner besides the epoch: a database that went
-- back in time gives an epoch out twice. It is kept away from the index of owners, here and below. Runs are found by their key also where many are
-- asked for, and SQLite holds the table for small because somebody analysed it when it was.
UPDATE OR FAIL runs INDEXED BY sqlite_autoindex_runs_1 SET head = ?
WHERE namespace = ? AND epoch = ? AND head = ? AND +owner = ? AND closed_at IS NULL AND run_id = ?;

-- finish --
-- End by itself, if it has read all messages accepted for it.
UPDATE OR FAIL runs INDEXED BY sqlite_autoindex_runs_1
SET head = ?, state = ?, closed_at = ?, reason = ?, owner = NULL, wake_at = NULL
WHERE namespace = ? AND epoch = ? AND head = ? AND +owner = ? AND closed_at IS NULL AND run_id = ?
    AND NOT EXISTS (SELECT 1 FROM inbox
        WHERE inbox.chain_id = runs.chain_id AND inbox.namespace = runs.namespace AND consumed_at IS NULL
            AND inbox.kind IN ('signal', 'update', 'cancel'));

-- finish_all --
-- The same for many that have completed: their run ids as one value, and of each its epoch and head as one number. The
-- limit has them listed first, and the namespace comes with each: else SQLite (some versions) goes through all runs.
UPDATE OR FAIL runs
SET head = given.head + 1, state = 'completed', closed_at = :now, reason = '', owner = NULL, wake_at = NULL
FROM (
    SELECT :namespace AS namespace, substr(:run_ids, 16 * key + 1, 16) AS run_id, value >> 32 AS epoch,
        value & 0xffffffff AS head
    FROM json_each(:fences) LIMIT -1
) AS given
WHERE runs.namespace = given.namespace AND runs.run_id = given.run_id AND runs.epoch = given.epoch
    AND runs.head = given.head AND +runs.owner = :owner AND closed_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM inbox
        WHERE inbox.chain_id = runs.chain_id AND inbox.namespace = runs.namespace AND consumed_at IS NULL
            AND inbox.kind IN ('signal', 'update', 'cancel'));

-- go_on --
-- Another run follows it, which reads signals and updates; not a cancel, which is for the code that runs.
UPDATE OR FAIL runs INDEXED BY sqlite_autoindex_runs_1
SET head = ?, state = ?, closed_at = ?, reason = ?, owner = NULL, wake_at = NULL
WHERE namespace = ? AND epoch = ? AND head = ? AND +owner = ? AND closed_at IS NULL AND run_id = ?
    AND NOT EXISTS (SELECT 1 FROM inbox
        WHERE inbox.chain_id = runs.chain_id AND inbox.namespace = runs.namespace AND consumed_at IS NULL
            AND inbox.kind = 'cancel');

-- close --
-- Ends in another way: nothing waits to be read.
UPDATE runs INDEXED BY sqlite_autoindex_runs_1
SET head = ?, state = ?, closed_at = ?, reason = ?, owner = NULL, wake_at = NULL
WHERE namespace = ? AND epoch = ? AND head = ? AND +owner = ? AND closed_at IS NULL AND run_id = ?;

-- hand_back --
UPDATE runs SET head = ?, state = ?, wake_at = ?, reason = ?, owner = NULL
WHERE namespace = ? AND epoch = ? AND head = ? AND +owner = ? AND closed_at IS NULL AND run_id = ?;

-- evict --
-- Handed back until a time, if it has read all.
UPDATE runs SET head = ?, state = 'waiting', wake_at = ?, reason = ?, owner = NULL
WHERE namespace = ? AND epoch = ? AND head = ? AND +owner = ? AND closed_at IS NULL AND run_id = ?
    AND NOT EXISTS (SELECT 1 FROM inbox
        WHERE inbox.chain_id = runs.chain_id AND inbox.namespace = runs.namespace AND consumed_at IS NULL);

-- evict_unread --
-- The same for a run with unread messages: due at once.
UPDATE runs SET head = ?, state = 'waiting', wake_at = ?, reason = ?, owner = NULL
WHERE namespace = ? AND epoch = ? AND head = ? AND +owner = ? AND closed_at IS NULL AND run_id = ?
    AND EXISTS (SELECT 1 FROM inbox
        WHERE inbox.chain_id = runs.chain_id AND inbox.namespace = runs.namespace AND consumed_at IS NULL);

-- park_damaged --
-- A due run whose row cannot be read.
UPDATE runs SET state = 'poisoned', wake_at = NULL, failed_code = '[]', reason = ? WHERE rowid = ?;

-- park --
UPDATE runs SET head = ?, state = ?, reason = ?, owner = NULL, wake_at = NULL, failed_code = CASE
    WHEN ? = '' OR EXISTS (SELECT 1 FROM json_each(iif(json_valid(failed_code), failed_code, '[]')) WHERE value = ?) THEN failed_code
    ELSE json_insert(iif(json_valid(failed_code), failed_code, '[]'), '$[#]', ?) END
WHERE namespace = ? AND epoch = ? AND head = ? AND +owner = ? AND closed_at IS NULL AND run_id = ?;

-- insert_entry --
INSERT OR FAIL INTO journal (ord, namespace, kind, epoch, run_id, at, crc, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- upsert_attempt --
INSERT INTO attempts (run_id, seq, number, namespace, started_at, ended_at, next_at, error, details, outside, tokens)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (run_id, namespace, seq, number) DO UPDATE SET started_at = excluded.started_at, ended_at = excluded.ended_at,
    next_at = excluded.next_at, error = excluded.error, details = excluded.details, outside = excluded.outside,
    tokens = coalesce(excluded.tokens, tokens);

-- forget_attempt --
DELETE FROM attempts WHERE run_id = ? AND namespace = ? AND seq = ? AND number = ?;

-- unread_span --
-- From the first unread message to the last, by number: at most that many. Null: there is none.
SELECT (SELECT number FROM inbox WHERE chain_id = :chain AND namespace = :namespace AND consumed_at IS NULL
        ORDER BY number DESC LIMIT 1)
     - (SELECT number FROM inbox WHERE chain_id = :chain AND namespace = :namespace AND consumed_at IS NULL
        ORDER BY number LIMIT 1) + 1;

-- has_unread_at --
SELECT 1 FROM inbox WHERE chain_id = ? AND namespace = ? AND consumed_at IS NULL AND kind <> 'start'
ORDER BY number LIMIT 1 OFFSET ?;

-- most_waiting --
SELECT at_most FROM quotas WHERE name = :name AND namespace IN (:namespace, :everybody)
ORDER BY namespace = :namespace DESC LIMIT 1;

-- consume --
UPDATE inbox SET consumed_at = ?
WHERE (chain_id, namespace) = (SELECT chain_id, namespace FROM runs WHERE namespace = ? AND run_id = ?)
    AND message_id = ? AND consumed_at IS NULL;

-- forget_heartbeat --
-- Nobody sends one again, so that its id need not be known.
DELETE FROM inbox
WHERE (chain_id, namespace) = (SELECT chain_id, namespace FROM runs WHERE namespace = ? AND run_id = ?)
    AND message_id = ? AND kind = 'activity';

-- insert_message --
-- Does nothing when the chain has ever had the message.
INSERT INTO inbox (namespace, kind, name, at, chain_id, message_id, body) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- message_known --
SELECT 1 FROM inbox WHERE chain_id = ? AND namespace = ? AND message_id = ?;

-- is_rejected --
-- Whether a message was an update that was rejected.
SELECT 1 FROM outputs WHERE run_id = ? AND namespace = ? AND kind = 'answer' AND name = ? AND ord = -1;

-- forget_rejected --
DELETE FROM outputs WHERE run_id = ? AND namespace = ? AND kind = 'answer' AND name = ? AND ord = -1;

-- read_anew --
-- A message that was read comes again. By its number its owner knows that from having seen it before.
UPDATE inbox SET number = (SELECT max(number) FROM inbox) + 1, body = ?, at = ?, consumed_at = NULL
WHERE chain_id = ? AND namespace = ? AND message_id = ?;

-- taken_earlier --
-- Whether a chain that had this id before has ever had the message.
SELECT 1 FROM inbox
WHERE (chain_id, namespace) IN (SELECT chain_id, namespace FROM runs WHERE namespace = ? AND id = ? AND current = 0)
    AND message_id = ? LIMIT 1;

-- unread_kinds --
-- Messages that may keep a run from ending. The kinds are repeated in `finish` and `go_on`.
SELECT message_id, kind FROM inbox
WHERE chain_id = ? AND namespace = ? AND consumed_at IS NULL AND kind IN ('signal', 'update', 'cancel');

-- receiver --
SELECT run_id, chain_id, state, owner, closed_at FROM runs WHERE namespace = ? AND id = ? AND current = 1;

-- open_parent --
SELECT parent.run_id, parent.chain_id, parent.state, parent.owner, parent.closed_at, parent.awaits
FROM runs JOIN runs AS parent ON parent.namespace = runs.namespace AND parent.run_id = runs.parent_run_id
WHERE runs.namespace = ? AND runs.run_id = ? AND parent.closed_at IS NULL;

-- open_children --
SELECT run_id, chain_id, state, owner, closed_at, parent_policy FROM runs
WHERE namespace = ? AND parent_run_id = ? AND closed_at IS NULL;

-- upsert_output --
INSERT INTO outputs (run_id, kind, name, namespace, ord, at, value, error) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (run_id, namespace, kind, name) DO UPDATE SET ord = excluded.ord, at = excluded.at, value = excluded.value,
    error = excluded.error;

-- compensation --
-- The run that undoes the sagas of a run that is timed out.
SELECT value FROM outputs WHERE run_id = ? AND namespace = ? AND kind = 'compensation' AND name = '';

-- published --
SELECT kind, name, ord, at, value, error FROM outputs
WHERE run_id = ? AND namespace = ? AND kind = 'published' ORDER BY name;

-- answer --
SELECT kind, name, ord, at, value, error FROM outputs
WHERE run_id = ? AND kind = 'answer' AND name = ? AND namespace = ?;

-- wake --
-- Only unowned runs become due. Which messages wake which runs is a rule.
UPDATE runs SET wake_at = min(coalesce(wake_at, ?), ?)
WHERE namespace = ? AND run_id = ? AND state IN ('pending', 'waiting');

-- await_less --
-- Some of the runs that it comes after have closed; after the last of them it is due.
UPDATE runs SET awaits = max(awaits - :closed, 0),
    wake_at = iif(awaits <= :closed AND state = 'pending' AND wake_at IS NULL AND owner IS NULL, :now, wake_at)
WHERE namespace = :namespace AND run_id = :run_id AND awaits > 0 RETURNING awaits;

-- unpark --
UPDATE runs SET state = 'waiting', wake_at = ?, deaths = 0, failed_code = '[]', reason = ''
WHERE namespace = ? AND run_id = ? AND state IN ('needs_code', 'poisoned');

-- close_from_outside --
UPDATE runs SET head = head + 1, epoch = epoch + 1, state = ?, closed_at = ?, reason = ?, owner = NULL, wake_at = NULL,
    expires_at = NULL, debounce = NULL, paused_at = NULL, resume_at = NULL
WHERE namespace = ? AND run_id = ? AND head = ? AND closed_at IS NULL;

-- register --
INSERT INTO workers (namespace, worker_id, host, pid, queues, code, registered_at, beat_at, lease_until, process)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (namespace, worker_id) DO UPDATE SET host = excluded.host, pid = excluded.pid, queues = excluded.queues,
    code = excluded.code, registered_at = excluded.registered_at, beat_at = excluded.beat_at,
    lease_until = excluded.lease_until, process = excluded.process;

-- renew --
-- While the row is there, also when the lease was over.
UPDATE workers SET beat_at = ?, lease_until = ? WHERE namespace = ? AND worker_id = ?;

-- beaten_at --
SELECT beat_at FROM workers WHERE namespace = ? AND worker_id = ?;

-- is_live --
SELECT 1 FROM workers WHERE namespace = ? AND worker_id = ? AND lease_until > ?;

-- shorten_leases --
-- After the clock was set back a lease of before is over as long after now as it would have been after its last beat.
UPDATE workers SET beat_at = :now, lease_until = :now + lease_until - beat_at
WHERE namespace = :namespace AND beat_at > :now + 1000000;

-- forget_expired --
DELETE FROM workers WHERE namespace = ? AND lease_until <= ?;

-- forget_worker --
DELETE FROM workers WHERE namespace = ? AND worker_id = ?;

-- workers --
SELECT worker_id, host, pid, queues, code, lease_until, registered_at, beat_at,
    (SELECT count(*) FROM runs r WHERE r.namespace = w.namespace AND r.owner = w.worker_id)
FROM workers w WHERE namespace = ? ORDER BY worker_id;

-- worker_ids --
SELECT worker_id FROM workers WHERE namespace = ?;

-- release_all --
-- A worker leaves in order: its runs are due, and no death is counted.
UPDATE runs SET epoch = epoch + 1, owner = NULL, wake_at = ?, state = iif(head < 0, 'pending', 'waiting')
WHERE namespace = ? AND owner = ?;

-- due_priorities --
-- Priorities below one that have something due, high first: two index look-ups for each that waits in the queue.
WITH RECURSIVE levels (priority) AS (
    SELECT max(priority) FROM runs INDEXED BY runs_due
    WHERE namespace = :namespace AND queue = :queue AND wake_at IS NOT NULL AND flow_key = '' AND priority < :below
    UNION ALL
    SELECT (SELECT max(priority) FROM runs INDEXED BY runs_due
        WHERE namespace = :namespace AND queue = :queue AND wake_at IS NOT NULL AND flow_key = ''
            AND priority < levels.priority)
    FROM levels WHERE levels.priority IS NOT NULL
)
SELECT priority FROM levels WHERE EXISTS (
    SELECT 1 FROM runs INDEXED BY runs_due
    WHERE namespace = :namespace AND queue = :queue AND wake_at IS NOT NULL AND flow_key = ''
        AND runs.priority = levels.priority AND wake_at <= :until)
LIMIT :limit;

-- due_keyed_priorities --
-- The same for runs with flow keys.
WITH RECURSIVE levels (priority) AS (
    SELECT max(priority) FROM runs INDEXED BY runs_keyed
    WHERE namespace = :namespace AND queue = :queue AND wake_at IS NOT NULL AND flow_key <> '' AND priority < :below
    UNION ALL
    SELECT (SELECT max(priority) FROM runs INDEXED BY runs_keyed
        WHERE namespace = :namespace AND queue = :queue AND wake_at IS NOT NULL AND flow_key <> ''
            AND priority < levels.priority)
    FROM levels WHERE levels.priority IS NOT NULL
)
SELECT priority FROM levels WHERE EXISTS (
    SELECT 1 FROM runs INDEXED BY runs_keyed
    WHERE namespace = :namespace AND queue = :queue AND wake_at IS NOT NULL AND flow_key <> ''
        AND runs.priority = levels.priority AND wake_at <= :until)
LIMIT :limit;

-- due --
-- For a queue without flow keys and limits. Without runs that the worker's own code failed to replay, and without
-- suspects.
SELECT * FROM runs
WHERE namespace = :namespace AND queue = :queue AND priority = :priority AND wake_at BETWEEN :floor AND :now
    AND wake_at IS NOT NULL AND flow_key = ''
    AND (deaths < 2 OR head <> claimed_head)
    AND code IN (SELECT key FROM json_each(:code))
    AND (failed_code = '[]' OR NOT EXISTS (
        SELECT 1 FROM json_each(:code) AS mine JOIN json_each(iif(json_valid(runs.failed_code), runs.failed_code, '[]')) AS failed ON failed.value = mine.value
        WHERE mine.key = runs.code))
ORDER BY wake_at LIMIT :limit;

-- due_suspect --
SELECT * FROM runs
WHERE namespace = :namespace AND queue = :queue AND wake_at <= :now AND wake_at IS NOT NULL
    AND deaths >= 2 AND head = claimed_head
    AND code IN (SELECT key FROM json_each(:code))
    AND (failed_code = '[]' OR NOT EXISTS (
        SELECT 1 FROM json_each(:code) AS mine JOIN json_each(iif(json_valid(runs.failed_code), runs.failed_code, '[]')) AS failed ON failed.value = mine.value
        WHERE mine.key = runs.code))
ORDER BY priority DESC, wake_at LIMIT 1;

-- owned_suspect --
SELECT run_id FROM runs WHERE namespace = ? AND owner = ? AND deaths >= 2 AND head = claimed_head LIMIT 1;

-- count_before --
-- How many wait from before a time, up to a number.
SELECT count(*) FROM (
    SELECT 1 FROM runs
    WHERE namespace = ? AND queue = ? AND priority = ? AND wake_at < ? AND wake_at IS NOT NULL AND flow_key = '' LIMIT ?
);

-- due_at --
SELECT wake_at FROM runs
WHERE namespace = :namespace AND queue = :queue AND priority = :priority AND wake_at >= :floor AND wake_at IS NOT NULL
    AND flow_key = ''
    AND (:suspects OR deaths < 2 OR head <> claimed_head)
    AND code IN (SELECT key FROM json_each(:code))
    AND (failed_code = '[]' OR NOT EXISTS (
        SELECT 1 FROM json_each(:code) AS mine JOIN json_each(iif(json_valid(runs.failed_code), runs.failed_code, '[]')) AS failed ON failed.value = mine.value
        WHERE mine.key = runs.code))
ORDER BY wake_at LIMIT 1;

-- hasten --
-- After the clock was set back: runs that were due before and are not now. For begun runs the journal says what is
-- really due; the others must be from before, or their time is still to come.
UPDATE runs SET wake_at = :now WHERE rowid IN (
    SELECT rowid FROM (
        SELECT rowid, wake_at, head, created_at FROM runs
        WHERE namespace = :namespace AND wake_at > :now AND wake_at IS NOT NULL AND flow_key = ''
        UNION ALL
        SELECT rowid, wake_at, head, created_at FROM runs
        WHERE namespace = :namespace AND wake_at > :now AND wake_at IS NOT NULL AND flow_key <> ''
    )
    WHERE iif(head < 0, created_at > :now AND wake_at <= :until, wake_at <= :asleep)
    ORDER BY wake_at LIMIT :limit);

-- own --
-- Progress since the previous claim resets the deaths.
UPDATE runs SET epoch = epoch + 1, state = 'running', owner = ?, wake_at = NULL, reason = '',
    deaths = iif(head = claimed_head, deaths, 0), claimed_head = head
WHERE rowid IN (SELECT value FROM json_each(?));

-- own_anew --
-- The same for what could expire or was debounced.
UPDATE runs SET epoch = epoch + 1, state = 'running', owner = ?, wake_at = NULL, reason = '',
    deaths = iif(head = claimed_head, deaths, 0), claimed_head = head, deadline = ?, expires_at = NULL, debounce = NULL
WHERE rowid = ?;

-- owned --
SELECT run_id, epoch FROM runs WHERE namespace = ? AND owner = ?;

-- owned_unread --
SELECT run_id FROM runs WHERE namespace = ? AND owner = ?
    AND EXISTS (SELECT 1 FROM inbox
        WHERE inbox.chain_id = runs.chain_id AND inbox.namespace = runs.namespace AND consumed_at IS NULL);

-- overdue --
-- Runs over their deadline, with time and crc of their last entry.
SELECT r.run_id, r.head, r.epoch, r.owner, r.id, r.parent_seq, j.at, j.crc
FROM runs AS r LEFT JOIN journal AS j ON j.run_id = r.run_id AND j.namespace = r.namespace AND j.ord = r.head
WHERE r.namespace = ? AND r.deadline <= ? AND r.deadline IS NOT NULL AND r.closed_at IS NULL AND r.paused_at IS NULL
ORDER BY r.deadline LIMIT ?;

-- expired --
-- The same for runs that no worker has claimed in time.
SELECT r.run_id, r.head, r.epoch, r.owner, r.id, r.parent_seq, j.at, j.crc
FROM runs AS r LEFT JOIN journal AS j ON j.run_id = r.run_id AND j.namespace = r.namespace AND j.ord = r.head
WHERE r.namespace = ? AND r.expires_at <= ? AND r.expires_at IS NOT NULL AND r.paused_at IS NULL
ORDER BY r.expires_at LIMIT ?;

-- revive --
-- Out of needs_code with what failed only with other code: up to a number of runs.
UPDATE runs SET state = 'waiting', wake_at = :now, reason = ''
WHERE namespace = :namespace AND run_id IN (
    SELECT run_id FROM runs
    WHERE namespace = :namespace AND code = :code AND state = 'needs_code'
        AND queue IN (SELECT value FROM json_each(:queues))
        AND NOT EXISTS (SELECT 1 FROM json_each(iif(json_valid(runs.failed_code), runs.failed_code, '[]')) WHERE value = :fingerprint)
    LIMIT :limit);

-- owners --
-- Steps through the owners in the index, not through their runs.
WITH RECURSIVE owners (owner) AS (
    SELECT min(owner) FROM runs WHERE namespace = :namespace AND owner IS NOT NULL
    UNION ALL
    SELECT (SELECT min(owner) FROM runs WHERE namespace = :namespace AND owner IS NOT NULL AND owner > owners.owner)
    FROM owners WHERE owners.owner IS NOT NULL
)
SELECT owner FROM owners WHERE owner IS NOT NULL;

-- reap_innocent --
-- Release what a dead owner had beside its suspect: up to a number of runs, whose deaths stay.
UPDATE runs SET epoch = epoch + 1, owner = NULL, wake_at = :now, state = iif(head < 0, 'pending', 'waiting')
WHERE namespace = :namespace AND run_id IN (
    SELECT run_id FROM runs
    WHERE namespace = :namespace AND owner = :owner AND (deaths < 2 OR head <> claimed_head) LIMIT :limit)
RETURNING run_id, epoch, head;

-- reap --
-- Set a dead owner's runs free: up to a number of them, the fence raised.
UPDATE runs SET epoch = epoch + 1, owner = NULL,
    deaths = iif(head = claimed_head, deaths + 1, 1),
    state = CASE WHEN head = claimed_head AND deaths + 1 >= :poison THEN 'poisoned'
        WHEN head < 0 THEN 'pending' ELSE 'waiting' END,
    wake_at = iif(head = claimed_head AND deaths + 1 >= :poison, NULL, :now),
    reason = iif(head = claimed_head AND deaths + 1 >= :poison, :poisoned, reason)
WHERE namespace = :namespace
    AND run_id IN (SELECT run_id FROM runs WHERE namespace = :namespace AND owner = :owner LIMIT :limit)
RETURNING run_id, epoch, head;

-- give_up --
-- Set a run of a worker free as if it had died with it. Each death makes it due later.
UPDATE runs SET epoch = epoch + 1, owner = NULL, reason = :reason,
    deaths = iif(head = claimed_head, deaths + 1, 1),
    state = CASE WHEN head = claimed_head AND deaths + 1 >= :poison THEN 'poisoned'
        WHEN head < 0 THEN 'pending' ELSE 'waiting' END,
    wake_at = CASE WHEN head <> claimed_head THEN :now
        WHEN deaths + 1 < :poison THEN :now + ((1 << deaths) - 1) * 1000000 END
WHERE namespace = :namespace AND run_id = :run_id AND owner = :owner;

-- entries --
SELECT ord, kind, at, crc, body FROM journal
WHERE run_id = ? AND namespace = ? AND ord > ? AND ord <= ? ORDER BY ord LIMIT ?;

-- entries_of_many --
-- Of short journals, whole.
SELECT run_id, ord, kind, at, crc, body FROM journal
WHERE run_id IN (?) AND namespace = ? ORDER BY run_id, ord;

-- unread_of_many --
SELECT chain_id, message_id, kind, name, body, at, number FROM inbox
WHERE consumed_at IS NULL AND chain_id IN (?) AND namespace = ? ORDER BY chain_id, number;

-- have_attempts --
SELECT DISTINCT run_id FROM attempts WHERE run_id IN (?) AND namespace = ?;

-- last_entry --
SELECT ord, kind, at, crc, body FROM journal WHERE run_id = ? AND namespace = ? AND ord = ?;

-- epochs --
SELECT epoch FROM journal WHERE run_id = ? AND namespace = ? ORDER BY ord;

-- unread --
-- Without those of the kinds of IN_PAGES up to a number.
SELECT message_id, kind, name, body, at, number FROM inbox
WHERE chain_id = ? AND namespace = ? AND consumed_at IS NULL
  AND (number > ? OR kind NOT IN ('signal', 'update', 'child'))
ORDER BY number;

-- received --
SELECT message_id, kind, consumed_at IS NOT NULL FROM inbox
WHERE chain_id = ? AND namespace = ? AND message_id > ? ORDER BY message_id LIMIT ?;

-- unread_urgent --
-- Messages after a number that a run must know before it goes on; for a run that has not begun its cancels, too.
SELECT message_id, kind, name, body, at, number FROM inbox
WHERE chain_id = ? AND namespace = ? AND consumed_at IS NULL AND number > ?
  AND (kind NOT IN ('signal', 'update', 'child', 'cancel') OR (kind = 'cancel' AND ?))
ORDER BY number;

-- attempts --
SELECT seq, number, started_at, ended_at, next_at, error, details, outside, tokens FROM attempts
WHERE run_id = ? AND namespace = ? ORDER BY seq, number;

-- attempts_of_call --
SELECT seq, number, started_at, ended_at, next_at, error, details, outside, tokens FROM attempts
WHERE run_id = ? AND seq = ? AND namespace = ? ORDER BY number;

-- list_runs --
-- Newest first by run id, which is of time. Every restriction can be left out with NULL.
SELECT * FROM runs
WHERE namespace = :namespace AND run_id < :before
    AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
    AND (:name IS NULL OR name = :name)
    AND (:kind IS NULL OR kind = :kind)
    AND (:queue IS NULL OR queue = :queue)
    AND (:flow_key IS NULL OR flow_key = :flow_key)
    AND (:parent IS NULL OR parent_run_id = :parent)
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
    AND state <> 'completed' AND state <> 'running' AND state <> 'waiting' AND state <> 'pending'
    AND state <> 'continued'
    AND state IN (SELECT value FROM json_each(:states))
    AND (:name IS NULL OR name = :name)
    AND (:kind IS NULL OR kind = :kind)
    AND (:queue IS NULL OR queue = :queue)
    AND (:flow_key IS NULL OR flow_key = :flow_key)
    AND (:parent IS NULL OR parent_run_id = :parent)
    AND (:id_prefix IS NULL OR substr(id, 1, length(:id_prefix)) = :id_prefix)
    AND (:created_after IS NULL OR created_at > :created_after)
    AND (:created_before IS NULL OR created_at < :created_before)
    AND (:tags IS NULL OR NOT EXISTS (
        SELECT 1 FROM json_each(:tags) AS wanted WHERE NOT EXISTS (
            SELECT 1 FROM json_each(runs.tags) AS tag
            WHERE tag.key = json_extract(wanted.value, '$[0]') AND tag.value = json_extract(wanted.value, '$[1]'))))
ORDER BY run_id DESC LIMIT :limit;

-- list_children --
-- The same, through the index of children.
SELECT * FROM runs INDEXED BY runs_children
WHERE namespace = :namespace AND run_id < :before
    AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
    AND (:name IS NULL OR name = :name)
    AND (:kind IS NULL OR kind = :kind)
    AND (:queue IS NULL OR queue = :queue)
    AND (:flow_key IS NULL OR flow_key = :flow_key)
    AND parent_run_id = :parent
    AND (:id_prefix IS NULL OR substr(id, 1, length(:id_prefix)) = :id_prefix)
    AND (:created_after IS NULL OR created_at > :created_after)
    AND (:created_before IS NULL OR created_at < :created_before)
    AND (:tags IS NULL OR NOT EXISTS (
        SELECT 1 FROM json_each(:tags) AS wanted WHERE NOT EXISTS (
            SELECT 1 FROM json_each(runs.tags) AS tag
            WHERE tag.key = json_extract(wanted.value, '$[0]') AND tag.value = json_extract(wanted.value, '$[1]'))))
ORDER BY run_id DESC LIMIT :limit;

-- list_retrying --
-- The same for runs that retry something. They are owned, or due at some time: ended runs are not looked at.
SELECT * FROM (
    SELECT * FROM runs INDEXED BY runs_owned WHERE namespace = :namespace AND owner IS NOT NULL
    UNION ALL
    SELECT * FROM runs INDEXED BY runs_due WHERE namespace = :namespace AND wake_at IS NOT NULL AND flow_key = ''
    UNION ALL
    SELECT * FROM runs INDEXED BY runs_keyed WHERE namespace = :namespace AND wake_at IS NOT NULL AND flow_key <> ''
) AS busy
WHERE run_id < :before
    AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
    AND (:name IS NULL OR name = :name)
    AND (:kind IS NULL OR kind = :kind)
    AND (:queue IS NULL OR queue = :queue)
    AND (:flow_key IS NULL OR flow_key = :flow_key)
    AND (:parent IS NULL OR parent_run_id = :parent)
    AND (:id_prefix IS NULL OR substr(id, 1, length(:id_prefix)) = :id_prefix)
    AND (:created_after IS NULL OR created_at > :created_after)
    AND (:created_before IS NULL OR created_at < :created_before)
    AND (:tags IS NULL OR NOT EXISTS (
        SELECT 1 FROM json_each(:tags) AS wanted WHERE NOT EXISTS (
            SELECT 1 FROM json_each(busy.tags) AS tag
            WHERE tag.key = json_extract(wanted.value, '$[0]') AND tag.value = json_extract(wanted.value, '$[1]'))))
    AND EXISTS (
        SELECT 1 FROM attempts AS failed
        WHERE failed.run_id = busy.run_id AND failed.error IS NOT NULL AND failed.next_at IS NOT NULL
            AND failed.number >= :retrying
            AND NOT EXISTS (
                SELECT 1 FROM journal AS last
                WHERE last.run_id = busy.run_id AND last.ord = busy.head AND last.at > failed.next_at))
ORDER BY run_id DESC LIMIT :limit;

-- count_retrying --
SELECT state, count(*) FROM (
    SELECT * FROM runs INDEXED BY runs_owned WHERE namespace = :namespace AND owner IS NOT NULL
    UNION ALL
    SELECT * FROM runs INDEXED BY runs_due WHERE namespace = :namespace AND wake_at IS NOT NULL AND flow_key = ''
    UNION ALL
    SELECT * FROM runs INDEXED BY runs_keyed WHERE namespace = :namespace AND wake_at IS NOT NULL AND flow_key <> ''
) AS busy
WHERE true
    AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
    AND (:name IS NULL OR name = :name)
    AND (:kind IS NULL OR kind = :kind)
    AND (:queue IS NULL OR queue = :queue)
    AND (:flow_key IS NULL OR flow_key = :flow_key)
    AND (:parent IS NULL OR parent_run_id = :parent)
    AND (:id_prefix IS NULL OR substr(id, 1, length(:id_prefix)) = :id_prefix)
    AND (:created_after IS NULL OR created_at > :created_after)
    AND (:created_before IS NULL OR created_at < :created_before)
    AND (:tags IS NULL OR NOT EXISTS (
        SELECT 1 FROM json_each(:tags) AS wanted WHERE NOT EXISTS (
            SELECT 1 FROM json_each(busy.tags) AS tag
            WHERE tag.key = json_extract(wanted.value, '$[0]') AND tag.value = json_extract(wanted.value, '$[1]'))))
    AND EXISTS (
        SELECT 1 FROM attempts AS failed
        WHERE failed.run_id = busy.run_id AND failed.error IS NOT NULL AND failed.next_at IS NOT NULL
            AND failed.number >= :retrying
            AND NOT EXISTS (
                SELECT 1 FROM journal AS last
                WHERE last.run_id = busy.run_id AND last.ord = busy.head AND last.at > failed.next_at))
GROUP BY state;

-- count_runs --
SELECT state, count(*) FROM runs
WHERE namespace = :namespace
    AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
    AND (:name IS NULL OR name = :name)
    AND (:kind IS NULL OR kind = :kind)
    AND (:queue IS NULL OR queue = :queue)
    AND (:flow_key IS NULL OR flow_key = :flow_key)
    AND (:parent IS NULL OR parent_run_id = :parent)
    AND (:id_prefix IS NULL OR substr(id, 1, length(:id_prefix)) = :id_prefix)
    AND (:created_after IS NULL OR created_at > :created_after)
    AND (:created_before IS NULL OR created_at < :created_before)
    AND (:tags IS NULL OR NOT EXISTS (
        SELECT 1 FROM json_each(:tags) AS wanted WHERE NOT EXISTS (
            SELECT 1 FROM json_each(runs.tags) AS tag
            WHERE tag.key = json_extract(wanted.value, '$[0]') AND tag.value = json_extract(wanted.value, '$[1]'))))
GROUP BY state;

-- count_children --
-- The same, through the index of children.
SELECT state, count(*) FROM runs INDEXED BY runs_children
WHERE namespace = :namespace
    AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
    AND (:name IS NULL OR name = :name)
    AND (:kind IS NULL OR kind = :kind)
    AND (:queue IS NULL OR queue = :queue)
    AND (:flow_key IS NULL OR flow_key = :flow_key)
    AND parent_run_id = :parent
    AND (:id_prefix IS NULL OR substr(id, 1, length(:id_prefix)) = :id_prefix)
    AND (:created_after IS NULL OR created_at > :created_after)
    AND (:created_before IS NULL OR created_at < :created_before)
    AND (:tags IS NULL OR NOT EXISTS (
        SELECT 1 FROM json_each(:tags) AS wanted WHERE NOT EXISTS (
            SELECT 1 FROM json_each(runs.tags) AS tag
            WHERE tag.key = json_extract(wanted.value, '$[0]') AND tag.value = json_extract(wanted.value, '$[1]'))))
GROUP BY state;

-- namespaces --
-- From one to the next by the index: there are few of them, and many runs.
WITH RECURSIVE known(name) AS (
    SELECT min(namespace) FROM runs
    UNION ALL
    SELECT (SELECT min(namespace) FROM runs WHERE namespace > known.name) FROM known WHERE known.name IS NOT NULL
)
SELECT name FROM known WHERE name IS NOT NULL;

-- ends --
-- The last message and the last entry. Numbers of both only grow.
SELECT (SELECT coalesce(max(number), 0) FROM inbox), (SELECT coalesce(max(rowid), 0) FROM journal);

-- messages_after --
-- Owned runs that have got messages since. From a chain to its run as for a message to a closed one.
SELECT last.run_id
FROM inbox AS sent
CROSS JOIN runs AS begun ON begun.namespace = sent.namespace AND begun.run_id = sent.chain_id
CROSS JOIN runs AS last ON last.namespace = begun.namespace AND last.id = begun.id AND last.current = 1
WHERE sent.number > ? AND sent.namespace = ? AND sent.consumed_at IS NULL AND last.owner IS NOT NULL
ORDER BY sent.number DESC LIMIT ?;

-- entries_after --
-- The newest entries since, and their kinds. The kind is not a condition here: the limit bounds how many rows are read.
SELECT run_id, namespace, kind FROM journal WHERE rowid > ? ORDER BY rowid DESC LIMIT ?;
