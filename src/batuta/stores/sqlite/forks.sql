-- Statements about runs that are made from others.

-- mark_fork --
-- After its insertion as a run that nobody owns.
UPDATE runs SET state = ?, forked_from = ?, forked_at = ? WHERE namespace = ? AND run_id = ?;

-- copy_entries --
-- As they are: their checksums hold in the new place. Nobody of the new run has written them.
INSERT INTO journal (run_id, ord, namespace, kind, at, crc, epoch, body)
SELECT :new, ord, namespace, kind, at, crc, 0, body FROM journal
WHERE run_id = :source AND namespace = :namespace AND ord <= :keep ORDER BY ord;

-- read_for_the_source --
-- What was for that run alone: other kinds than these, which come as JSON.
UPDATE inbox SET consumed_at = ?
WHERE chain_id = ? AND namespace = ? AND consumed_at IS NULL AND kind NOT IN (SELECT value FROM json_each(?));

-- answers --
-- To calls of one run, which it has not read.
SELECT message_id FROM inbox
WHERE chain_id = ? AND namespace = ? AND consumed_at IS NULL AND kind IN ('activity', 'child') AND name = ?;

-- read_again --
UPDATE inbox SET consumed_at = NULL WHERE chain_id = ? AND namespace = ? AND message_id = ?;

-- copy_message --
INSERT INTO inbox (namespace, chain_id, message_id, kind, name, body, at)
SELECT namespace, :new, message_id, kind, name, body, :now FROM inbox
WHERE chain_id = :source AND namespace = :namespace AND message_id = :message_id
ON CONFLICT DO NOTHING;
