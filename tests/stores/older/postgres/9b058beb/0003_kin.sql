-- What reaches beyond a run: messages to others, children, parents, and the next run of a chain.
--
-- Every function here first locks all rows that it will touch, in order of run_id, then tests and writes; ids of new
-- runs are taken after that, in order too. So two of them never wait for each other. Whatever moved on between the look
-- at who is concerned and the locks is a serialisation failure: the caller asks again.
--
-- Every look-up says LIMIT 1 or OFFSET 0: that keeps it one, by key and per row. The planner would like to make it a
-- join that reads a whole namespace, once, on a table that was empty when it made the plan.

CREATE FUNCTION batuta.lock_runs(wanted uuid[]) RETURNS uuid[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(
        SELECT r.run_id
        FROM (SELECT DISTINCT a.run_id FROM unnest(wanted) AS a(run_id) ORDER BY a.run_id) w
        CROSS JOIN LATERAL (
            SELECT r.run_id FROM batuta.runs r WHERE r.run_id = w.run_id FOR NO KEY UPDATE
        ) r);
END
$$;

-- The current run of each id, null where there is none.
CREATE FUNCTION batuta.current_runs(ns text, ids text[]) RETURNS uuid[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(
        SELECT batuta.current_run(ns, a.id) FROM unnest(ids) WITH ORDINALITY AS a(id, n) ORDER BY a.n);
END
$$;

-- Raise a serialisation failure unless all of these are locked.
CREATE FUNCTION batuta.must_be_locked(asked uuid[], locked uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM unnest(asked) AS a(run_id) WHERE (a.run_id IN (SELECT unnest(locked))) IS NOT TRUE;
    IF FOUND THEN
        RAISE EXCEPTION 'a run that is concerned has moved on: try again' USING ERRCODE = 'serialization_failure';
    END IF;
END
$$;

-- Who is to be told when these runs close: their parents, unless those only count them, and, where `tells` is set, their
-- open children. A run awaits others for as long as one of them is open.
CREATE FUNCTION batuta.find_kin(closers uuid[], tells boolean[]) RETURNS uuid[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(
        SELECT r.parent_run_id
        FROM unnest(closers) AS c(run_id)
        CROSS JOIN LATERAL (SELECT r.parent_run_id FROM batuta.runs r WHERE r.run_id = c.run_id LIMIT 1) r
        WHERE EXISTS (SELECT FROM batuta.runs p WHERE p.run_id = r.parent_run_id AND p.awaits = 0 OFFSET 0)
        UNION ALL
        SELECT k.run_id
        FROM unnest(closers, tells) AS c(run_id, tell)
        CROSS JOIN LATERAL (
            SELECT k.run_id FROM batuta.runs k
            WHERE k.parent_run_id = c.run_id AND k.closed_at IS NULL AND k.parent_policy <> 'abandon' OFFSET 0
        ) k
        WHERE c.tell);
END
$$;

-- Put messages into the inboxes of locked, open runs, but for those that are there already, and make the receivers due
-- that nobody owns. owned: those that somebody does; due: whether there are others.
CREATE FUNCTION batuta.post(
    ns text, receivers uuid[], message_ids text[], message_kinds text[], message_names text[], contents text[],
    OUT owned uuid[], OUT due boolean
) LANGUAGE plpgsql AS $$
DECLARE
    moment bigint := batuta.batuta_now();
    told uuid[];
    signals uuid[];
    ends uuid[];
BEGIN
    WITH letter AS MATERIALIZED (
        SELECT m.*, r.chain_id
        FROM unnest(receivers, message_ids, message_kinds, message_names, contents)
             AS m(receiver, message_id, kind, name, body)
        CROSS JOIN LATERAL (SELECT r.chain_id FROM batuta.runs r WHERE r.run_id = m.receiver LIMIT 1) r
        WHERE NOT EXISTS (
            SELECT FROM batuta.inbox i WHERE i.chain_id = r.chain_id AND i.message_id = m.message_id OFFSET 0)
    ), posted AS (
        INSERT INTO batuta.inbox (namespace, chain_id, message_id, kind, name, body, at)
        SELECT ns, l.chain_id, l.message_id, l.kind, l.name, l.body, moment FROM letter l
        ON CONFLICT DO NOTHING
    )
    SELECT array_agg(DISTINCT l.receiver),
           array_agg(DISTINCT l.receiver) FILTER (WHERE l.kind IN ('signal', 'update')),
           array_agg(DISTINCT l.receiver) FILTER (WHERE l.kind IN ('cancel', 'terminate'))
    INTO told, signals, ends FROM letter l;

    UPDATE batuta.runs r
    SET signalled = r.signalled OR t.signalled,
        debounce = CASE WHEN t.kind IS NULL THEN r.debounce END,
        wake_at = CASE WHEN batuta.wakes(t.kind, r.state) THEN least(r.wake_at, moment) ELSE r.wake_at END
    FROM (
        SELECT a.run_id, (a.run_id IN (SELECT unnest(signals))) IS TRUE AS signalled,
               CASE WHEN (a.run_id IN (SELECT unnest(ends))) IS TRUE THEN 'cancel' END AS kind
        FROM unnest(told) AS a(run_id)
    ) t
    WHERE r.run_id = t.run_id AND (t.signalled OR batuta.wakes(t.kind, r.state));

    SELECT array_agg(t.run_id) FILTER (WHERE r.owner IS NOT NULL),
           coalesce(bool_or(r.wake_at <= moment), false)
    INTO owned, due
    FROM unnest(told) AS t(run_id)
    CROSS JOIN LATERAL (SELECT r.owner, r.wake_at FROM batuta.runs r WHERE r.run_id = t.run_id LIMIT 1) r;
END
$$;

-- Tell the open kin of runs that are about to close (`leaving` has all of those): a parent by the child's outcome,
-- unless that is empty, children by their policy, whose words are kinds of messages.
CREATE FUNCTION batuta.tell_kin(
    ns text, why text, closers uuid[], outcomes text[], tells boolean[], leaving uuid[], locked uuid[],
    OUT owned uuid[], OUT due boolean
) LANGUAGE plpgsql AS $$
DECLARE
    kin record;
BEGIN
    WITH letter AS (
        SELECT p.run_id AS receiver, 'child:' || c.run_id AS message_id, 'child' AS kind, p.run_id::text AS name,
               c.outcome AS body
        FROM unnest(closers, outcomes) AS c(run_id, outcome)
        CROSS JOIN LATERAL (SELECT r.parent_run_id FROM batuta.runs r WHERE r.run_id = c.run_id LIMIT 1) r
        CROSS JOIN LATERAL (
            SELECT p.run_id FROM batuta.runs p
            WHERE p.run_id = r.parent_run_id AND p.namespace || '' = ns AND p.closed_at IS NULL AND p.awaits = 0 LIMIT 1
        ) p
        WHERE c.outcome <> ''
        UNION ALL
        SELECT k.run_id, 'parent:' || c.run_id, k.parent_policy, why, 'null'
        FROM unnest(closers, tells) AS c(run_id, tell)
        CROSS JOIN LATERAL (
            SELECT k.run_id, k.parent_policy FROM batuta.runs k
            WHERE k.parent_run_id = c.run_id AND k.closed_at IS NULL AND k.parent_policy <> 'abandon' OFFSET 0
        ) k
        WHERE c.tell
    )
    SELECT array_agg(l.receiver) AS receivers, array_agg(l.message_id) AS message_ids, array_agg(l.kind) AS kinds,
           array_agg(l.name) AS names, array_agg(l.body) AS bodies
    INTO kin FROM letter l WHERE (l.receiver IN (SELECT unnest(leaving))) IS NOT TRUE;
    PERFORM batuta.must_be_locked(kin.receivers, locked);
    SELECT p.owned, p.due INTO owned, due
    FROM batuta.post(ns, kin.receivers, kin.message_ids, kin.kinds, kin.names, kin.bodies) p;
END
$$;

-- Close open runs from outside, each with its last entry, and tell their kin. With `over_at`, only those that were to
-- end by then. What is to be cancelled is a job that nobody has begun. closed: those that were, and befores: their states until then; disowned: those of them that had an owner; told, due: as `owned` and `due` of post.
CREATE FUNCTION batuta.close_runs(
    ns text, new_state text, why text, why_children text, run_ids uuid[], heads integer[], kinds text[], ats bigint[],
    crcs bigint[], bodies text[], outcomes text[], over_at bigint,
    OUT closed uuid[], OUT disowned uuid[], OUT told uuid[], OUT due boolean, OUT befores text[]
) LANGUAGE plpgsql AS $$
DECLARE
    tells boolean[] := array_fill(true, ARRAY[cardinality(run_ids)]);
    locked uuid[] := batuta.lock_runs(run_ids || batuta.find_kin(run_ids, tells));
BEGIN
    SELECT array_agg(c.run_id), array_agg(c.run_id) FILTER (WHERE r.owner IS NOT NULL), array_agg(c.outcome),
           array_agg(r.state)
    INTO closed, disowned, outcomes, befores
    FROM unnest(run_ids, heads, outcomes) AS c(run_id, head, outcome)
    CROSS JOIN LATERAL (
        SELECT r.owner, r.state FROM batuta.runs r
        WHERE r.run_id = c.run_id AND r.namespace || '' = ns AND r.head = c.head AND r.closed_at IS NULL
          AND (over_at IS NULL OR ((r.deadline <= over_at OR r.expires_at <= over_at) AND r.paused_at IS NULL))
          AND (new_state <> 'cancelled' OR (r.kind = 'job' AND r.owner IS NULL AND NOT r.signalled)) LIMIT 1
    ) r;
    due := false;
    IF closed IS NULL THEN
        RETURN;
    END IF;
    SELECT k.owned, k.due INTO told, due
    FROM batuta.tell_kin(ns, why_children, closed, outcomes, tells, closed, locked) k;

    UPDATE batuta.runs r
    SET head = r.head + 1, epoch = r.epoch + 1, state = new_state, reason = why, owner = NULL, wake_at = NULL,
        debounce = NULL, paused_at = NULL, resume_at = NULL, closed_at = batuta.batuta_now()
    FROM unnest(closed) AS c(run_id)
    WHERE r.run_id = c.run_id;

    INSERT INTO batuta.journal (namespace, run_id, ord, epoch, kind, at, crc, body)
    SELECT ns, e.run_id, r.head, r.epoch, e.kind, e.at, e.crc, e.body
    FROM unnest(run_ids, kinds, ats, crcs, bodies) AS e(run_id, kind, at, crc, body)
    CROSS JOIN LATERAL (SELECT r.head, r.epoch FROM batuta.runs r WHERE r.run_id = e.run_id LIMIT 1) r
    WHERE (e.run_id IN (SELECT unnest(closed))) IS TRUE;

    due := coalesce(batuta.await_fewer((
        SELECT array_agg(r.parent_run_id)
        FROM unnest(closed) AS c(run_id)
        CROSS JOIN LATERAL (SELECT r.parent_run_id FROM batuta.runs r WHERE r.run_id = c.run_id LIMIT 1) r
        WHERE r.parent_run_id IS NOT NULL)), false) OR coalesce(due, false);
END
$$;

-- A start with a message for whatever run has the id then. outcome: new (the run was inserted), taken (by `receiver`,
-- and it may not be given back), or what send_message says; owner: the receiver's.
CREATE FUNCTION batuta.start_and_send(
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
        EXIT WHEN FOUND;
        SELECT r.run_id, r.state INTO receiver, receiver_state
        FROM batuta.runs r WHERE r.run_id = batuta.current_run(ns, ids[1]);
        IF FOUND AND NOT may_join THEN
            outcome := 'taken';
            RETURN;
        END IF;
        EXIT WHEN FOUND;  -- not found: it was taken a moment ago, and is gone again
    END LOOP;
    SELECT * INTO sent FROM batuta.send_message(ns, receiver, message, message_kind, message_name, content);
    outcome := sent.outcome;
    receiver_state := sent.receiver_state;
    receiver_owner := sent.receiver_owner;
END
$$;

-- Insert the run that follows another of its chain, for each of these that was written (`won`), with its start message.
-- Returns whether one may be claimed now.
CREATE FUNCTION batuta.follow(
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
               -1, -1, 'pending', moment + n.delay, moment,
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
