-- Closes runs from outside: terminate, time out, fail.

-- The checksum of an entry, as zlib gives it: four bits at a time.
CREATE OR REPLACE FUNCTION batuta.crc32(content bytea, before bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    steps CONSTANT bigint[] := ARRAY[
        0, 498536548, 997073096, 651767980, 1994146192, 1802195444, 1303535960, 1342533948,
        3988292384, 4027552580, 3604390888, 3412177804, 2607071920, 2262029012, 2685067896, 3183342108];
    crc bigint := (before & 4294967295) # 4294967295;
BEGIN
    FOR place IN 0 .. length(content) - 1 LOOP
        crc := crc # get_byte(content, place);
        crc := (crc >> 4) # steps[1 + (crc & 15)];
        crc := (crc >> 4) # steps[1 + (crc & 15)];
    END LOOP;
    RETURN crc # 4294967295;
END
$$;

-- Insert the runs that undo the sagas of runs that were timed out: each is kept ready as an output. Returns whether
-- there is one. One that somebody has damaged is left out.
CREATE OR REPLACE FUNCTION batuta.compensate(ns text, closed uuid[]) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    kept record;
    child json;
    found boolean := false;
BEGIN
    FOR kept IN
        SELECT c.run_id, o.value FROM unnest(closed) AS c(run_id)
        CROSS JOIN LATERAL (
            SELECT o.value FROM batuta.outputs o
            WHERE o.run_id = c.run_id AND o.namespace = ns AND o.kind = 'compensation' AND o.name = '' AND o.value IS NOT NULL LIMIT 1
        ) o
        ORDER BY c.run_id
    LOOP
      BEGIN
        child := kept.value::json;
        PERFORM batuta.insert_runs(
            ns, NULL, ARRAY[(child ->> 'run_id')::uuid], ARRAY[child ->> 'id'], ARRAY[NULL]::bigint[],
            ARRAY[NULL]::uuid[], ARRAY[child ->> 'kind'], ARRAY[child ->> 'name'], ARRAY[child ->> 'code'],
            ARRAY[child ->> 'queue'], ARRAY[(child ->> 'priority')::integer], ARRAY[child ->> 'version'],
            ARRAY[child ->> 'tags'], ARRAY[child ->> 'memo'], ARRAY[0]::bigint[], ARRAY[0]::bigint[],
            ARRAY[(child ->> 'parent_run_id')::uuid], ARRAY[(child ->> 'parent_seq')::integer],
            ARRAY[child ->> 'parent_policy'], ARRAY[child ->> 'flow_key'], ARRAY[0]::bigint[], ARRAY[0], ARRAY[-1],
            ARRAY['pending'], ARRAY[NULL]::bigint[], ARRAY[0]::bigint[], ARRAY[''], ARRAY[NULL]::text[]);
        INSERT INTO batuta.inbox (namespace, chain_id, message_id, kind, name, body, at)
        VALUES (ns, (child ->> 'run_id')::uuid, 'start:' || (child ->> 'run_id'), 'start', child ->> 'name',
                child ->> 'start', batuta.batuta_now());
        found := true;
      EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded THEN
        RAISE WARNING 'run % timed out and is not undone: its compensation was damaged: %', kept.run_id, SQLERRM;
      END;
    END LOOP;
    RETURN found;
END
$$;

-- Close open runs from outside, each with its last entry, and notify parents and children. Without `heads`, at any
-- head: time and checksum of the entry are made here, because a fast run is never where it was seen. With `over_at`,
-- only those that should have ended by then. Only a run that has not begun, and continues no other, can be cancelled
-- this way. closed: the closed runs, and befores: their states until then; disowned: those of them that had an owner;
-- told, due: as `owned` and `due` of post.
CREATE OR REPLACE FUNCTION batuta.close_runs(
    ns text, new_state text, why text, why_children text, run_ids uuid[], heads integer[], kinds text[], ats bigint[],
    crcs bigint[], bodies text[], outcomes text[], over_at bigint,
    OUT closed uuid[], OUT disowned uuid[], OUT told uuid[], OUT due boolean, OUT befores text[]
) LANGUAGE plpgsql AS $$
DECLARE
    tells boolean[] := array_fill(true, ARRAY[cardinality(run_ids)]);
    locked uuid[] := batuta.lock_runs(ns, run_ids || batuta.find_kin(run_ids, tells));
    moment bigint := batuta.batuta_now();
BEGIN
    IF heads IS NULL THEN
        locked := locked || batuta.lock_runs(ns, batuta.find_kin(run_ids, tells));  -- children that were begun meanwhile
        SELECT array_agg(r.head ORDER BY c.n), array_agg(j.at ORDER BY c.n),
               array_agg(batuta.crc32(convert_to(c.body, 'UTF8'), j.crc # j.at # (least(r.head, 2147483646) + 1)) ORDER BY c.n)
        INTO heads, ats, crcs
        FROM unnest(run_ids, bodies) WITH ORDINALITY AS c(run_id, body, n)
        LEFT JOIN LATERAL (SELECT r.head FROM batuta.runs r WHERE r.run_id = c.run_id LIMIT 1) r ON true
        CROSS JOIN LATERAL (
            SELECT greatest(moment, max(j.at)) AS at, coalesce(max(j.crc), 0) AS crc
            FROM batuta.journal j WHERE j.run_id = c.run_id AND j.ord = r.head
        ) j;
    END IF;
    SELECT array_agg(c.run_id), array_agg(c.run_id) FILTER (WHERE r.owner IS NOT NULL), array_agg(c.outcome),
           array_agg(r.state)
    INTO closed, disowned, outcomes, befores
    FROM unnest(run_ids, heads, outcomes) AS c(run_id, head, outcome)
    CROSS JOIN LATERAL (
        SELECT r.owner, r.state FROM batuta.runs r
        WHERE r.run_id = c.run_id AND r.namespace || '' = ns AND r.head = c.head AND r.closed_at IS NULL
          AND (over_at IS NULL OR ((r.deadline <= over_at OR r.expires_at <= over_at) AND r.paused_at IS NULL))
          AND (new_state <> 'cancelled' OR (
              (r.kind = 'job' OR r.chain_id = r.run_id) AND r.owner IS NULL
              AND NOT (r.signalled AND batuta.has_signal(r.chain_id)))) LIMIT 1
    ) r;
    due := false;
    IF closed IS NULL THEN
        RETURN;
    END IF;
    SELECT k.owned, k.due INTO told, due
    FROM batuta.tell_kin(ns, why_children, closed, outcomes, tells, closed, locked) k;

    UPDATE batuta.runs r
    SET head = least(r.head, 2147483646) + 1, epoch = least(r.epoch, 2147483646) + 1, state = new_state, reason = why,
        owner = NULL, wake_at = NULL, debounce = NULL, paused_at = NULL, resume_at = NULL, closed_at = batuta.batuta_now()
    FROM unnest(closed) AS c(run_id)
    WHERE r.run_id = c.run_id;

    INSERT INTO batuta.journal (namespace, run_id, ord, epoch, kind, at, crc, body)
    SELECT ns, e.run_id, r.head, r.epoch, e.kind, e.at, e.crc, e.body
    FROM unnest(run_ids, kinds, ats, crcs, bodies) AS e(run_id, kind, at, crc, body)
    CROSS JOIN LATERAL (SELECT r.head, r.epoch FROM batuta.runs r WHERE r.run_id = e.run_id LIMIT 1) r
    WHERE (e.run_id IN (SELECT unnest(closed))) IS TRUE;

    due := coalesce(batuta.await_fewer(ns, (
        SELECT array_agg(r.parent_run_id)
        FROM unnest(closed) AS c(run_id)
        CROSS JOIN LATERAL (SELECT r.parent_run_id FROM batuta.runs r WHERE r.run_id = c.run_id LIMIT 1) r
        WHERE r.parent_run_id IS NOT NULL)), false) OR coalesce(due, false);
    IF new_state = 'timed_out' THEN
        due := batuta.compensate(ns, closed) OR due;
    END IF;
END
$$;
