-- Statements about runs that are paused.

-- unread_pauses --
-- PAUSE messages that wait for a run.
SELECT message_id FROM inbox WHERE chain_id = ? AND namespace = ? AND consumed_at IS NULL AND kind = 'pause';

-- unread_all_kinds --
SELECT kind FROM inbox WHERE chain_id = ? AND namespace = ? AND consumed_at IS NULL;

-- count_pauses --
-- All that there ever were. By the whole of their ids: what comes after `:` is `;`.
SELECT count(*) FROM inbox
WHERE chain_id = ? AND namespace = ? AND message_id >= 'pause:' AND message_id < 'pause;';

-- read_pauses --
UPDATE inbox SET consumed_at = ? WHERE chain_id = ? AND namespace = ? AND consumed_at IS NULL AND kind = 'pause';

-- pause_run --
-- One that nobody owns. One that is parked is tried again when it goes on.
UPDATE runs SET resume_at = iif(state IN ('needs_code', 'poisoned'), :now, wake_at),
    deaths = iif(state IN ('needs_code', 'poisoned'), 0, deaths),
    failed_code = iif(state IN ('needs_code', 'poisoned'), '[]', failed_code),
    state = 'paused', reason = :reason, paused_at = :now, wake_at = NULL, debounce = NULL
WHERE namespace = :namespace AND run_id = :run_id AND owner IS NULL;

-- resume_run --
UPDATE runs SET state = iif(head < 0, 'pending', 'waiting'), reason = '', wake_at = :wake_at, deadline = :deadline,
    expires_at = :expires_at, paused_at = NULL, resume_at = NULL
WHERE namespace = :namespace AND run_id = :run_id AND state = 'paused';

-- note_pause --
-- Activities do not count it. Attempts of command 0 are none.
INSERT INTO attempts (run_id, seq, number, namespace, started_at, ended_at)
SELECT :run_id, 0, 1 + count(*), :namespace, :paused_at, :now FROM attempts
WHERE run_id = :run_id AND namespace = :namespace AND seq = 0 AND number > 0;

-- note_chain_pauses --
-- How long the runs before this one in its chain were paused.
INSERT OR IGNORE INTO attempts (run_id, seq, number, namespace, started_at, ended_at)
VALUES (:run_id, 0, 0, :namespace, :paused_at, :now);

-- time_paused --
SELECT coalesce(sum(ended_at - started_at), 0) FROM attempts WHERE run_id = ? AND namespace = ? AND seq = 0;

-- put_off_answers --
-- Of activities whose answers come from outside.
UPDATE attempts SET next_at = next_at + :now - :paused_at
WHERE run_id = :run_id AND namespace = :namespace AND outside = 1 AND ended_at IS NULL AND next_at IS NOT NULL;

-- hold --
-- The owner lets go of a run that is to be paused, unless it was resumed meanwhile.
UPDATE runs SET head = ?, state = 'paused', owner = NULL, wake_at = NULL, resume_at = ?, reason = ?, paused_at = ?
WHERE namespace = ? AND epoch = ? AND head = ? AND +owner = ? AND closed_at IS NULL AND run_id = ? AND EXISTS (
    SELECT 1 FROM inbox WHERE inbox.chain_id = runs.chain_id AND inbox.namespace = runs.namespace
        AND consumed_at IS NULL AND inbox.kind = 'pause')
RETURNING chain_id;

-- last_word --
-- Time and crc of an entry.
SELECT at, crc FROM journal WHERE run_id = ? AND namespace = ? AND ord = ?;
