-- Forks: a new run with a copy of another's journal up to a point.

-- Close an open run that another one replaces: its children are notified, its parent is not. Its row is locked, and so
-- are its parents and children. Returns the owned runs that got a message.
CREATE OR REPLACE FUNCTION batuta.close_source(
    ns text, why_children text, source batuta.runs, entry json, locked uuid[], OUT told uuid[]
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT k.owned INTO told FROM batuta.tell_kin(
        ns, why_children, ARRAY[source.run_id], ARRAY[''], ARRAY[true], ARRAY[source.run_id], locked) k;
    UPDATE batuta.runs r
    SET head = r.head + 1, epoch = r.epoch + 1, state = 'terminated', reason = entry ->> 'reason', owner = NULL,
        wake_at = NULL, debounce = NULL, paused_at = NULL, resume_at = NULL, closed_at = batuta.batuta_now()
    WHERE r.run_id = source.run_id;
    INSERT INTO batuta.journal (namespace, run_id, ord, epoch, kind, at, crc, body)
    VALUES (ns, source.run_id, source.head + 1, source.epoch + 1, entry ->> 'kind', (entry ->> 'at')::bigint,
            (entry ->> 'crc')::bigint, entry ->> 'body');
END
$$;

-- Insert the run of a fork, with the source's entries up to a point, its own entries, attempts, and published values.
-- False when its id is taken.
CREATE OR REPLACE FUNCTION batuta.insert_fork(ns text, source batuta.runs, f json) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    moment bigint := batuta.batuta_now();
    new_id uuid := (f ->> 'run_id')::uuid;
    own_id text := f ->> 'id';
    first_run uuid := CASE WHEN own_id = '' THEN source.chain_id ELSE new_id END;
    begun_at bigint := coalesce((SELECT r.created_at FROM batuta.runs r WHERE r.run_id = first_run), moment);
    kept integer := (f ->> 'keep')::integer;
    last integer := (f ->> 'head')::integer;
    takes_place boolean := own_id = '' AND source.closed_at IS NULL;
    mother uuid := CASE WHEN takes_place THEN source.parent_run_id ELSE (f ->> 'parent')::uuid END;
BEGIN
    INSERT INTO batuta.runs (
        run_id, namespace, id, chain_id, signalled, kind, name, code, queue, priority, version, tags, memo,
        parent_run_id, parent_seq, parent_policy, flow_key, epoch, head, claimed_head, state, wake_at, created_at,
        deadline, forked_from, forked_at)
    VALUES (
        new_id, ns, coalesce(nullif(own_id, ''), source.id), first_run,
        source.signalled OR json_array_length(f -> 'again') > 0, source.kind, f ->> 'name',
        coalesce(nullif(f ->> 'code', ''), f ->> 'name'), f ->> 'queue', source.priority, f ->> 'version', source.tags,
        coalesce(f ->> 'memo', source.memo), mother, CASE WHEN mother IS NULL THEN 0 ELSE source.parent_seq END,
        CASE WHEN mother IS NULL THEN 'cancel' ELSE source.parent_policy END, source.flow_key, 0, last, -1,
        CASE WHEN last < 0 THEN 'pending' ELSE 'waiting' END, moment + (f ->> 'delay')::bigint, moment,
        least(moment + (f ->> 'delay')::bigint + nullif((f ->> 'timeout')::bigint, 0),
              begun_at + nullif((f ->> 'execution_timeout')::bigint, 0)),
        source.run_id, (f ->> 'at')::integer)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO batuta.journal (namespace, run_id, ord, epoch, kind, at, crc, body)
    SELECT ns, new_id, j.ord, 0, j.kind, j.at, j.crc, j.body
    FROM batuta.journal j WHERE j.run_id = source.run_id AND j.ord <= kept ORDER BY j.ord;
    INSERT INTO batuta.journal (namespace, run_id, ord, epoch, kind, at, crc, body)
    SELECT ns, new_id, (e ->> 'ord')::integer, 0, e ->> 'kind', (e ->> 'at')::bigint, (e ->> 'crc')::bigint,
           e ->> 'body'
    FROM json_array_elements(f -> 'entries') e;
    INSERT INTO batuta.attempts (
        namespace, run_id, seq, number, started_at, ended_at, next_at, error, details, outside, tokens)
    SELECT ns, new_id, (a ->> 'seq')::integer, (a ->> 'number')::integer, (a ->> 'started_at')::bigint,
           (a ->> 'ended_at')::bigint, (a ->> 'next_at')::bigint, a ->> 'error', a ->> 'details',
           (a ->> 'outside')::boolean, a ->> 'tokens'
    FROM json_array_elements(f -> 'attempts') a;
    INSERT INTO batuta.outputs (namespace, run_id, kind, name, ord, at, value, error)
    SELECT ns, new_id, o ->> 'kind', o ->> 'name', (o ->> 'ord')::integer, (o ->> 'at')::bigint, o ->> 'value',
           o ->> 'error'
    FROM json_array_elements(f -> 'outputs') o;
    RETURN true;
END
$$;

-- Let a run read messages (again) that its source has read, and others.
CREATE OR REPLACE FUNCTION batuta.fill_inbox(ns text, source_chain uuid, own_chain uuid, f json) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    moment bigint := batuta.batuta_now();
BEGIN
    IF source_chain = own_chain THEN
        -- Messages for the source only. An unread cancel of an open source goes to the run that replaces it.
        UPDATE batuta.inbox i SET consumed_at = moment
        WHERE i.chain_id = own_chain AND i.consumed_at IS NULL AND i.kind NOT IN ('signal', 'update')
          AND NOT (i.kind = 'cancel' AND json_typeof(f -> 'close') = 'object');
        UPDATE batuta.inbox i SET consumed_at = NULL
        FROM (SELECT a.id FROM json_array_elements_text(f -> 'again') AS a(id) OFFSET 0) a
        WHERE i.chain_id = own_chain AND i.message_id = a.id;
    ELSE
        INSERT INTO batuta.inbox (namespace, chain_id, message_id, kind, name, body, at)
        SELECT ns, own_chain, i.message_id, i.kind, i.name, i.body, moment
        FROM json_array_elements_text(f -> 'again') WITH ORDINALITY AS a(id, n)
        CROSS JOIN LATERAL (
            SELECT i.* FROM batuta.inbox i WHERE i.chain_id = source_chain AND i.message_id = a.id LIMIT 1
        ) i
        ORDER BY i.number
        ON CONFLICT DO NOTHING;
    END IF;
    INSERT INTO batuta.inbox (namespace, chain_id, message_id, kind, name, body, at)
    SELECT ns, own_chain, m ->> 'message_id', m ->> 'kind', m ->> 'name', m ->> 'body', moment
    FROM json_array_elements(f -> 'messages') m
    ON CONFLICT DO NOTHING;
END
$$;

-- The conflict of a fork whose source is locked; outcome is null when there is none.
CREATE OR REPLACE FUNCTION batuta.refuse_fork(ns text, f json, OUT outcome text, OUT said text, OUT state text)
LANGUAGE plpgsql AS $$
DECLARE
    source batuta.runs;
    own_id text := f ->> 'id';
BEGIN
    said := f ->> 'source';
    SELECT * INTO source FROM batuta.runs r WHERE r.run_id = (f ->> 'source')::uuid AND r.namespace || '' = ns;
    IF NOT FOUND THEN
        outcome := 'unknown';
        RETURN;
    END IF;
    said := source.id;
    state := source.state;
    outcome := CASE
        WHEN source.head < (f ->> 'source_head')::integer THEN 'moved'
        WHEN source.head > (f ->> 'source_head')::integer AND own_id = '' THEN 'moved'
        WHEN json_typeof(f -> 'close') = 'object' THEN CASE
            WHEN source.closed_at IS NOT NULL THEN 'ended'
            WHEN EXISTS (
                SELECT FROM batuta.inbox i
                WHERE i.chain_id = source.chain_id AND i.consumed_at IS NULL AND i.kind IN ('activity', 'child')
                  AND i.name = source.run_id::text
                  AND i.message_id NOT IN (SELECT a.id FROM json_array_elements_text(f -> 'heard') AS a(id))
            ) THEN 'answered' END
        WHEN own_id <> '' THEN NULL
        WHEN source.closed_at IS NULL THEN 'open'
        WHEN NOT source.current THEN 'followed' END;
    IF outcome IS NULL AND own_id <> '' THEN
        SELECT 'taken', r.state INTO outcome, state
        FROM batuta.runs r WHERE r.run_id = batuta.current_run(ns, own_id);
    END IF;
    IF outcome IS NULL AND (f ->> 'letter')::boolean THEN
        SELECT l.state INTO state FROM batuta.dead_letters l WHERE l.run_id = source.run_id AND l.namespace = ns;
        outcome := CASE WHEN state IS DISTINCT FROM 'open' THEN 'resolved' END;
    END IF;
END
$$;

-- Write a fork whose source, with its parents and children, is locked. before: the state that the source had.
CREATE OR REPLACE FUNCTION batuta.write_fork(
    ns text, why_children text, f json, locked uuid[], OUT before text, OUT target text, OUT told uuid[]
) LANGUAGE plpgsql AS $$
DECLARE
    source batuta.runs;
    own_id text := f ->> 'id';
BEGIN
    SELECT * INTO source FROM batuta.runs r WHERE r.run_id = (f ->> 'source')::uuid;
    before := source.state;
    target := source.id;
    IF json_typeof(f -> 'close') = 'object' THEN
        told := batuta.close_source(ns, why_children, source, f -> 'close', locked);
    END IF;
    IF own_id = '' THEN
        UPDATE batuta.runs r SET current = false WHERE r.run_id = source.run_id;
    END IF;
    IF NOT batuta.insert_fork(ns, source, f) THEN
        RAISE EXCEPTION 'the id was taken just now: try again' USING ERRCODE = 'serialization_failure';
    END IF;
    PERFORM batuta.fill_inbox(
        ns, source.chain_id, CASE WHEN own_id = '' THEN source.chain_id ELSE (f ->> 'run_id')::uuid END, f);
END
$$;

-- Make runs from others, each separately; `asked` is a JSON array from forks.py: each item is an array, of a fork and
-- those that are made with it or not at all. One row for each, in order. Rows that all others want, too, are locked
-- last: groups of dead letters, and the audit log.
CREATE OR REPLACE FUNCTION batuta.fork_runs(
    ns text, why_children text, asked text, actor text, verb text, reason text, detail text, act_before text,
    act_after text
) RETURNS TABLE (outcome text, said text, state text, told uuid[]) LANGUAGE plpgsql AS $$
DECLARE
    family json;
    f json;
    done record;
    locked uuid[];
    letters uuid[] := '{}';
    successors uuid[] := '{}';
    targets text[] := '{}';
    sources text[] := '{}';
    befores text[] := '{}';
    afters text[] := '{}';
BEGIN
    locked := batuta.lock_runs(ns, ARRAY(
        SELECT (a.f ->> 'source')::uuid
        FROM json_array_elements(asked::json) e(family) CROSS JOIN LATERAL json_array_elements(e.family) a(f)
        UNION ALL
        SELECT unnest(batuta.find_kin(ARRAY[(a.f ->> 'source')::uuid], ARRAY[true]))
        FROM json_array_elements(asked::json) e(family) CROSS JOIN LATERAL json_array_elements(e.family) a(f)
        WHERE json_typeof(a.f -> 'close') = 'object'));
    FOR family IN SELECT e.a FROM json_array_elements(asked::json) WITH ORDINALITY AS e(a, n) ORDER BY e.n LOOP
        told := NULL;
        PERFORM 1 FROM batuta.runs r WHERE r.run_id = (family -> 0 ->> 'run_id')::uuid AND r.namespace || '' = ns;
        outcome := CASE WHEN FOUND THEN 'again' END;  -- it was written before, and the first answer was lost
        FOR f IN SELECT e.a FROM json_array_elements(family) WITH ORDINALITY AS e(a, n) ORDER BY e.n LOOP
            EXIT WHEN outcome IS NOT NULL;
            SELECT r.* INTO outcome, said, state FROM batuta.refuse_fork(ns, f) r;
        END LOOP;
        IF outcome IS NULL THEN
            outcome := 'forked';
            FOR f IN SELECT e.a FROM json_array_elements(family) WITH ORDINALITY AS e(a, n) ORDER BY e.n LOOP
                SELECT * INTO done FROM batuta.write_fork(ns, why_children, f, locked);
                told := told || done.told;
                targets := targets || done.target;
                sources := sources || (f ->> 'source');
                befores := befores || batuta.state_json(done.before);
                afters := afters || (f ->> 'after');
                IF (f ->> 'letter')::boolean THEN
                    letters := letters || (f ->> 'source')::uuid;
                    successors := successors || (f ->> 'run_id')::uuid;
                END IF;
            END LOOP;
        END IF;
        RETURN NEXT;
    END LOOP;
    IF cardinality(letters) > 0 THEN
        PERFORM batuta.must_be_locked(
            letters, batuta.resolve_letters(ns, letters, 'reprocessed', '', successors));  -- nobody was faster
    END IF;
    PERFORM batuta.record_acts(
        ns, actor, verb, reason, detail, act_before, act_after, targets, sources, befores, afters, batuta.batuta_now());
END
$$;
