-- Dead letters. `SELECT *` of them is decoded by position in letters.py.

-- insert_letter --
INSERT INTO dead_letters (
    run_id, namespace, id, kind, name, queue, flow_key, state, at, reason, error, message, fingerprint, activity, seq,
    attempts, keep, trace
) VALUES (?, ?, ?, ?, ?, ?, ?, 'open', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- count_letter --
-- More of a kind.
INSERT INTO letter_groups (namespace, fingerprint, state, name, reason, error, activity, count, first_at, last_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (namespace, fingerprint, state, name, reason) DO UPDATE
SET count = count + excluded.count, first_at = min(first_at, excluded.first_at),
    last_at = max(last_at, excluded.last_at);

-- resolve_letter --
UPDATE dead_letters SET state = ?, resolved_at = ?, note = ?, successor = ?
WHERE namespace = ? AND run_id = ? AND state = 'open'
RETURNING fingerprint, 'open', name, reason, error, activity, at;

-- forget_letter --
DELETE FROM dead_letters WHERE namespace = ? AND run_id = ?
RETURNING fingerprint, state, name, reason, error, activity, at;

-- fewer_letters --
UPDATE letter_groups SET count = count - ?
WHERE namespace = ? AND fingerprint = ? AND state = ? AND name = ? AND reason = ?;

-- no_letters --
DELETE FROM letter_groups
WHERE namespace = ? AND fingerprint = ? AND state = ? AND name = ? AND reason = ? AND count = 0;

-- group_times --
-- Since when, and until when, there are letters of a kind of which some have gone.
UPDATE letter_groups SET (first_at, last_at) = (
    (SELECT l.at FROM dead_letters AS l
    WHERE l.namespace = letter_groups.namespace AND l.fingerprint = letter_groups.fingerprint
        AND l.state = letter_groups.state AND l.name = letter_groups.name AND l.reason = letter_groups.reason
    ORDER BY l.at LIMIT 1),
    (SELECT l.at FROM dead_letters AS l
    WHERE l.namespace = letter_groups.namespace AND l.fingerprint = letter_groups.fingerprint
        AND l.state = letter_groups.state AND l.name = letter_groups.name AND l.reason = letter_groups.reason
    ORDER BY l.at DESC LIMIT 1))
WHERE namespace = ? AND fingerprint = ? AND state = ? AND name = ? AND reason = ?;

-- letter --
SELECT * FROM dead_letters WHERE namespace = ? AND run_id = ?;

-- list_letters --
-- Newest first, of one state, after a cursor. What does not restrict is null.
SELECT * FROM dead_letters INDEXED BY dead_letters_newest
WHERE namespace = :namespace AND state = :state AND (at, run_id) < (:before_at, :before_run)
    AND (:reason IS NULL OR reason = :reason)
    AND (:name IS NULL OR name = :name)
    AND (:kind IS NULL OR kind = :kind)
    AND (:queue IS NULL OR queue = :queue)
    AND (:flow_key IS NULL OR flow_key = :flow_key)
    AND (:error IS NULL OR error = :error)
    AND (:activity IS NULL OR activity = :activity)
    AND (:id_prefix IS NULL OR substr(id, 1, length(:id_prefix)) = :id_prefix)
    AND (:after IS NULL OR at > :after)
ORDER BY at DESC, run_id DESC LIMIT :limit;

-- list_alike --
-- The same for one fingerprint.
SELECT * FROM dead_letters INDEXED BY dead_letters_alike
WHERE namespace = :namespace AND fingerprint = :fingerprint AND state = :state
    AND (at, run_id) < (:before_at, :before_run)
    AND (:reason IS NULL OR reason = :reason)
    AND (:name IS NULL OR name = :name)
    AND (:kind IS NULL OR kind = :kind)
    AND (:queue IS NULL OR queue = :queue)
    AND (:flow_key IS NULL OR flow_key = :flow_key)
    AND (:error IS NULL OR error = :error)
    AND (:activity IS NULL OR activity = :activity)
    AND (:id_prefix IS NULL OR substr(id, 1, length(:id_prefix)) = :id_prefix)
    AND (:after IS NULL OR at > :after)
ORDER BY at DESC, run_id DESC LIMIT :limit;

-- newest_groups --
-- Of one state, those whose newest letter is of this state: the others are found with that state.
SELECT g.last_at, g.fingerprint FROM letter_groups AS g INDEXED BY letter_groups_newest
WHERE g.namespace = :namespace AND g.state = :state AND (g.last_at, g.fingerprint) < (:before_at, :before_name)
    AND (:fingerprint IS NULL OR g.fingerprint = :fingerprint)
    AND (:reason IS NULL OR g.reason = :reason)
    AND (:name IS NULL OR g.name = :name)
    AND (:error IS NULL OR g.error = :error)
    AND (:activity IS NULL OR g.activity = :activity)
    AND NOT EXISTS (
        SELECT 1 FROM letter_groups AS o
        WHERE o.namespace = g.namespace AND o.fingerprint = g.fingerprint
            AND o.state IN (SELECT value FROM json_each(:states))
            AND (:reason IS NULL OR o.reason = :reason)
            AND (:name IS NULL OR o.name = :name)
            AND (+o.last_at, o.state, o.name, o.reason) > (g.last_at, g.state, g.name, g.reason))
ORDER BY g.last_at DESC, g.fingerprint DESC LIMIT :limit;

-- group_sizes --
SELECT sum(count), min(first_at), max(last_at) FROM letter_groups
WHERE namespace = :namespace AND fingerprint = :fingerprint AND state IN (SELECT value FROM json_each(:states))
    AND (:reason IS NULL OR reason = :reason)
    AND (:name IS NULL OR name = :name);

-- group_letters --
-- Groups by filters that nothing counts by: all letters are looked through.
SELECT fingerprint, count(*), min(at), max(at) FROM dead_letters
WHERE namespace = :namespace AND state IN (SELECT value FROM json_each(:states))
    AND (:fingerprint IS NULL OR fingerprint = :fingerprint)
    AND (:reason IS NULL OR reason = :reason)
    AND (:name IS NULL OR name = :name)
    AND (:kind IS NULL OR kind = :kind)
    AND (:queue IS NULL OR queue = :queue)
    AND (:flow_key IS NULL OR flow_key = :flow_key)
    AND (:error IS NULL OR error = :error)
    AND (:activity IS NULL OR activity = :activity)
    AND (:id_prefix IS NULL OR substr(id, 1, length(:id_prefix)) = :id_prefix)
    AND (:after IS NULL OR at > :after)
    AND (:before IS NULL OR at < :before)
GROUP BY fingerprint HAVING (max(at), fingerprint) < (:before_at, :before_name)
ORDER BY max(at) DESC, fingerprint DESC LIMIT :limit;

-- count_letters --
SELECT count(*) FROM dead_letters
WHERE namespace = :namespace AND state IN (SELECT value FROM json_each(:states))
    AND (:fingerprint IS NULL OR fingerprint = :fingerprint)
    AND (:reason IS NULL OR reason = :reason)
    AND (:name IS NULL OR name = :name)
    AND (:kind IS NULL OR kind = :kind)
    AND (:queue IS NULL OR queue = :queue)
    AND (:flow_key IS NULL OR flow_key = :flow_key)
    AND (:error IS NULL OR error = :error)
    AND (:activity IS NULL OR activity = :activity)
    AND (:id_prefix IS NULL OR substr(id, 1, length(:id_prefix)) = :id_prefix)
    AND (:after IS NULL OR at > :after)
    AND (:before IS NULL OR at < :before);

-- sum_letters --
-- The same by filters that the groups are counted by.
SELECT coalesce(sum(count), 0) FROM letter_groups
WHERE namespace = :namespace AND state IN (SELECT value FROM json_each(:states))
    AND (:fingerprint IS NULL OR fingerprint = :fingerprint)
    AND (:reason IS NULL OR reason = :reason)
    AND (:name IS NULL OR name = :name)
    AND (:error IS NULL OR error = :error)
    AND (:activity IS NULL OR activity = :activity);
