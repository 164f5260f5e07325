-- Statements about deleting and pruning.

-- set_retention --
INSERT INTO retention (namespace, name, state, keep) VALUES (?, ?, ?, ?)
ON CONFLICT (namespace, name, state) DO UPDATE SET keep = excluded.keep WHERE keep IS NOT excluded.keep;

-- drop_retention --
DELETE FROM retention WHERE namespace = ? AND name = ? AND state = ?;

-- keep_of --
SELECT keep FROM retention WHERE namespace = ? AND name = ? AND state = ?;

-- retention --
SELECT name, state, keep FROM retention WHERE namespace = ? ORDER BY name, state;

-- oldest_runs --
SELECT run_id, id, name, state, closed_at, head, parent_run_id, chain_id, current, created_at FROM runs
WHERE namespace = ? AND run_id > ? ORDER BY run_id LIMIT ?;

-- chain_of_run --
SELECT id, chain_id FROM runs WHERE namespace = ? AND run_id = ?;

-- chain_runs --
-- All runs of a chain: those that others follow, and the last, which may be the current one of the id.
SELECT run_id, id, name, state, closed_at, head, parent_run_id FROM runs
WHERE namespace = :namespace AND id = :id AND current = 1 AND chain_id = :chain_id
UNION ALL
SELECT run_id, id, name, state, closed_at, head, parent_run_id FROM runs
WHERE namespace = :namespace AND id = :id AND current = 0 AND chain_id = :chain_id;

-- goes_on --
-- Whether the last run of a chain, which is the current one of its id then, is open.
SELECT 1 FROM runs WHERE namespace = ? AND id = ? AND current = 1 AND chain_id = ? AND closed_at IS NULL;

-- is_open --
SELECT 1 FROM runs WHERE namespace = ? AND run_id = ? AND closed_at IS NULL;

-- any_child --
SELECT 1 FROM runs WHERE namespace = ? AND parent_run_id = ? LIMIT 1;

-- child_chains --
SELECT id, chain_id FROM runs WHERE namespace = ? AND parent_run_id = ?;

-- delete_journal --
DELETE FROM journal WHERE namespace = ? AND run_id = ?;

-- delete_inbox --
DELETE FROM inbox WHERE namespace = ? AND chain_id = ?;

-- delete_outputs --
DELETE FROM outputs WHERE namespace = ? AND run_id = ?;

-- delete_attempts --
DELETE FROM attempts WHERE namespace = ? AND run_id = ?;

-- delete_run --
DELETE FROM runs WHERE namespace = ? AND run_id = ?;

-- leave_for_later --
INSERT OR IGNORE INTO leftovers (namespace, run_id) VALUES (?, ?);

-- first_leftover --
SELECT namespace, run_id FROM leftovers WHERE namespace = ? AND run_id >= x'' ORDER BY run_id LIMIT 1;

-- delete_some_entries --
DELETE FROM journal WHERE rowid IN (SELECT rowid FROM journal WHERE namespace = ? AND run_id = ? LIMIT ?);

-- delete_some_messages --
DELETE FROM inbox WHERE number IN (SELECT number FROM inbox WHERE namespace = ? AND chain_id = ? LIMIT ?);

-- delete_leftover --
DELETE FROM leftovers WHERE namespace = ? AND run_id = ?;
