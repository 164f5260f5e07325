-- Statements about payloads that are written otherwise.

-- inbox --
SELECT message_id, kind, name, body, at, number FROM inbox
WHERE chain_id = ? AND message_id > ? AND namespace = ? ORDER BY message_id LIMIT ?;

-- answers_of --
SELECT kind, name, ord, at, value, error FROM outputs
WHERE run_id = ? AND kind = 'answer' AND name > ? AND namespace = ? ORDER BY name LIMIT ?;

-- closed_chain --
SELECT chain_id FROM runs WHERE namespace = ? AND run_id = ? AND closed_at IS NOT NULL;

-- rewrite_entry --
UPDATE journal SET body = ?, crc = ? WHERE run_id = ? AND ord = ? AND namespace = ?;

-- rewrite_attempt --
UPDATE attempts SET error = ?, details = ?, tokens = ?
WHERE run_id = ? AND seq = ? AND number = ? AND namespace = ?;

-- rewrite_output --
UPDATE outputs SET value = ?, error = ? WHERE run_id = ? AND kind = ? AND name = ? AND namespace = ?;

-- rewrite_message --
UPDATE inbox SET body = ? WHERE chain_id = ? AND message_id = ? AND namespace = ?;

-- rewrite_run --
UPDATE runs SET memo = coalesce(?, memo), reason = coalesce(?, reason) WHERE namespace = ? AND run_id = ?;

-- rewrite_letter --
UPDATE dead_letters SET message = ? WHERE namespace = ? AND run_id = ?;
