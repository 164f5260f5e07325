-- Statements about flows, events and what they begin.

-- insert_flow --
INSERT INTO flows (
    namespace, workflow_id, name, version, description, trigger_type, document, is_active, published_at, revision,
    created_at, updated_at)
VALUES (:namespace, :workflow_id, :name, :version, :description, :trigger_type, :document, :is_active, :published_at,
    :now, :now, :now)
ON CONFLICT DO NOTHING;

-- replace_flow --
UPDATE OR IGNORE flows
SET name = :name, version = :version, description = :description, trigger_type = :trigger_type, document = :document,
    is_active = :is_active, published_at = :published_at, revision = revision + 1, updated_at = :now
WHERE namespace = :namespace AND workflow_id = :workflow_id AND revision = :expected;

-- deactivate_other_flows --
UPDATE flows SET is_active = 0, revision = revision + 1, updated_at = :now
WHERE namespace = :namespace AND name = :name AND is_active = 1 AND workflow_id <> :workflow_id;

-- flow --
SELECT workflow_id, name, version, description, trigger_type, document, is_active, published_at, revision, created_at,
    updated_at
FROM flows WHERE namespace = :namespace AND workflow_id = :workflow_id;

-- flows --
SELECT workflow_id, name, version, description, trigger_type, document, is_active, published_at, revision, created_at,
    updated_at
FROM flows
WHERE namespace = :namespace AND (name > :after_name OR (name = :after_name AND version < :after_version))
    AND (:name IS NULL OR name = :name)
    AND (:trigger_type IS NULL OR trigger_type = :trigger_type)
    AND (:active IS NULL OR is_active = :active)
    AND (:published IS NULL OR (published_at IS NOT NULL) = :published)
ORDER BY name, version DESC LIMIT :limit;

-- changed_flows --
SELECT workflow_id, name, version, description, trigger_type, document, is_active, published_at, revision, created_at,
    updated_at
FROM flows INDEXED BY flows_changed WHERE namespace = ? AND updated_at >= ? ORDER BY updated_at, workflow_id LIMIT ?;

-- put_flow_schedule --
INSERT INTO schedules (
    namespace, id, spec, state, revision, paused, note, next_at, last_at, last_id, created_at, updated_at
) VALUES (:namespace, :id, :spec, :state, :now, :paused, :reason, :next_at, :last_at, :last_id, :now, :now)
ON CONFLICT DO UPDATE SET spec = excluded.spec, state = excluded.state, next_at = excluded.next_at,
    last_at = excluded.last_at, last_id = excluded.last_id, revision = revision + 1, updated_at = excluded.updated_at;

-- active_flows --
SELECT workflow_id, name, version, description, trigger_type, document, is_active, published_at, revision, created_at,
    updated_at
FROM flows INDEXED BY flows_active WHERE namespace = ? AND trigger_type = ? AND is_active = 1 ORDER BY workflow_id;

-- active_flow_ids --
SELECT workflow_id FROM flows INDEXED BY flows_active
WHERE namespace = ? AND trigger_type = ? AND is_active = 1 ORDER BY workflow_id;

-- insert_event --
INSERT INTO events (namespace, event_id, type, source, external_id, payload, replay_of, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- event --
SELECT event_id, type, source, external_id, payload, replay_of, created_at FROM events
WHERE namespace = ? AND event_id = ?;

-- rewrite_event --
UPDATE events SET payload = ? WHERE namespace = ? AND event_id = ?;

-- event_named --
SELECT event_id, type, source, external_id, payload, replay_of, created_at FROM events INDEXED BY events_named
WHERE namespace = ? AND source = ? AND external_id = ?;

-- events --
SELECT event_id, type, source, external_id, payload, replay_of, created_at FROM events
WHERE namespace = :namespace AND event_id < :before
    AND (:type IS NULL OR type = :type)
    AND (:source IS NULL OR source = :source)
    AND (:external_id IS NULL OR external_id = :external_id)
ORDER BY event_id DESC LIMIT :limit;

-- insert_flow_run --
INSERT INTO flow_runs (namespace, workflow_id, event_id, chain_id) VALUES (?, ?, ?, ?);

-- flow_run --
SELECT workflow_id, event_id, chain_id FROM flow_runs WHERE namespace = ? AND workflow_id = ? AND event_id = ?;

-- flow_runs_of_flow --
SELECT workflow_id, event_id, chain_id FROM flow_runs INDEXED BY flow_runs_newest
WHERE namespace = :namespace AND workflow_id = :workflow_id AND chain_id < :before ORDER BY chain_id DESC LIMIT :limit;

-- flow_runs_of_event --
SELECT workflow_id, event_id, chain_id FROM flow_runs WHERE namespace = ? AND event_id = ?;

-- old_events --
-- Events are in order of their time. One whose run is there is passed over.
SELECT event_id FROM events e
WHERE e.namespace = :namespace AND e.created_at <= :until
    AND NOT EXISTS (
        SELECT 1 FROM flow_runs f JOIN runs r ON r.run_id = f.chain_id
        WHERE f.namespace = e.namespace AND f.event_id = e.event_id AND r.namespace = e.namespace)
ORDER BY e.event_id LIMIT :limit;

-- delete_event --
DELETE FROM events WHERE namespace = ? AND event_id = ?;

-- delete_flow_runs --
DELETE FROM flow_runs WHERE namespace = ? AND event_id = ?;

-- open_runs --
SELECT run_id FROM runs INDEXED BY runs_current
WHERE namespace = ? AND current = 1 AND id >= ? AND id < ? AND closed_at IS NULL ORDER BY id LIMIT ?;

-- counted_runs --
-- In the order in which they found room: their time is taken while no other process writes.
SELECT r.run_id FROM flow_keys k INDEXED BY flow_keys_key
CROSS JOIN runs r INDEXED BY runs_current ON r.namespace = k.namespace AND r.id = k.id AND r.current = 1
LEFT JOIN runs f ON f.namespace = k.namespace AND f.run_id = k.run_id
WHERE k.namespace = ? AND k.flow_key = ? AND r.closed_at IS NULL ORDER BY coalesce(f.created_at, 0), k.run_id;

-- forget_flow_keys --
-- Runs that have ended.
DELETE FROM flow_keys WHERE namespace = ? AND flow_key = ? AND NOT EXISTS (
    SELECT 1 FROM runs r INDEXED BY runs_current
    WHERE r.namespace = flow_keys.namespace AND r.id = flow_keys.id AND r.current = 1 AND r.closed_at IS NULL);

-- count_flow_keys --
SELECT count(*) FROM flow_keys INDEXED BY flow_keys_key WHERE namespace = ? AND flow_key = ?;

-- insert_flow_key --
INSERT INTO flow_keys (namespace, run_id, flow_key, id) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING;

-- delete_flow_keys --
DELETE FROM flow_keys WHERE (namespace, run_id) IN (
    SELECT f.namespace, f.chain_id FROM flow_runs f WHERE f.namespace = ? AND f.event_id = ?);
