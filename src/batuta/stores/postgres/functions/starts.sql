-- Starts runs: plain ones, several together, with a message, and the next run of a chain.

-- Whether the start of an unowned run is kept in its row until it is read, and not as a message in the inbox: a claim
-- then returns it, and no row need be inserted and deleted. Not where messages of the chain may come before it, nor
-- when it is long, because every other reader of the row would pay for it.
CREATE OR REPLACE FUNCTION batuta.travels(chain uuid, start text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT chain IS NULL AND length(start) <= 2000
$$;

-- Insert runs: unowned ones, or (with an owner, which must be live) owned ones. Returns the new ones. A run with a
-- renewal first takes the id from a closed run that began that long ago. Columns of defaults may be empty: unnest fills
-- them with nulls. With `allowed`, only runs whose maker is in there, and the caller has checked the starter, and
-- queues in which nothing may begin at once.
CREATE OR REPLACE FUNCTION batuta.insert_runs(
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
    -- What is done to a chain later goes by its id alone.
    IF array_length(array_remove(chain_ids, NULL), 1) > 0 AND EXISTS (
        SELECT FROM unnest(chain_ids) AS s(chain_id)
        CROSS JOIN LATERAL (SELECT r.namespace FROM batuta.runs r WHERE r.run_id = s.chain_id LIMIT 1) r
        WHERE r.namespace <> ns
    ) THEN
        RAISE unique_violation USING MESSAGE = 'another namespace has the chain that a run says it belongs to';
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

-- Insert unowned runs that have their own run_ids as ids, begin a chain, have no parent and no timeouts, and whose
-- starts travel with them: most jobs. Without ON CONFLICT, which costs each row a third more; null, and nothing is
-- written, when one of them exists already: insert_runs can tell them apart. Where all have the same kind, name, code
-- and queue, those columns are empty, and `alike` has the four. Returns when they were created.
CREATE OR REPLACE FUNCTION batuta.insert_plain(
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

-- A start with a message for whichever run has the id then. outcome: new (the run was inserted), taken (by `receiver`,
-- which is of another kind or name, or may not be returned), or the outcome of send_message; owner: the receiver's.
CREATE OR REPLACE FUNCTION batuta.start_and_send(
    ns text, may_join boolean,
    run_ids uuid[], ids text[], renewals bigint[], chain_ids uuid[], kinds text[], names text[], codes text[],
    queues text[], priorities integer[], versions text[], tag_sets text[], memos text[], timeouts bigint[],
    execution_timeouts bigint[], parents uuid[], parent_seqs integer[], policies text[], flow_keys text[],
    expiries bigint[], epochs integer[], heads integer[], states text[], wakes bigint[], delays bigint[], reasons text[],
    fingerprints text[],
    start_id text, start_kind text, start_name text, start_body text,
    message text, message_kind text, message_name text, content text,
    OUT outcome text, OUT receiver uuid, OUT receiver_state text, OUT receiver_owner text
) LANGUAGE plpgsql AS $$
DECLARE
    sent record;
    alike boolean;
BEGIN
    LOOP
        SELECT s.started INTO receiver FROM batuta.insert_runs(
            ns, NULL, run_ids, ids, renewals, chain_ids, kinds, names, codes, queues, priorities, versions, tag_sets,
            memos, timeouts, execution_timeouts, parents, parent_seqs, policies, flow_keys, expiries, epochs, heads,
            states, wakes, delays, reasons, fingerprints) s;
        IF FOUND THEN
            INSERT INTO batuta.inbox (namespace, chain_id, message_id, kind, name, body, at)
            VALUES (ns, coalesce(chain_ids[1], receiver), start_id, start_kind, start_name, start_body,
                    batuta.batuta_now());
            PERFORM batuta.send_message(ns, receiver, message, message_kind, message_name, content);
            outcome := 'new';
            receiver_state := 'pending';
            RETURN;
        END IF;
        -- The same start again, whose first answer was lost?
        SELECT r.run_id INTO receiver FROM batuta.runs r WHERE r.run_id = run_ids[1] AND r.namespace || '' = ns;
        IF NOT FOUND THEN
            SELECT r.run_id, r.state, r.kind = kinds[1] AND r.name = names[1] INTO receiver, receiver_state, alike
            FROM batuta.runs r WHERE r.run_id = batuta.current_run(ns, ids[1]);
            IF NOT FOUND THEN
                IF EXISTS (SELECT FROM batuta.runs r WHERE r.run_id = run_ids[1]) THEN
                    RAISE unique_violation USING MESSAGE = 'another namespace has a run with this run id';
                END IF;
                CONTINUE;  -- it was taken a moment ago, and is gone again
            END IF;
            IF NOT (may_join AND alike) THEN
                outcome := 'taken';
                RETURN;
            END IF;
        END IF;
        SELECT * INTO sent FROM batuta.send_message(ns, receiver, message, message_kind, message_name, content);
        EXIT WHEN sent.outcome <> 'unknown';  -- else it was deleted just now
    END LOOP;
    outcome := sent.outcome;
    receiver_state := sent.receiver_state;
    receiver_owner := sent.receiver_owner;
END
$$;

-- Insert the run that follows another of its chain, for each of these that was written (`won`), with its start message.
-- Returns whether one may be claimed now.
CREATE OR REPLACE FUNCTION batuta.follow(
    ns text, won uuid[], before_ids uuid[], run_ids uuid[], names text[], codes text[], queues text[], versions text[],
    delays bigint[], timeouts bigint[], execution_timeouts bigint[], start_bodies text[]
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    moment bigint := batuta.batuta_now();
BEGIN
    UPDATE batuta.runs r SET current = false
    FROM unnest(before_ids) AS b(run_id)
    WHERE r.run_id = b.run_id AND (b.run_id IN (SELECT unnest(won))) IS TRUE;

    WITH next AS MATERIALIZED (
        SELECT s.*, r.id, r.chain_id, r.kind, r.priority, r.tags, r.memo, r.flow_key, r.parent_run_id, r.parent_seq,
               r.parent_policy, r.signalled, r.deadline AS deadline_before,
               CASE WHEN s.execution_timeout > 0 THEN coalesce((
                   SELECT sum(a.ended_at - a.started_at)::bigint FROM batuta.attempts a
                   WHERE a.run_id = s.before_id AND a.seq = 0), 0) ELSE 0 END AS paused,
               coalesce((SELECT f.created_at FROM batuta.runs f WHERE f.run_id = r.chain_id), moment) AS begun_at
        FROM unnest(before_ids, run_ids, names, codes, queues, versions, delays, timeouts, execution_timeouts,
                    start_bodies)
             AS s(before_id, run_id, name, code, queue, version, delay, timeout, execution_timeout, start_body)
        CROSS JOIN LATERAL (SELECT * FROM batuta.runs r WHERE r.run_id = s.before_id LIMIT 1) r
        WHERE (s.before_id IN (SELECT unnest(won))) IS TRUE
    ), followed AS (
        INSERT INTO batuta.runs (
            run_id, namespace, id, chain_id, signalled, kind, name, code, queue, priority, version, tags, memo,
            parent_run_id, parent_seq, parent_policy, flow_key, epoch, head, claimed_head, state, wake_at, created_at,
            deadline)
        SELECT n.run_id, ns, n.id, n.chain_id, n.signalled, n.kind, n.name, coalesce(nullif(n.code, ''), n.name),
               n.queue, n.priority, n.version, n.tags, n.memo, n.parent_run_id, n.parent_seq, n.parent_policy, n.flow_key, 0,
               -1, -1, 'pending',
               CASE WHEN n.signalled AND batuta.has_unread(n.chain_id, 'continued') THEN moment ELSE moment + n.delay END, moment,
               -- The chain's time is not over before that of the run before: pauses and retries have put it off.
               least(moment + n.delay + nullif(n.timeout, 0),
                     CASE WHEN n.execution_timeout > 0
                          THEN greatest(n.begun_at + n.execution_timeout + n.paused, n.deadline_before) END)
        FROM next n
    ), noted AS (
        -- The runs that follow this one are later by the pauses of those before it, too.
        INSERT INTO batuta.attempts (run_id, seq, number, namespace, started_at, ended_at)
        SELECT n.run_id, 0, 0, ns, moment - n.paused, moment FROM next n WHERE n.paused > 0
    )
    INSERT INTO batuta.inbox (namespace, chain_id, message_id, kind, name, body, at)
    SELECT ns, n.chain_id, 'start:' || n.run_id, 'start', n.name, n.start_body, moment FROM next n;
    RETURN FOUND AND 0 = ANY (delays);
END
$$;

-- Take a lock for each of these keys (texts; null: none), in order, with others of its bucket. Few buckets: a lock for
-- each of ten thousand keys would fill their table.
CREATE OR REPLACE FUNCTION batuta.lock_keys(ns text, seed bigint, keys text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(b.bucket) FROM (
        SELECT DISTINCT hashtextextended(ns, seed) & x'7fffffffffff0000'::bigint | hashtext(d.key) & 63 AS bucket
        FROM unnest(keys) AS d(key) WHERE d.key IS NOT NULL ORDER BY 1
    ) b;
END
$$;

-- Keep the runs that wait under these debounce keys. Starts with a key of the same bucket wait here, and not later for a
-- run that another one has just made: in order of the keys, which is not that of the runs.
CREATE OR REPLACE FUNCTION batuta.lock_debounced(ns text, debounces text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM batuta.lock_keys(ns, 7041, debounces);
    PERFORM batuta.lock_runs(ns, ARRAY(
        SELECT h.run_id FROM unnest(debounces) AS d(key) CROSS JOIN LATERAL (
            SELECT r.run_id FROM batuta.runs r WHERE r.debounce = d.key AND r.namespace || '' = ns LIMIT 1) h));
END
$$;

-- Insert unowned runs, each with its start message, of which some are debounced, or all of which are awaited by
-- `after_id`, which is among them. Those without a debounce key come first, in order of their ids; the others in order of
-- their keys. `insteads`: of those with a key the one run that may do their work, null for any. Returns what became of those
-- that were started or replace another: `started` is that one then, and also where it is not the one of `insteads`, and
-- nothing was written. Nothing when `after_id` is there already: it is being written again.
CREATE OR REPLACE FUNCTION batuta.start_together(
    ns text, after_id uuid, debounces text[], debounce_limits bigint[], insteads uuid[],
    run_ids uuid[], ids text[], renewals bigint[], chain_ids uuid[], kinds text[], names text[], codes text[],
    queues text[], priorities integer[], versions text[], tag_sets text[], memos text[], timeouts bigint[],
    execution_timeouts bigint[], parents uuid[], parent_seqs integer[], policies text[], flow_keys text[],
    expiries bigint[], epochs integer[], heads integer[], states text[], wakes bigint[], delays bigint[],
    reasons text[], fingerprints text[],
    message_ids text[], message_kinds text[], message_names text[], bodies text[]
) RETURNS TABLE (asked uuid, started uuid, started_at bigint, ends_at bigint, due_at bigint) LANGUAGE plpgsql AS $$
DECLARE
    moment bigint;
    fresh uuid[];
    other record;
BEGIN
    PERFORM 1 FROM batuta.runs r WHERE r.run_id = after_id;
    IF FOUND THEN
        RETURN;
    END IF;
    PERFORM batuta.lock_debounced(ns, debounces);
    FOR asked, started, started_at, ends_at, due_at IN
        SELECT s.started, s.* FROM batuta.insert_runs(
            ns, NULL, run_ids, ids, renewals, chain_ids, kinds, names, codes, queues, priorities, versions, tag_sets,
            memos, timeouts, execution_timeouts, parents, parent_seqs, policies, flow_keys, expiries, epochs, heads,
            states, wakes, delays, reasons, fingerprints, run_ids, ARRAY(
                SELECT n.run_id FROM unnest(run_ids, debounces, insteads) AS n(run_id, key, instead)
                WHERE n.key IS NULL OR (coalesce(n.instead, n.run_id) = n.run_id AND NOT EXISTS (
                    SELECT FROM batuta.runs r WHERE r.debounce = n.key AND r.namespace || '' = ns OFFSET 0))
            ), debounces) s
    LOOP
        fresh := fresh || started;
        RETURN NEXT;
    END LOOP;
    moment := coalesce(started_at, batuta.batuta_now());
    INSERT INTO batuta.inbox (namespace, chain_id, message_id, kind, name, body, at)
    SELECT ns, coalesce(m.chain_id, m.run_id), m.message_id, m.kind, m.name, m.body, moment
    FROM unnest(run_ids, chain_ids, message_ids, message_kinds, message_names, bodies)
         AS m(run_id, chain_id, message_id, kind, name, body)
    WHERE (m.run_id IN (SELECT unnest(fresh))) IS TRUE;

    FOR other IN
        SELECT d.* FROM unnest(run_ids, ids, debounces, debounce_limits, insteads, delays, names, tag_sets, memos,
                               priorities, expiries, timeouts, execution_timeouts, bodies) WITH ORDINALITY
            AS d(run_id, id, key, put_off, instead, delay, name, tags, memo, priority, expiry, timeout, execution_timeout,
                 body, n)
        WHERE d.key IS NOT NULL AND (d.run_id IN (SELECT unnest(fresh))) IS NOT TRUE
          AND NOT EXISTS (SELECT FROM batuta.runs r WHERE r.run_id = d.run_id OFFSET 0)
        ORDER BY d.n
    LOOP
        UPDATE batuta.runs r
        SET tags = coalesce(other.tags, '{}'), memo = coalesce(other.memo, 'null'),
            priority = coalesce(other.priority, 0), expires_at = moment + nullif(other.expiry, 0), wake_at = w.wake_at,
            deadline = least(w.wake_at + nullif(other.timeout, 0), r.created_at + nullif(other.execution_timeout, 0))
        FROM (
            SELECT h.run_id, least(moment + other.delay, h.created_at + nullif(other.put_off, 0)) AS wake_at
            FROM batuta.runs h
            WHERE h.debounce = other.key AND h.namespace || '' = ns AND coalesce(other.instead, h.run_id) = h.run_id
            FOR NO KEY UPDATE
        ) w
        WHERE r.run_id = w.run_id
        RETURNING other.run_id, r.run_id, r.created_at, r.deadline, r.wake_at
        INTO asked, started, started_at, ends_at, due_at;
        IF FOUND THEN
            UPDATE batuta.inbox i SET name = other.name, body = other.body
            WHERE i.chain_id = started AND i.message_id = 'start:' || started;
            RETURN NEXT;
        ELSIF other.instead IS NOT NULL THEN
            SELECT other.run_id, h.run_id, h.created_at, h.deadline, h.wake_at
            INTO asked, started, started_at, ends_at, due_at
            FROM batuta.runs h WHERE h.debounce = other.key AND h.namespace || '' = ns;
            IF FOUND THEN
                RETURN NEXT;
            END IF;
        ELSE
            IF batuta.current_run(ns, other.id) IS NULL THEN
                RAISE EXCEPTION 'what was to be replaced has begun: try again' USING ERRCODE = 'serialization_failure';
            END IF;
        END IF;
    END LOOP;

    IF after_id = ANY (fresh) THEN
        UPDATE batuta.runs r
        SET awaits = cardinality(fresh) - 1, wake_at = CASE WHEN cardinality(fresh) = 1 THEN r.wake_at END
        WHERE r.run_id = after_id;
    ELSIF after_id IS NOT NULL THEN
        -- Nobody waits for them: another run has the id.
        UPDATE batuta.runs r SET parent_run_id = NULL, parent_policy = 'cancel'
        FROM unnest(fresh) AS f(run_id) WHERE r.run_id = f.run_id;
    END IF;
END
$$;
