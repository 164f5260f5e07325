-- Statements about schedules. Those that read rows give the columns in the order of schedules.py.

-- insert_schedule --
INSERT INTO schedules (
    namespace, id, spec, state, revision, paused, note, next_at, last_at, last_id, created_at, updated_at
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING;

-- replace_schedule --
UPDATE schedules
SET spec = ?, state = ?, paused = ?, note = ?, next_at = ?, last_at = ?, last_id = ?, updated_at = ?,
    revision = revision + 1
WHERE namespace = ? AND id = ? AND revision = ?;

-- delete_schedule --
DELETE FROM schedules WHERE namespace = ? AND id = ?;

-- fire_schedule --
-- The fence: not written since it was read, and not paused.
UPDATE schedules
SET next_at = ?, state = ?, last_at = coalesce(?, last_at), last_id = iif(? IS NULL, last_id, ?), updated_at = ?,
    revision = revision + 1
WHERE namespace = ? AND id = ? AND revision = ? AND paused = 0;

-- schedule --
SELECT s.id, s.spec, s.state, s.revision, s.paused, s.note, s.next_at, s.last_at, s.last_id, s.created_at, s.updated_at,
    EXISTS (SELECT 1 FROM runs AS r
        WHERE r.namespace = s.namespace AND r.id = s.last_id AND r.current = 1 AND r.closed_at IS NULL)
FROM schedules AS s WHERE s.namespace = ? AND s.id = ?;

-- schedules --
SELECT s.id, s.spec, s.state, s.revision, s.paused, s.note, s.next_at, s.last_at, s.last_id, s.created_at, s.updated_at,
    EXISTS (SELECT 1 FROM runs AS r
        WHERE r.namespace = s.namespace AND r.id = s.last_id AND r.current = 1 AND r.closed_at IS NULL)
FROM schedules AS s WHERE s.namespace = ? AND s.id > ? ORDER BY s.id LIMIT ?;

-- due_schedules --
SELECT s.id, s.spec, s.state, s.revision, s.paused, s.note, s.next_at, s.last_at, s.last_id, s.created_at, s.updated_at,
    EXISTS (SELECT 1 FROM runs AS r
        WHERE r.namespace = s.namespace AND r.id = s.last_id AND r.current = 1 AND r.closed_at IS NULL)
FROM schedules AS s
WHERE s.namespace = ? AND s.paused = 0 AND s.next_at IS NOT NULL AND s.next_at <= ? AND (s.next_at, s.id) > (?, ?)
ORDER BY s.next_at, s.id LIMIT ?;

-- schedule_at --
SELECT min(next_at) FROM schedules WHERE namespace = ? AND paused = 0 AND next_at IS NOT NULL AND next_at > ?;
