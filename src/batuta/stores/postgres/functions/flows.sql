-- Flows: versions, and events with the runs that they begin.

-- Insert a version of a flow (`expected` null), or write it over the one of that revision, and with it its schedule: none
-- where `schedule` is null, deleted where `plan` is. Returns whether it is written.
-- Rows of a name are locked first, so that only one version of it is ever active.
CREATE OR REPLACE FUNCTION batuta.put_flow(
    ns text, id uuid, flow_name text, flow_version integer, about text, trigger text, doc text, active boolean,
    published bigint, expected bigint, actor text, verb text, reason text, detail text, act_before text, act_after text,
    schedule text, plan text, plan_state text, due bigint
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
    IF plan IS NULL THEN
        DELETE FROM batuta.schedules s WHERE s.namespace = ns AND s.id = schedule;
    ELSE
        INSERT INTO batuta.schedules AS s (
            namespace, id, spec, state, next_at, revision, created_at, updated_at)
        VALUES (ns, schedule, plan, plan_state, due, moment, moment, moment)
        ON CONFLICT ON CONSTRAINT schedules_pkey DO UPDATE
        SET spec = excluded.spec, state = excluded.state, next_at = excluded.next_at, last_at = NULL, last_id = '',
            revision = s.revision + 1, updated_at = moment;
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

-- Which runs wait in the place of those that debounced starts are for (`insteads`; null: any); their own when none does.
CREATE OR REPLACE FUNCTION batuta.waits_elsewhere(
    ns text, debounces text[], insteads uuid[], run_ids uuid[], OUT asked uuid[], OUT waiting uuid[]
) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM batuta.lock_debounced(ns, debounces);
    SELECT coalesce(array_agg(w.run_id), '{}'), coalesce(array_agg(w.waiting), '{}') INTO asked, waits_elsewhere.waiting
    FROM (
        SELECT d.run_id, d.instead, coalesce((
            SELECT r.run_id FROM batuta.runs r WHERE r.debounce = d.key AND r.namespace || '' = ns LIMIT 1), d.run_id
        ) AS waiting
        FROM unnest(debounces, insteads, run_ids) AS d(key, instead, run_id)
        WHERE d.key IS NOT NULL AND d.instead IS NOT NULL
    ) w
    WHERE w.waiting <> w.instead;
END
$$;

-- The runs of events that are `won` which may begin: those that are not counted, and those that find room among the open
-- counted runs of their key; these are counted from now on. Starts of one key wait for each other. One that joins a run
-- that waits under its debounce key is counted already.
CREATE OR REPLACE FUNCTION batuta.flow_runs_let_in(
    ns text, won uuid[], makers uuid[], run_ids uuid[], counted uuid[], ids text[], keys text[], rooms integer[],
    debounces text[]
) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    admitted uuid[];
    each record;
BEGIN
    admitted := ARRAY(
        SELECT s.run_id FROM unnest(run_ids, makers) AS s(run_id, maker)
        WHERE s.maker IN (SELECT unnest(won)) AND s.run_id NOT IN (SELECT unnest(counted)));
    IF cardinality(counted) = 0 THEN
        RETURN admitted;
    END IF;
    PERFORM batuta.lock_keys(ns, 7042, keys);
    DELETE FROM batuta.flow_keys k
    WHERE k.namespace = ns AND k.flow_key = ANY (keys) AND NOT EXISTS (
        SELECT FROM batuta.runs r WHERE r.run_id = batuta.current_run(ns, k.id) AND r.closed_at IS NULL);
    FOR each IN
        SELECT c.run_id, c.id, c.key, c.room, c.debounce
        FROM unnest(counted, ids, keys, rooms, debounces) WITH ORDINALITY AS c(run_id, id, key, room, debounce, n)
        JOIN unnest(run_ids, makers) AS s(run_id, maker) ON s.run_id = c.run_id
        WHERE s.maker IN (SELECT unnest(won))
        ORDER BY c.n
    LOOP
        IF NOT EXISTS (
            SELECT FROM batuta.runs r WHERE r.debounce = each.debounce AND r.namespace || '' = ns OFFSET 0
        ) THEN
            CONTINUE WHEN (
                SELECT count(*) FROM batuta.flow_keys k
                WHERE k.namespace = ns AND k.flow_key = each.key AND k.run_id <> each.run_id) >= each.room;
            INSERT INTO batuta.flow_keys (namespace, run_id, flow_key, id)
            VALUES (ns, each.run_id, each.key, each.id) ON CONFLICT DO NOTHING;
        END IF;
        admitted := admitted || each.run_id;
    END LOOP;
    RETURN admitted;
END
$$;
