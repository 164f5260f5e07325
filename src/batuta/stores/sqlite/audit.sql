-- Statements about the audit log.

-- audit_head --
SELECT number, hash, salt FROM audit_heads WHERE namespace = ?;

-- insert_audit --
INSERT INTO audit (namespace, number, at, actor, verb, target, run_id, reason, detail, before, after, hash, salt)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- move_audit_head --
UPDATE audit_heads SET number = ?, hash = ?, salt = ? WHERE namespace = ?;

-- insert_audit_head --
INSERT INTO audit_heads (namespace, number, hash) VALUES (?, 0, '');

-- audit_number_taken --
-- By a row that was put in by hand: nothing else is behind the end.
SELECT 1 FROM audit WHERE namespace = ? AND number = ?;

-- audit --
SELECT number, at, actor, verb, target, run_id, reason, detail, before, after, hash, salt FROM audit
WHERE namespace = ? AND number > ? ORDER BY number LIMIT ?;

-- acts --
-- Newest first. What does not restrict is null.
SELECT number, at, actor, verb, target, run_id, reason, detail, before, after, hash, salt FROM audit NOT INDEXED
WHERE namespace = :namespace AND number < :before
  AND (:actor IS NULL OR actor = :actor)
  AND (:verb IS NULL OR verb = :verb)
  AND (:since IS NULL OR at >= :since)
  AND (:until IS NULL OR at < :until)
ORDER BY number DESC LIMIT :limit;

-- acts_on --
-- The same for one target.
SELECT number, at, actor, verb, target, run_id, reason, detail, before, after, hash, salt FROM audit
WHERE namespace = :namespace AND target = :target AND number < :before
  AND (:actor IS NULL OR actor = :actor)
  AND (:verb IS NULL OR verb = :verb)
  AND (:since IS NULL OR at >= :since)
  AND (:until IS NULL OR at < :until)
ORDER BY number DESC LIMIT :limit;
