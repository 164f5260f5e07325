-- Flows: versions, and events with the runs that they begin.

-- Insert a version of a flow (`expected` null), or write it over the one of that revision. Returns whether it is written.
-- Rows of a name are locked first, so that only one version of it is ever active.
CREATE OR REPLACE FUNCTION batuta.put_flow(
    ns text, id uuid, flow_name text, flow_version integer, about text, trigger text, doc text, active boolean,
    published bigint, expected bigint, actor text, verb text, reason text, detail text, act_before text, act_after text
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    moment bigint := batuta.batuta_now();
BEGIN
    PERFORM FROM batuta.flows f WHERE f.namespace = ns AND f.name = flow_name ORDER BY f.workflow_id FOR UPDATE;
    IF expected IS NULL THEN
        INSERT INTO batuta.flows (
            namespace, workflow_id, name, version, description, trigger_type, document, is_active, published_at,
            revision, created_at, updated_at)
        VALUES (ns, id, flow_name, flow_version, about, trigger, doc, active, published, moment, moment, moment)
        ON CONFLICT DO NOTHING;
    ELSE
        UPDATE batuta.flows f
        SET name = flow_name, version = flow_version, description = about, trigger_type = trigger, document = doc,
            is_active = active, published_at = published, revision = f.revision + 1, updated_at = moment
        WHERE f.namespace = ns AND f.workflow_id = id AND f.revision = expected;
    END IF;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF active THEN
        UPDATE batuta.flows f SET is_active = false, revision = f.revision + 1, updated_at = moment
        WHERE f.namespace = ns AND f.name = flow_name AND f.is_active AND f.workflow_id <> id;
    END IF;
    PERFORM batuta.record_acts(ns, actor, verb, reason, detail, act_before, act_after,
                               ARRAY[flow_name || '@' || flow_version], '{}', '{}', '{}', moment);
    RETURN true;
EXCEPTION
    WHEN unique_violation THEN  -- renamed to one that is there
        RETURN false;
END
$$;

COMMENT ON FUNCTION batuta.put_flow IS 'Writes a version of a flow, and lets no other version of its name be active with it';

-- The active flows that events of a type start, by id, as text.
CREATE OR REPLACE FUNCTION batuta.flow_ids_active(ns text, event_type text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT coalesce(string_agg(f.workflow_id::text, ',' ORDER BY f.workflow_id), '')
    FROM batuta.flows f WHERE f.namespace = ns AND f.trigger_type = event_type AND f.is_active
$$;

-- Insert events, but for those that are there already and those whose active flows are not `actives` (texts of ids; null:
-- not compared). Returns the ids of those that are new, and their time.
CREATE OR REPLACE FUNCTION batuta.insert_events(
    ns text, event_ids uuid[], types text[], sources text[], external_ids text[], payloads text[], originals uuid[],
    actives text[], OUT won uuid[], OUT moment bigint
) LANGUAGE plpgsql AS $$
BEGIN
    moment := batuta.batuta_now();
    WITH now_active AS MATERIALIZED (
        SELECT t.type, batuta.flow_ids_active(ns, t.type) AS ids
        FROM (SELECT DISTINCT unnest(types) AS type) t
    ), written AS (
        INSERT INTO batuta.events (
            namespace, event_id, type, source, external_id, payload, replay_of, created_at)
        SELECT ns, e.event_id, e.type, e.source, e.external_id, e.payload, e.replay_of, moment
        FROM unnest(event_ids, types, sources, external_ids, payloads, originals, actives)
             AS e(event_id, type, source, external_id, payload, replay_of, active)
        JOIN now_active a ON a.type = e.type
        WHERE e.active IS NULL OR e.active = a.ids
        ORDER BY e.source, e.external_id, e.event_id
        ON CONFLICT DO NOTHING
        RETURNING event_id
    )
    SELECT coalesce(array_agg(w.event_id), '{}') INTO won FROM written w;
END
$$;

COMMENT ON FUNCTION batuta.insert_events IS 'The fence of events: the flows that they start are still the same';

-- Note that an event begins a run of a flow. Returns the event if it is the first of that flow, else nothing.
CREATE OR REPLACE FUNCTION batuta.note_flow_run(ns text, event uuid, workflow uuid, run uuid) RETURNS uuid[]
LANGUAGE plpgsql AS $$
DECLARE
    won uuid[];
BEGIN
    WITH written AS (
        INSERT INTO batuta.flow_runs (namespace, workflow_id, event_id, chain_id)
        SELECT ns, workflow, event, run
        WHERE EXISTS (SELECT FROM batuta.events e WHERE e.namespace = ns AND e.event_id = event)
        ON CONFLICT DO NOTHING
        RETURNING event_id
    )
    SELECT array_agg(w.event_id) INTO won FROM written w;
    RETURN coalesce(won, '{}');
END
$$;
