-- Starts runs and sends messages inside a transaction of the caller's own, from any driver: arguments are plain texts.

-- Names this database and no other, also when one is a copy of the other.
CREATE OR REPLACE FUNCTION batuta.place() RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    cluster text := 'unnamed';
BEGIN
    IF has_function_privilege('pg_control_system()', 'execute') THEN
        cluster := (SELECT c.system_identifier::text FROM pg_control_system() c);
    END IF;
    RETURN cluster || '/' || (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
END
$$;

-- Start unowned runs, and notify the workers if the transaction commits. `home` is the place that the caller means; the
-- columns are those of start_together. Returns JSON: the result of start_together for new runs, and for the others, and
-- `after_id`, the existing rows; nothing when this is another place. The session is the caller's, so the function
-- brings the settings that our statements need.
CREATE OR REPLACE FUNCTION batuta.enqueue(
    ns text, home text, channel text, news text, after_id uuid,
    debounces text[], debounce_limits bigint[], insteads uuid[], run_ids uuid[], ids text[], renewals bigint[], chain_ids uuid[], kinds
    text[], names text[], codes text[], queues text[], priorities integer[], versions text[], tag_sets text[], memos
    text[], timeouts bigint[], execution_timeouts bigint[], parents uuid[], parent_seqs integer[], policies text[],
    flow_keys text[], expiries bigint[], epochs integer[], heads integer[], states text[], wakes bigint[], delays
    bigint[], reasons text[], fingerprints text[], message_ids text[], message_kinds text[], message_names text[],
    bodies text[]
) RETURNS text LANGUAGE plpgsql
SET plan_cache_mode = 'force_generic_plan' SET jit = off SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    made json;
    fresh uuid[];
    replacing uuid[];
    replaced uuid[];
BEGIN
    IF batuta.place() <> home THEN
        RETURN NULL;
    END IF;
    SELECT json_agg(json_build_array(s.started, s.started_at, s.ends_at, s.due_at)) FILTER (WHERE s.asked = s.started),
           array_agg(s.started) FILTER (WHERE s.asked = s.started),
           array_agg(s.asked) FILTER (WHERE s.asked <> s.started),
           array_agg(s.started) FILTER (WHERE s.asked <> s.started)
    INTO made, fresh, replacing, replaced
    FROM batuta.start_together(
        ns, after_id, debounces, debounce_limits, insteads, run_ids, ids, renewals, chain_ids, kinds, names, codes, queues,
        priorities,
        versions, tag_sets, memos, timeouts, execution_timeouts, parents, parent_seqs, policies, flow_keys,
        expiries, epochs, heads, states, wakes, delays, reasons, fingerprints, message_ids, message_kinds,
        message_names, bodies) s;
    IF cardinality(fresh || replaced) > 0 THEN
        PERFORM pg_notify(channel, news);
    END IF;
    -- With its own snapshot: it must see what was just written.
    RETURN json_build_object('made', coalesce(made, '[]'), 'others', (
        SELECT coalesce(json_agg(json_build_object('asked', a.run_id, 'run', row_to_json(r))), '[]')
        FROM unnest(run_ids, ids) AS a(run_id, id)
        CROSS JOIN LATERAL (
            SELECT coalesce(replaced[array_position(replacing, a.run_id)], a.run_id) AS run_id
        ) m
        CROSS JOIN LATERAL (
            SELECT k.* FROM batuta.runs k WHERE k.run_id = coalesce(
                (SELECT o.run_id FROM batuta.runs o WHERE o.run_id = m.run_id),
                batuta.current_run(ns, a.id))
        ) r
        -- All of them when no run awaits them after all.
        WHERE (a.run_id IN (SELECT unnest(fresh))) IS NOT TRUE OR a.run_id = after_id
           OR (after_id = ANY (fresh)) IS FALSE))::text;
END
$$;

-- Send a message to the chain of a run, and tell the workers when, and if, the transaction commits. `home` and the
-- settings: as of enqueue. Gives JSON of what send_message says, nothing when this is another place.
CREATE OR REPLACE FUNCTION batuta.send_within(
    ns text, home text, channel text, news text, target uuid, message text, message_kind text, message_name text,
    content text
) RETURNS text LANGUAGE plpgsql
SET plan_cache_mode = 'force_generic_plan' SET jit = off SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    sent record;
BEGIN
    IF batuta.place() <> home THEN
        RETURN NULL;
    END IF;
    SELECT * INTO sent FROM batuta.send_message(ns, target, message, message_kind, message_name, content);
    IF sent.outcome = 'sent' THEN
        PERFORM pg_notify(channel, (news::jsonb || jsonb_build_object('messages', jsonb_build_array(sent.receiver)))::text);
    END IF;
    RETURN json_build_array(sent.outcome, sent.receiver_state)::text;
END
$$;
