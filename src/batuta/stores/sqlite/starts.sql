-- Statements about starts: debounced runs, and runs that wait for a batch.

-- debounced --
SELECT * FROM runs WHERE namespace = ? AND debounce = ?;

-- replace_debounced --
UPDATE runs SET tags = ?, memo = ?, priority = ?, expires_at = ?, wake_at = ?, deadline = ?
WHERE namespace = ? AND run_id = ?;

-- replace_start --
UPDATE inbox SET body = ?, at = ? WHERE chain_id = ? AND namespace = ? AND message_id = ?;

-- await_members --
-- What comes after a batch waits for those of it that are new.
UPDATE runs SET awaits = (SELECT count(*) FROM runs AS r INDEXED BY runs_children
        WHERE r.namespace = :namespace AND r.parent_run_id = :run_id AND r.parent_run_id IS NOT NULL)
WHERE namespace = :namespace AND run_id = :run_id;

-- hold_back --
UPDATE runs SET wake_at = NULL WHERE namespace = ? AND run_id = ? AND awaits > 0;
