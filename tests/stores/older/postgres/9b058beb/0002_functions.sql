-- What needs a fresh look at the data after a lock was waited for, or several statements in one round trip.
--
-- Two habits throughout. Rows are locked by primary key, in order of run_id, before they are tested: a condition that
-- is false on the version of before the wait does not wait, and would be wrong. And where a list of winners restricts
-- rows, it says `(x IN (SELECT ...)) IS TRUE`: that stays a hash look-up, where a plain IN may become a join of n by n.

-- By date_part, whose floats are exact to a quarter of a microsecond: extract gives a numeric, which takes four.
CREATE FUNCTION batuta.batuta_now() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint
         + coalesce(nullif(current_setting('testing.batuta_shift', true), ''), '0')::bigint
$$;

COMMENT ON FUNCTION batuta.batuta_now IS 'The only clock of the store, in microseconds; tests shift it per session';

CREATE FUNCTION batuta.worker_lock(ns text, worker text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT hashtextextended('batuta.workers/' || ns || '/' || worker, 7)
$$;

COMMENT ON FUNCTION batuta.worker_lock IS 'The key of the advisory lock that a worker''s heartbeat session holds';

-- The run_id that an id may be of, if nobody gave the run another; null when it is none.
CREATE FUNCTION batuta.run_id_in(id text) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN length(id) = 36 AND id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$'
        THEN id::uuid END
$$;

-- The current run of an id, null where there is none. Who gives a run an id must look here first: the index knows nothing
-- of runs that have their own run_id for an id.
CREATE FUNCTION batuta.current_run(ns text, wanted text) RETURNS uuid LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce(
        (SELECT r.run_id FROM batuta.runs r
         WHERE r.id = wanted AND r.id <> r.run_id::text AND r.namespace || '' = ns AND r.current LIMIT 1),
        (SELECT r.run_id FROM batuta.runs r
         WHERE r.run_id = batuta.run_id_in(wanted) AND r.id = wanted AND r.namespace || '' = ns AND r.current LIMIT 1));
END
$$;

-- Whether a run may be inserted with that id, as far as the index of ids does not see to it: not when the id is the
-- run_id of another, which has no other id.
CREATE FUNCTION batuta.is_free(ns text, wanted text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN length(wanted) <> 36 OR NOT EXISTS (
        SELECT FROM batuta.runs r
        WHERE r.run_id = batuta.run_id_in(wanted) AND r.id = wanted AND r.namespace || '' = ns AND r.current);
END
$$;

-- Whether what an unowned run starts with lies in its row until it is read, and not as a message in the inbox: a claim
-- brings it along then, and nothing need be inserted and deleted. Not where messages of the chain may come before it, nor
-- when it is long: whoever reads the row for something else would pay for it.
CREATE FUNCTION batuta.travels(chain uuid, start text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT chain IS NULL AND length(start) <= 2000
$$;

-- Insert runs: unowned ones, or (with an owner, which must be live) ones that it owns already. Returns those that
-- are new. One with a renewal first takes the id from a closed run that began so long ago. Columns that hold nothing but
-- defaults may be empty: unnest fills them with nulls. With `allowed`, only runs whose maker is in there, and the caller
-- has seen to the starter, and to queues in which nobody may begin at once.
CREATE FUNCTION batuta.insert_runs(
    ns text, starter text, run_ids uuid[], ids text[], renewals bigint[], chain_ids uuid[], kinds text[], names text[],
    codes text[], queues text[], priorities integer[], versions text[], tag_sets text[], memos text[],
    timeouts bigint[], execution_timeouts bigint[], parents uuid[], parent_seqs integer[], policies text[],
    flow_keys text[], expiries bigint[], epochs integer[], heads integer[], states text[], wakes bigint[],
    delays bigint[], reasons text[], fingerprints text[], makers uuid[] DEFAULT NULL, allowed uuid[] DEFAULT NULL,
    debounces text[] DEFAULT NULL, starts text[] DEFAULT NULL
) RETURNS TABLE (started uuid, started_at bigint, ends_at bigint, due_at bigint) LANGUAGE plpgsql AS $$
DECLARE
    moment bigint := batuta.batuta_now();
    shut text[];
BEGIN
    IF starter IS NOT NULL AND allowed IS NULL THEN
        PERFORM 1 FROM batuta.workers w WHERE w.namespace = ns AND w.worker_id = starter AND w.lease_until > moment;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        shut := batuta.shut_queues(ns, queues);
    END IF;
    IF array_length(array_remove(renewals, NULL), 1) > 0 THEN
        -- Not when the start itself is there already: it is being written again, and may have closed since.
        UPDATE batuta.runs r SET current = false
        FROM (
            SELECT s.run_id, batuta.current_run(ns, s.id) AS old_id, s.renewal
            FROM unnest(run_ids, ids, renewals, makers, queues) AS s(run_id, id, renewal, maker, queue)
            WHERE s.renewal IS NOT NULL AND (allowed IS NULL OR (s.maker IN (SELECT unnest(allowed))) IS TRUE)
              AND (shut IS NULL OR s.queue <> ALL (shut))
        ) s
        WHERE r.run_id = s.old_id AND r.current AND r.closed_at IS NOT NULL AND r.created_at + s.renewal <= moment
          AND NOT EXISTS (SELECT FROM batuta.runs known WHERE known.run_id = s.run_id OFFSET 0);
    END IF;
    RETURN QUERY
    INSERT INTO batuta.runs AS r (
        run_id, namespace, id, chain_id, signalled, kind, name, code, queue, priority, version, tags, memo,
        parent_run_id, parent_seq, parent_policy, flow_key, epoch, head, claimed_head, state, owner, wake_at,
        created_at, closed_at, deadline, expires_at, debounce, reason, failed_code, start)
    SELECT s.run_id, ns, s.id, coalesce(s.chain_id, s.run_id), s.chain_id IS NOT NULL, s.kind, s.name,
           coalesce(nullif(s.code, ''), s.name), s.queue, coalesce(s.priority, 0), coalesce(s.version, ''),
           coalesce(s.tags, '{}'), coalesce(s.memo, 'null'), s.parent, coalesce(s.parent_seq, 0),
           coalesce(s.policy, 'cancel'), coalesce(s.flow_key, ''), s.epoch, s.head, -1,
           coalesce(s.state, 'running'),
           CASE WHEN s.state IS NULL THEN starter END,
           CASE WHEN s.state = 'waiting' AND EXISTS (
                    SELECT FROM batuta.inbox i
                    WHERE i.chain_id = coalesce(s.chain_id, s.run_id) AND i.consumed_at IS NULL)
                THEN moment ELSE coalesce(s.wake, moment + s.delay) END,
           moment,
           CASE WHEN s.state IN ('completed', 'failed', 'timed_out', 'cancelled', 'terminated', 'continued')
                THEN moment END,
           least(moment + coalesce(s.delay, 0) + nullif(s.timeout, 0), chain.ends_at),
           CASE WHEN s.epoch = 0 THEN moment + nullif(s.expiry, 0) END, s.debounce,
           coalesce(s.reason, ''), array_remove(ARRAY[s.fingerprint], NULL),
           CASE WHEN batuta.travels(s.chain_id, s.start) THEN s.start END
    FROM unnest(run_ids, ids, chain_ids, kinds, names, codes, queues, priorities, versions, tag_sets, memos, timeouts,
                execution_timeouts, parents, parent_seqs, policies, flow_keys, expiries, epochs, heads, states, wakes,
                delays, reasons, fingerprints, makers, debounces, starts)
         AS s(run_id, id, chain_id, kind, name, code, queue, priority, version, tags, memo, timeout, execution_timeout,
              parent, parent_seq, policy, flow_key, expiry, epoch, head, state, wake, delay, reason, fingerprint,
              maker, debounce, start)
    CROSS JOIN LATERAL (
        SELECT nullif(s.execution_timeout, 0) + CASE
            WHEN s.chain_id IS NULL THEN moment
            ELSE coalesce((SELECT f.created_at FROM batuta.runs f WHERE f.run_id = s.chain_id), moment)
        END AS ends_at
    ) chain
    WHERE (allowed IS NULL OR (s.maker IN (SELECT unnest(allowed))) IS TRUE)
      AND (shut IS NULL OR s.queue <> ALL (shut))
      AND (s.id = s.run_id::text OR batuta.is_free(ns, s.id))
    ON CONFLICT DO NOTHING
    RETURNING r.run_id, r.created_at, r.deadline, r.wake_at;
END
$$;

-- Insert unowned runs that have their own run_ids for ids, begin a chain, have no parent and no timeouts, and whose starts
-- travel with them: most jobs. Without ON CONFLICT, which costs each row a third more; null when one of them is there
-- already, and nothing is written: insert_runs can tell them apart. Where all have the same kind, name, code and queue,
-- those columns are empty, and `alike` has the four. Returns when they were created.
CREATE FUNCTION batuta.insert_plain(
    ns text, run_ids uuid[], alike text[], kinds text[], names text[], codes text[], queues text[], priorities integer[],
    tag_sets text[], memos text[], flow_keys text[], expiries bigint[], delays bigint[], starts text[]
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    moment bigint := batuta.batuta_now();
BEGIN
    INSERT INTO batuta.runs (
        run_id, namespace, id, chain_id, kind, name, code, queue, priority, tags, memo, flow_key, epoch, head, claimed_head,
        state, wake_at, created_at, expires_at, start)
    SELECT s.run_id, ns, s.run_id::text, s.run_id, coalesce(s.kind, alike[1]), coalesce(s.name, alike[2]),
           coalesce(nullif(coalesce(s.code, alike[3]), ''), s.name, alike[2]), coalesce(s.queue, alike[4]), coalesce(s.priority, 0), coalesce(s.tags, '{}'),
           coalesce(s.memo, 'null'), coalesce(s.flow_key, ''), 0, -1, -1, 'pending', moment + coalesce(s.delay, 0), moment,
           moment + nullif(s.expiry, 0), s.start
    FROM unnest(run_ids, kinds, names, codes, queues, priorities, tag_sets, memos, flow_keys, expiries, delays, starts)
         AS s(run_id, kind, name, code, queue, priority, tags, memo, flow_key, expiry, delay, start);
    RETURN moment;
EXCEPTION
    WHEN unique_violation THEN
        RETURN NULL;
END
$$;

-- Whether a chain has a signal or update that nobody has read: nothing may be lost that was acknowledged. Sending one
-- makes a new version of the run's row, so that a statement which waited for the row tests again; and a volatile
-- function looks with fresh eyes each time, where the statement itself would still see the inbox of before the wait.
CREATE FUNCTION batuta.has_unread(chain uuid) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM batuta.inbox i
        WHERE i.chain_id = chain AND i.consumed_at IS NULL AND i.kind IN ('signal', 'update'));
END
$$;

-- Of locked runs: those that would come to their own end with a signal or update unread, which they do not read now.
CREATE FUNCTION batuta.find_unread(
    won uuid[], run_ids uuid[], states text[], message_runs uuid[], message_ids text[]
) RETURNS uuid[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(
        SELECT c.run_id
        FROM unnest(run_ids, states) AS c(run_id, state)
        CROSS JOIN LATERAL (
            SELECT r.chain_id FROM batuta.runs r WHERE r.run_id = c.run_id AND r.signalled LIMIT 1
        ) r
        WHERE c.state IN ('completed', 'failed', 'cancelled') AND (c.run_id IN (SELECT unnest(won))) IS TRUE
          AND EXISTS (
            SELECT FROM batuta.inbox i
            WHERE i.chain_id = r.chain_id AND i.consumed_at IS NULL AND i.kind IN ('signal', 'update')
              AND ((c.run_id, i.message_id) IN (SELECT * FROM unnest(message_runs, message_ids))) IS NOT TRUE
            OFFSET 0));
END
$$;

CREATE FUNCTION batuta.except_for(many uuid[], few uuid[]) RETURNS uuid[] LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN cardinality(few) > 0
        THEN ARRAY(SELECT m.run_id FROM unnest(many) AS m(run_id) WHERE (m.run_id IN (SELECT unnest(few))) IS NOT TRUE)
        ELSE many END
$$;

-- Write all changes of a batch whose fence holds; `won` has their run ids, `due` whether one may be claimed now.
-- A run occurs once, and the changes come in order of run_id.
CREATE FUNCTION batuta.commit_changes(
    ns text, worker text,
    -- changes of runs that exist
    run_ids uuid[], epochs integer[], heads integer[], new_heads integer[],
    states text[], wakes bigint[], reasons text[], fingerprints text[],
    -- journal entries, also those of new runs
    entry_runs uuid[], entry_epochs integer[], ords integer[], entry_kinds text[], ats bigint[], crcs bigint[],
    bodies text[],
    -- messages that were read
    message_runs uuid[], message_ids text[],
    -- attempts
    attempt_runs uuid[], seqs integer[], numbers integer[], starts bigint[], ends bigint[], nexts bigint[],
    errors text[], details text[], outsides boolean[],
    -- new runs, as in insert_runs
    new_ids uuid[], ids text[], renewals bigint[], chain_ids uuid[], kinds text[], names text[], codes text[],
    queues text[], priorities integer[], versions text[], tag_sets text[], memos text[], timeouts bigint[],
    execution_timeouts bigint[], parents uuid[], parent_seqs integer[], policies text[], flow_keys text[],
    expiries bigint[], new_epochs integer[], first_heads integer[], new_states text[], new_wakes bigint[], delays bigint[],
    new_reasons text[], new_fingerprints text[],
    OUT won uuid[], OUT due boolean
) LANGUAGE plpgsql AS $$
BEGIN
    -- Materialised: the tests must not slip below the lock.
    WITH locked AS MATERIALIZED (
        SELECT c.run_id, r.namespace, r.closed_at, r.epoch = c.epoch AND r.head = c.head AS mine
        FROM unnest(run_ids, epochs, heads) AS c(run_id, epoch, head)
        CROSS JOIN LATERAL (
            SELECT * FROM batuta.runs r WHERE r.run_id = c.run_id FOR NO KEY UPDATE
        ) r
    )
    SELECT array_agg(l.run_id) INTO won FROM locked l WHERE l.mine AND l.namespace = ns AND l.closed_at IS NULL;

    IF states && ARRAY['completed', 'failed', 'cancelled'] THEN
        won := batuta.except_for(won, batuta.find_unread(won, run_ids, states, message_runs, message_ids));
    END IF;
    IF cardinality(new_ids) > 0 THEN
        won := won || ARRAY(SELECT s.started FROM batuta.insert_runs(
            ns, worker, new_ids, ids, renewals, chain_ids, kinds, names, codes, queues, priorities, versions, tag_sets,
            memos, timeouts, execution_timeouts, parents, parent_seqs, policies, flow_keys, expiries, new_epochs,
            first_heads, new_states, new_wakes, delays, new_reasons, new_fingerprints) s);
    END IF;
    due := batuta.write_changes(
        ns, won, run_ids, new_heads, states, wakes, reasons, fingerprints, entry_runs, entry_epochs, ords, entry_kinds,
        ats, crcs, bodies, message_runs, message_ids, attempt_runs, seqs, numbers, starts, ends, nexts, errors, details,
        outsides);
END
$$;

-- Write the changes of runs that are locked and whose fence held (`won`). Returns whether one may be claimed now.
CREATE FUNCTION batuta.write_changes(
    ns text, won uuid[],
    run_ids uuid[], new_heads integer[], states text[], wakes bigint[], reasons text[], fingerprints text[],
    entry_runs uuid[], entry_epochs integer[], ords integer[], entry_kinds text[], ats bigint[], crcs bigint[],
    bodies text[], message_runs uuid[], message_ids text[], attempt_runs uuid[], seqs integer[], numbers integer[],
    starts bigint[], ends bigint[], nexts bigint[], errors text[], details text[], outsides boolean[],
    OUT due boolean
) LANGUAGE plpgsql AS $$
DECLARE
    moment bigint := batuta.batuta_now();
    parents uuid[];
BEGIN
    INSERT INTO batuta.journal (namespace, run_id, ord, epoch, kind, at, crc, body)
    SELECT ns, e.*
    FROM unnest(entry_runs, ords, entry_epochs, entry_kinds, ats, crcs, bodies)
         AS e(run_id, ord, epoch, kind, at, crc, body)
    WHERE (e.run_id IN (SELECT unnest(won))) IS TRUE;

    IF cardinality(message_ids) > 0 THEN
        -- By the whole primary key: "consumed_at IS NULL", or a join without the fences, would tempt the planner to
        -- look through all messages of the chain for each.
        UPDATE batuta.inbox i SET consumed_at = coalesce(i.consumed_at, moment)
        FROM (
            SELECT r.chain_id, m.message_id
            FROM unnest(message_runs, message_ids) AS m(run_id, message_id)
            CROSS JOIN LATERAL (SELECT r.chain_id FROM batuta.runs r WHERE r.run_id = m.run_id OFFSET 0) r
            WHERE (m.run_id IN (SELECT unnest(won))) IS TRUE
            OFFSET 0
        ) m
        WHERE i.chain_id = m.chain_id AND i.message_id = m.message_id;
    END IF;

    IF cardinality(attempt_runs) > 0 THEN
        INSERT INTO batuta.attempts AS a (
            namespace, run_id, seq, number, started_at, ended_at, next_at, error, details, outside)
        SELECT ns, t.*
        FROM unnest(attempt_runs, seqs, numbers, starts, ends, nexts, errors, details, outsides)
             AS t(run_id, seq, number, started_at, ended_at, next_at, error, details, outside)
        WHERE (t.run_id IN (SELECT unnest(won))) IS TRUE
        ON CONFLICT (run_id, seq, number) DO UPDATE
        SET started_at = excluded.started_at, ended_at = excluded.ended_at, next_at = excluded.next_at,
            error = excluded.error, details = excluded.details, outside = excluded.outside;
    END IF;

    IF 'paused' = ANY (states) THEN
        states := batuta.hold(won, run_ids, new_heads, states);
    END IF;
    -- Last, with its own snapshot: it must see what came into the inbox before the row was locked.
    WITH moved AS (
        UPDATE batuta.runs r
        SET head = c.head,
            state = coalesce(c.state, r.state),
            owner = CASE WHEN c.state IS NULL THEN r.owner END,
            reason = CASE WHEN c.state IS NULL THEN r.reason ELSE c.reason END,
            wake_at = CASE
                WHEN c.state IS NULL THEN r.wake_at
                WHEN c.state = 'pending' THEN coalesce(c.wake, moment)
                WHEN c.state = 'waiting' THEN CASE
                    WHEN r.start IS NOT NULL AND c.head < 0
                      OR EXISTS (SELECT FROM batuta.inbox i WHERE i.chain_id = r.chain_id AND i.consumed_at IS NULL)
                    THEN moment ELSE c.wake END
            END,
            start = CASE WHEN r.start IS NOT NULL AND (('start:' || r.run_id) IN (SELECT unnest(message_ids))) IS NOT TRUE
                         THEN r.start END,
            paused_at = CASE WHEN c.state = 'paused' THEN moment END,
            resume_at = CASE WHEN c.state = 'paused' THEN c.wake END,
            closed_at = CASE
                WHEN c.state IN ('completed', 'failed', 'timed_out', 'cancelled', 'terminated', 'continued')
                THEN moment END,
            failed_code = CASE
                WHEN c.fingerprint = '' OR c.fingerprint = ANY (r.failed_code) THEN r.failed_code
                ELSE r.failed_code || c.fingerprint END
        FROM unnest(run_ids, new_heads, states, wakes, reasons, fingerprints)
             AS c(run_id, head, state, wake, reason, fingerprint)
        WHERE r.run_id = c.run_id AND (c.run_id IN (SELECT unnest(won))) IS TRUE
        RETURNING r.wake_at, CASE WHEN r.closed_at IS NOT NULL AND c.state <> 'continued' THEN r.parent_run_id END AS parent
    )
    SELECT coalesce(bool_or(m.wake_at <= moment), false), array_agg(m.parent) FILTER (WHERE m.parent IS NOT NULL)
    INTO due, parents FROM moved m;
    due := coalesce(batuta.await_fewer(parents), false) OR due;
END
$$;

-- Children of these runs have closed, one for each time that it is named: those of them that wait for all of their
-- children wait for fewer, and are due when there are no more. Called last, when all that is locked by key is locked:
-- nobody who holds the lock of a run that awaits others waits for another run. Whether one is due.
CREATE FUNCTION batuta.await_fewer(parents uuid[]) RETURNS boolean LANGUAGE plpgsql STRICT AS $$
DECLARE
    moment bigint := batuta.batuta_now();
    parent record;
    awaited integer;
    due boolean := false;
BEGIN
    FOR parent IN SELECT p.run_id, count(*)::integer AS fewer FROM unnest(parents) AS p(run_id) GROUP BY 1 ORDER BY 1 LOOP
        UPDATE batuta.runs r
        SET awaits = greatest(r.awaits - parent.fewer, 0),
            wake_at = CASE WHEN r.awaits <= parent.fewer AND r.state = 'pending' THEN least(r.wake_at, moment)
                           ELSE r.wake_at END
        WHERE r.run_id = parent.run_id AND r.awaits > 0 AND r.closed_at IS NULL
        RETURNING r.awaits INTO awaited;
        due := due OR coalesce(awaited = 0, false);
    END LOOP;
    RETURN due;
END
$$;

-- Whether a message makes an unowned run of this state due. What has not begun waits for its time, unless it ends.
CREATE FUNCTION batuta.wakes(kind text, state text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT state = 'waiting' OR (state = 'pending' AND kind IN ('cancel', 'terminate'))
$$;

-- Put a message into the inbox of a run's chain, and make the run that goes on there due if nobody owns it.
-- outcome: sent, again (its id is there already), unknown, or closed; state and owner are those of the receiver.
CREATE FUNCTION batuta.send_message(
    ns text, target uuid, message text, message_kind text, message_name text, content text,
    OUT outcome text, OUT receiver uuid, OUT receiver_state text, OUT receiver_owner text
) LANGUAGE plpgsql AS $$
DECLARE
    moment bigint;
    asked batuta.runs;
    last batuta.runs;
BEGIN
    SELECT * INTO asked FROM batuta.runs r WHERE r.run_id = target AND r.namespace = ns;
    IF NOT FOUND THEN
        outcome := 'unknown';
        RETURN;
    END IF;
    LOOP
        SELECT * INTO last FROM batuta.runs r
        WHERE r.run_id = batuta.current_run(ns, asked.id) AND r.current FOR NO KEY UPDATE;
        EXIT WHEN FOUND;  -- not found: another run took the id over while we waited for the lock
    END LOOP;
    receiver := last.run_id;
    receiver_owner := last.owner;
    moment := batuta.batuta_now();
    PERFORM 1 FROM batuta.inbox i WHERE i.chain_id = asked.chain_id AND i.message_id = message;
    IF FOUND THEN
        outcome := 'again';
    ELSIF last.chain_id <> asked.chain_id OR last.closed_at IS NOT NULL THEN
        outcome := 'closed';
        SELECT r.state INTO receiver_state FROM batuta.runs r WHERE r.run_id = target;
    ELSE
        outcome := 'sent';
        receiver_state := last.state;
        INSERT INTO batuta.inbox (namespace, chain_id, message_id, kind, name, body, at)
        VALUES (ns, asked.chain_id, message, message_kind, message_name, content, moment);
        -- A signal always makes a new version of the row: see has_unread.
        IF message_kind IN ('signal', 'update') OR batuta.wakes(message_kind, last.state) THEN
            UPDATE batuta.runs r
            SET signalled = r.signalled OR message_kind IN ('signal', 'update'),
                debounce = CASE WHEN message_kind IN ('signal', 'update') THEN r.debounce END,
                wake_at = CASE WHEN batuta.wakes(message_kind, r.state) THEN least(r.wake_at, moment) ELSE r.wake_at END
            WHERE r.run_id = last.run_id;
        END IF;
    END IF;
END
$$;

-- A run is a suspect when two workers or more died with it since it last made progress. Whether the worker is free to
-- take one: it owns none.
CREATE FUNCTION batuta.may_take_suspect(ns text, worker text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT NOT EXISTS (
            SELECT FROM batuta.runs r
            WHERE r.namespace = ns AND r.owner = worker AND r.deaths >= 2 AND r.head = r.claimed_head
              AND r.closed_at IS NULL));
END
$$;

-- Set free up to `most` runs of a dead worker. freed: how many; due: how many of them may be claimed now (the others
-- are parked). If it owned a suspect, that one is to blame, and goes last so that the others are always told from it.
CREATE FUNCTION batuta.set_free(
    ns text, dead text, moment bigint, most integer, poison integer, poisoned text, OUT freed integer, OUT due integer
) LANGUAGE sql AS $$
    WITH orphan AS MATERIALIZED (
        SELECT r.run_id,
               CASE WHEN (r.deaths < 2 OR r.head <> r.claimed_head) AND NOT c.blameless THEN r.deaths
                    WHEN r.head = r.claimed_head THEN r.deaths + 1
                    ELSE 1 END AS deaths
        FROM batuta.runs r CROSS JOIN (SELECT batuta.may_take_suspect(ns, dead) AS blameless) c
        WHERE r.namespace = ns AND r.owner = dead
        ORDER BY r.deaths >= 2 AND r.head = r.claimed_head LIMIT most FOR NO KEY UPDATE OF r SKIP LOCKED
    ), moved AS (
        UPDATE batuta.runs r
        SET epoch = r.epoch + 1, owner = NULL, deaths = o.deaths,
            state = CASE WHEN o.deaths >= poison THEN 'poisoned' WHEN r.head < 0 THEN 'pending' ELSE 'waiting' END,
            reason = CASE WHEN o.deaths >= poison THEN poisoned ELSE r.reason END,
            wake_at = CASE WHEN o.deaths < poison THEN moment END
        FROM orphan o WHERE r.run_id = o.run_id
        RETURNING r.wake_at
    )
    SELECT count(*)::integer, count(m.wake_at)::integer FROM moved m
$$;

-- Delete the rows of workers whose lease is over, then set free up to `most` open runs whose owner has no row.
CREATE FUNCTION batuta.reap(
    ns text, moment bigint, most integer, poison integer, poisoned text, OUT freed integer, OUT due integer
) LANGUAGE plpgsql AS $$
DECLARE
    dead text;
    got record;
BEGIN
    freed := 0;
    due := 0;
    DELETE FROM batuta.workers w USING (
        SELECT g.worker_id FROM batuta.workers g
        WHERE g.namespace = ns AND g.lease_until <= moment LIMIT most FOR UPDATE SKIP LOCKED
    ) g
    WHERE w.namespace = ns AND w.worker_id = g.worker_id;
    FOR dead IN
        -- Owners one by one from the index: their number is small, that of their runs is not.
        WITH RECURSIVE owners AS (
            (SELECT r.owner FROM batuta.runs r WHERE r.namespace = ns AND r.owner IS NOT NULL ORDER BY r.owner LIMIT 1)
            UNION ALL
            SELECT (SELECT r.owner FROM batuta.runs r
                    WHERE r.namespace = ns AND r.owner > o.owner ORDER BY r.owner LIMIT 1)
            FROM owners o WHERE o.owner IS NOT NULL
        )
        SELECT o.owner FROM owners o
        WHERE o.owner IS NOT NULL
          AND NOT EXISTS (SELECT FROM batuta.workers w WHERE w.namespace = ns AND w.worker_id = o.owner)
    LOOP
        SELECT * INTO got FROM batuta.set_free(ns, dead, moment, most - freed, poison, poisoned);
        freed := freed + got.freed;
        due := due + got.due;
        EXIT WHEN freed >= most;
    END LOOP;
END
$$;

-- Take up to `most` runs out of needs_code that failed only with other code than this. Returns their number.
CREATE FUNCTION batuta.revive(
    ns text, moment bigint, queue_names text[], codes text[], fingerprints text[], most integer
) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    several integer;
BEGIN
    WITH curable AS MATERIALIZED (
        SELECT p.run_id
        FROM unnest(codes, fingerprints) AS c(code, fingerprint)
        CROSS JOIN LATERAL (
            SELECT r.run_id FROM batuta.runs r
            WHERE r.namespace = ns AND r.state = 'needs_code' AND r.code = c.code
              AND r.closed_at IS NULL AND r.owner IS NULL AND r.wake_at IS NULL
              AND r.queue = ANY (queue_names) AND c.fingerprint <> ALL (r.failed_code)
            LIMIT most FOR NO KEY UPDATE SKIP LOCKED
        ) p
        LIMIT most
    )
    UPDATE batuta.runs r SET state = 'waiting', wake_at = moment, reason = ''
    FROM curable c WHERE r.run_id = c.run_id;
    GET DIAGNOSTICS several = ROW_COUNT;
    RETURN several;
END
$$;

-- Since when locks have been held without a break: a restart, also one after a crash, sets all of them free.
CREATE FUNCTION batuta.up_since() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT (extract(epoch FROM greatest(pg_postmaster_start_time(), (
        SELECT max(a.backend_start) FROM pg_stat_activity a WHERE a.backend_type = 'checkpointer'
    ))) * 1000000)::bigint
$$;

-- A heartbeat: renew the lease while the row is there, look for the dead, bring news. `overdue` are open runs whose
-- deadline has passed, for the caller to close; `due` is how many runs became claimable.
CREATE FUNCTION batuta.beat(
    ns text, worker text, queue_names text[], codes text[], fingerprints text[], lease bigint, reaping boolean,
    most integer, poison integer, poisoned text,
    OUT moment bigint, OUT alive boolean, OUT due_at bigint, OUT unread uuid[], OUT owned uuid[], OUT epochs integer[],
    OUT peers text[], OUT reaped integer, OUT due integer, OUT overdue uuid[]
) LANGUAGE plpgsql AS $$
DECLARE
    was_live boolean;
BEGIN
    -- After a standstill of the database everybody's lease is over and nobody died: whoever comes first must not reap.
    SELECT w.lease_until > batuta.batuta_now() INTO was_live
    FROM batuta.workers w WHERE w.namespace = ns AND w.worker_id = worker FOR NO KEY UPDATE;
    UPDATE batuta.workers w SET beat_at = batuta.batuta_now(), lease_until = batuta.batuta_now() + beat.lease
    WHERE w.namespace = ns AND w.worker_id = worker;
    alive := FOUND;
    moment := batuta.batuta_now();
    IF NOT alive THEN
        RETURN;
    END IF;
    overdue := ARRAY(
        SELECT r.run_id FROM batuta.runs r
        WHERE r.namespace = ns AND least(r.deadline, r.expires_at) <= moment
          AND r.closed_at IS NULL AND r.paused_at IS NULL
        ORDER BY least(r.deadline, r.expires_at) LIMIT most);
    PERFORM batuta.forget_begun(ns, moment, most);
    reaped := 0;
    due := 0;
    IF reaping AND was_live THEN
        SELECT r.freed, r.due INTO reaped, due FROM batuta.reap(ns, moment, most, poison, poisoned) r;
    END IF;
    due := due + batuta.revive(ns, moment, queue_names, codes, fingerprints, most);
    due_at := batuta.next_due(ns, worker, queue_names, codes, fingerprints);
    SELECT array_agg(r.run_id), array_agg(r.epoch),
           array_agg(r.run_id) FILTER (WHERE EXISTS (
               SELECT FROM batuta.inbox i WHERE i.chain_id = r.chain_id AND i.consumed_at IS NULL))
    INTO owned, epochs, unread
    FROM batuta.runs r WHERE r.namespace = ns AND r.owner = worker;
    peers := ARRAY(
        SELECT w.worker_id FROM batuta.workers w
        WHERE w.namespace = ns AND w.worker_id <> worker AND w.locked
          AND batuta.up_since() + (w.lease_until - w.beat_at) < moment
          AND NOT EXISTS (
            SELECT FROM pg_locks l
            WHERE l.locktype = 'advisory' AND l.objsubid = 1
              AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
              AND (l.classid::bigint << 32 | l.objid::bigint) = batuta.worker_lock(ns, w.worker_id)));
END
$$;

-- Forget those workers whose lock is free, and set free up to `most` of their runs. To be called until it finds fewer.
CREATE FUNCTION batuta.bury(
    ns text, mourner text, worker_ids text[], most integer, poison integer, poisoned text,
    OUT freed integer, OUT due integer
) LANGUAGE plpgsql AS $$
DECLARE
    candidate text;
    got record;
BEGIN
    freed := 0;
    due := 0;
    FOR candidate IN SELECT w.id FROM unnest(worker_ids) AS w(id) WHERE w.id <> mourner ORDER BY w.id LOOP
        -- Taken until the end of this transaction: the worker can't come back in between.
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(batuta.worker_lock(ns, candidate));
        DELETE FROM batuta.workers w WHERE w.namespace = ns AND w.worker_id = candidate;
        SELECT * INTO got
        FROM batuta.set_free(ns, candidate, batuta.batuta_now(), most - freed, poison, poisoned);
        freed := freed + got.freed;
        due := due + got.due;
    END LOOP;
END
$$;

-- Forget a worker and set free what it still owns; no death is counted. Returns the number of runs.
CREATE FUNCTION batuta.retire(ns text, worker text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    several integer;
BEGIN
    DELETE FROM batuta.workers w WHERE w.namespace = ns AND w.worker_id = worker;
    WITH mine AS MATERIALIZED (
        SELECT r.run_id FROM batuta.runs r WHERE r.namespace = ns AND r.owner = worker ORDER BY r.run_id FOR NO KEY UPDATE
    )
    UPDATE batuta.runs r
    SET epoch = r.epoch + 1, owner = NULL, wake_at = batuta.batuta_now(),
        state = CASE WHEN r.head < 0 THEN 'pending' ELSE 'waiting' END
    FROM mine m WHERE r.run_id = m.run_id;
    GET DIAGNOSTICS several = ROW_COUNT;
    RETURN several;
END
$$;
