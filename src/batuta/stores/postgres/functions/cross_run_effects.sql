-- Commits changes with effects on other runs: messages, children, starts, published values.
--
-- Every function first locks all rows that it will touch, in order of run_id, then tests and writes; it takes the ids
-- of new runs after that, in order too. So two of them never wait for each other. When a row changed between the look
-- and the lock, the function raises a serialisation failure, and the caller tries again.

-- Runs that would end by themselves while another change of the batch sends them a message that they must read first:
-- those are not written. `targets` are the current runs of the ids that the messages go to.
CREATE OR REPLACE FUNCTION batuta.hold_back(
    won uuid[], durable uuid[], run_ids uuid[], states text[], senders uuid[], targets uuid[], sent_ids text[],
    send_kinds text[]
) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    pair record;
    held uuid[] := '{}';
BEGIN
    FOR pair IN
        SELECT DISTINCT s.target, s.sender
        FROM unnest(senders, targets, sent_ids, send_kinds) AS s(sender, target, message_id, kind)
        CROSS JOIN LATERAL (SELECT r.chain_id FROM batuta.runs r WHERE r.run_id = s.target LIMIT 1) t
        WHERE s.kind IN ('signal', 'update', 'cancel') AND s.sender <> s.target
          AND (s.target IN (SELECT unnest(won))) IS TRUE AND (s.sender IN (SELECT unnest(durable))) IS TRUE
          AND (s.target IN (
              SELECT c.run_id FROM unnest(run_ids, states) AS c(run_id, state)
              WHERE batuta.must_read(c.state, s.kind))) IS TRUE
          AND NOT EXISTS (
              SELECT FROM batuta.inbox i WHERE i.chain_id = t.chain_id AND i.message_id = s.message_id OFFSET 0)
        ORDER BY s.target
    LOOP
        -- One by one: a message of a change that is itself not written prevents no end.
        IF pair.target <> ALL (held) AND pair.sender <> ALL (held) THEN
            held := held || pair.target;
        END IF;
    END LOOP;
    RETURN held;
END
$$;

-- Children whose id is taken, and messages whose receiver does not exist or is closed, `ending` ones included: parallel
-- arrays. An existing child or message was accepted before.
CREATE OR REPLACE FUNCTION batuta.find_refused(
    durable uuid[], ending uuid[], run_ids uuid[], states text[],
    new_ids uuid[], makers uuid[], parent_seqs integer[], ids text[], holders uuid[],
    senders uuid[], send_seqs integer[], send_ids text[], sent_ids text[], targets uuid[],
    OUT refused uuid[], OUT seqs integer[], OUT refused_ids text[], OUT errors text[], OUT refused_states text[],
    OUT refused_holders text[]
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT array_agg(f.maker), array_agg(f.seq), array_agg(f.id), array_agg(f.error), array_agg(f.state),
           array_agg(f.of)
    INTO refused, seqs, refused_ids, errors, refused_states, refused_holders
    FROM (
        SELECT s.maker, coalesce(s.seq, 0) AS seq, s.id, 'AlreadyStarted' AS error, t.state, t.of
        FROM unnest(new_ids, makers, parent_seqs, ids, holders) AS s(run_id, maker, seq, id, holder)
        LEFT JOIN LATERAL (
            SELECT r.state, r.kind || ' ' || r.name AS of FROM batuta.runs r WHERE r.run_id = s.holder LIMIT 1
        ) t ON true
        WHERE s.run_id <> s.maker AND s.holder IS DISTINCT FROM s.run_id
          AND (s.maker IN (SELECT unnest(durable))) IS TRUE
          AND NOT EXISTS (SELECT FROM batuta.runs r WHERE r.run_id = s.run_id OFFSET 0)
        UNION ALL
        SELECT s.sender, s.seq, s.id, CASE WHEN s.target IS NULL THEN 'UnknownRun' ELSE 'RunClosed' END,
               CASE WHEN t.closed_at IS NOT NULL THEN t.state ELSE (
                   SELECT c.state FROM unnest(run_ids, states) AS c(run_id, state) WHERE c.run_id = s.target) END,
               NULL
        FROM unnest(senders, send_seqs, send_ids, sent_ids, targets) AS s(sender, seq, id, message_id, target)
        LEFT JOIN LATERAL (
            SELECT r.chain_id, r.state, r.closed_at FROM batuta.runs r WHERE r.run_id = s.target LIMIT 1
        ) t ON true
        WHERE (s.sender IN (SELECT unnest(durable))) IS TRUE
          AND (s.target IS NULL OR t.closed_at IS NOT NULL OR (s.target IN (SELECT unnest(ending))) IS TRUE)
          AND NOT EXISTS (
              SELECT FROM batuta.inbox i WHERE i.chain_id = t.chain_id AND i.message_id = s.message_id OFFSET 0)
    ) f;
END
$$;

-- Of messages that go to these runs: those that their chain, or another one that had their id before, has ever had.
CREATE OR REPLACE FUNCTION batuta.taken_before(ns text, message_ids text[], targets uuid[]) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(
        SELECT a.message_id
        FROM unnest(message_ids, targets) AS a(message_id, target)
        CROSS JOIN LATERAL (SELECT r.id, r.chain_id FROM batuta.runs r WHERE r.run_id = a.target LIMIT 1) t
        WHERE EXISTS (
                SELECT FROM batuta.inbox i WHERE i.chain_id = t.chain_id AND i.message_id = a.message_id OFFSET 0)
           OR EXISTS (
                SELECT FROM batuta.runs e
                CROSS JOIN LATERAL (
                    SELECT FROM batuta.inbox i
                    WHERE i.chain_id = e.chain_id AND i.message_id = a.message_id LIMIT 1
                ) i
                WHERE e.id = t.id AND e.namespace || '' = ns AND NOT e.current OFFSET 0));
END
$$;

-- Upsert the outputs of runs that are written. Returns the chains that were answered.
CREATE OR REPLACE FUNCTION batuta.write_outputs(
    ns text, won uuid[], run_ids uuid[], kinds text[], names text[], ords integer[], ats bigint[], results text[],
    errors text[], OUT answered uuid[]
) LANGUAGE plpgsql AS $$
BEGIN
    WITH made AS MATERIALIZED (
        SELECT o.*, r.chain_id
        FROM unnest(run_ids, kinds, names, ords, ats, results, errors) AS o(run_id, kind, name, ord, at, value, error)
        CROSS JOIN LATERAL (SELECT r.chain_id FROM batuta.runs r WHERE r.run_id = o.run_id LIMIT 1) r
        WHERE (o.run_id IN (SELECT unnest(won))) IS TRUE
    ), written AS (
        INSERT INTO batuta.outputs (namespace, run_id, kind, name, ord, at, value, error)
        SELECT ns, CASE WHEN m.kind = 'answer' THEN m.chain_id ELSE m.run_id END, m.kind, m.name, m.ord, m.at, m.value,
               m.error
        FROM made m
        ON CONFLICT (run_id, kind, name) DO UPDATE
        SET ord = excluded.ord, at = excluded.at, value = excluded.value, error = excluded.error
    )
    SELECT array_agg(DISTINCT m.chain_id) INTO answered FROM made m WHERE m.kind = 'answer';
END
$$;

-- Put the messages that go to open runs into their inboxes; see post.
CREATE OR REPLACE FUNCTION batuta.deliver(
    ns text, durable uuid[], ending uuid[], locked uuid[], senders uuid[], targets uuid[], sent_ids text[],
    send_kinds text[], send_names text[], send_bodies text[], OUT owned uuid[], OUT due boolean
) LANGUAGE plpgsql AS $$
DECLARE
    mail record;
BEGIN
    SELECT array_agg(s.target ORDER BY s.n) AS receivers, array_agg(s.message_id ORDER BY s.n) AS message_ids,
           array_agg(s.kind ORDER BY s.n) AS kinds, array_agg(s.name ORDER BY s.n) AS names,
           array_agg(s.body ORDER BY s.n) AS bodies
    INTO mail
    FROM unnest(senders, targets, sent_ids, send_kinds, send_names, send_bodies) WITH ORDINALITY
         AS s(sender, target, message_id, kind, name, body, n)
    WHERE (s.sender IN (SELECT unnest(durable))) IS TRUE AND (s.target IN (SELECT unnest(ending))) IS NOT TRUE
      AND EXISTS (SELECT FROM batuta.runs r WHERE r.run_id = s.target AND r.closed_at IS NULL OFFSET 0);
    PERFORM batuta.must_be_locked(mail.receivers, locked);
    SELECT p.owned, p.due INTO owned, due
    FROM batuta.post(ns, mail.receivers, mail.message_ids, mail.kinds, mail.names, mail.bodies) p;
END
$$;

-- Starts of a batch that may be written: by a live worker, the id seems to be free, and the queue lets runs begin at
-- once. The first of two that want one.
CREATE OR REPLACE FUNCTION batuta.find_starts(
    ns text, worker text, new_ids uuid[], makers uuid[], ids text[], queues text[], renewals bigint[], holders uuid[]
) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    moment bigint := batuta.batuta_now();
    shut text[] := batuta.shut_queues(ns, queues);
BEGIN
    PERFORM 1 FROM batuta.workers w
    WHERE w.namespace = ns AND w.worker_id = worker AND w.lease_until > moment;
    IF NOT FOUND THEN
        RETURN '{}';
    END IF;
    RETURN ARRAY(
        SELECT DISTINCT ON (s.id) s.run_id
        FROM unnest(new_ids, makers, ids, queues, renewals, holders) AS s(run_id, maker, id, queue, renewal, holder)
        WHERE s.run_id = s.maker AND s.queue <> ALL (shut)
          AND (s.holder IS NULL OR EXISTS (
              SELECT FROM batuta.runs r
              WHERE r.run_id = s.holder AND r.closed_at IS NOT NULL AND r.created_at + s.renewal <= moment OFFSET 0))
          AND NOT EXISTS (SELECT FROM batuta.runs r WHERE r.run_id = s.run_id OFFSET 0)
        ORDER BY s.id);
END
$$;

-- Write the changes of a batch of which some have effects on other runs. A run occurs once; new runs, those started by
-- the worker itself (their maker is themselves) and children, come in order of their ids.
--
-- Changes of one batch have no order between them: starts and children come first, then messages, which see which runs
-- close here, then everything that a run does to itself. A run does not end by itself while another change sends it a
-- signal.
CREATE OR REPLACE FUNCTION batuta.commit_beyond(
    ns text, worker text, why_children text,
    -- as in commit_changes
    run_ids uuid[], epochs integer[], heads integer[], new_heads integer[],
    states text[], wakes bigint[], reasons text[], fingerprints text[],
    entry_runs uuid[], entry_epochs integer[], ords integer[], entry_kinds text[], ats bigint[], crcs bigint[],
    bodies text[],
    message_runs uuid[], message_ids text[],
    attempt_runs uuid[], seqs integer[], numbers integer[], starts bigint[], ends bigint[], nexts bigint[],
    errors text[], details text[], outsides boolean[], token_sets text[],
    -- new runs, as in insert_runs, and the JSON of their start messages
    new_ids uuid[], ids text[], renewals bigint[], chain_ids uuid[], kinds text[], names text[], codes text[],
    queues text[], priorities integer[], versions text[], tag_sets text[], memos text[], timeouts bigint[],
    execution_timeouts bigint[], parents uuid[], parent_seqs integer[], policies text[], flow_keys text[],
    expiries bigint[], new_epochs integer[], first_heads integer[], new_states text[], new_wakes bigint[], delays bigint[],
    new_reasons text[], new_fingerprints text[], makers uuid[], start_bodies text[],
    -- what closes, other than alone
    closers uuid[], outcomes text[], tells boolean[],
    -- messages to other runs
    senders uuid[], send_seqs integer[], send_ids text[], sent_ids text[], send_kinds text[], send_names text[],
    send_bodies text[], sends_again boolean[],
    -- outputs
    output_runs uuid[], output_kinds text[], output_names text[], output_ords integer[], output_ats bigint[],
    output_values text[], output_errors text[],
    -- what follows runs that are continued
    before_ids uuid[], next_ids uuid[], next_names text[], next_codes text[], next_queues text[], next_versions text[],
    next_delays bigint[], next_timeouts bigint[], next_execution_timeouts bigint[], next_bodies text[],
    -- written now, written before, not written because of unread messages
    OUT won uuid[], OUT again uuid[], OUT unread uuid[],
    -- children and messages that were not taken
    OUT refused uuid[], OUT refused_seqs integer[], OUT refused_ids text[], OUT refused_errors text[],
    OUT refused_states text[], OUT refused_holders text[],
    -- whether something may be claimed now, owned runs that were sent something, chains that were answered
    OUT due boolean, OUT told uuid[], OUT answered uuid[]
) LANGUAGE plpgsql AS $$
DECLARE
    closed_states CONSTANT text[] := '{completed,failed,timed_out,cancelled,terminated,continued}';
    locked uuid[];
    begun uuid[];
    fresh uuid[];
    durable uuid[];
    leaving uuid[];
    ending uuid[];
    targets uuid[] := batuta.current_runs(ns, send_ids);
    holders uuid[];
    taken text[];
    got record;
BEGIN
    locked := batuta.lock_runs(
        ns, run_ids || parents || targets || batuta.find_kin(closers, tells) || batuta.current_runs(ns, ARRAY(
            SELECT n.id FROM unnest(ids, renewals) AS n(id, renewal) WHERE n.renewal IS NOT NULL)));

    -- Changes whose fence holds: of existing runs, starts that were written before, and new ones.
    SELECT coalesce(array_agg(c.run_id) FILTER (WHERE r.mine), '{}'),
           coalesce(array_agg(c.run_id) FILTER (
               WHERE NOT r.mine AND r.head = c.new_head
                 AND r.owner IS NOT DISTINCT FROM CASE WHEN c.state IS NULL THEN worker END), '{}')
    INTO won, again
    FROM unnest(run_ids, epochs, heads, new_heads, states) AS c(run_id, epoch, head, new_head, state)
    CROSS JOIN LATERAL (
        SELECT r.head, r.owner,
               r.head = c.head AND r.closed_at IS NULL AND r.owner IS NOT DISTINCT FROM worker AS mine
        FROM batuta.runs r
        WHERE r.run_id = c.run_id AND r.namespace || '' = ns AND r.epoch = c.epoch LIMIT 1
    ) r;
    again := again || ARRAY(
        SELECT s.run_id
        FROM unnest(new_ids, makers, new_epochs, first_heads) AS s(run_id, maker, epoch, head)
        WHERE s.run_id = s.maker AND EXISTS (
            SELECT FROM batuta.runs r
            WHERE r.run_id = s.run_id AND r.namespace || '' = ns AND r.epoch = s.epoch AND r.head >= s.head OFFSET 0));
    -- Another's entry at the same place is not ours.
    IF cardinality(again) > 0 THEN
        again := batuta.except_for(again, ARRAY(
            SELECT e.run_id FROM unnest(entry_runs, ords, crcs) AS e(run_id, ord, crc)
            WHERE (e.run_id IN (SELECT unnest(again))) IS TRUE AND NOT EXISTS (
                SELECT FROM batuta.journal j WHERE j.run_id = e.run_id AND j.ord = e.ord AND j.crc = e.crc OFFSET 0)));
    END IF;
    begun := batuta.find_starts(ns, worker, new_ids, makers, ids, queues, renewals, batuta.current_runs(ns, ids));
    -- A message that was accepted before is not sent to the run that has the id now: a message without a sender is
    -- ignored.
    IF cardinality(again) > 0 OR true = ANY (sends_again) THEN
        SELECT array_agg(s.message_id) AS message_ids, array_agg(s.target) AS targets INTO got
        FROM unnest(senders, sent_ids, sends_again, targets) AS s(sender, message_id, resent, target)
        WHERE s.resent OR (s.sender IN (SELECT unnest(again))) IS TRUE;
        taken := batuta.taken_before(ns, got.message_ids, got.targets);
        senders := ARRAY(
            SELECT CASE WHEN (s.message_id IN (SELECT unnest(taken))) IS TRUE THEN NULL ELSE s.sender END
            FROM unnest(senders, sent_ids) WITH ORDINALITY AS s(sender, message_id, n) ORDER BY s.n);
    END IF;

    -- Runs that may not close yet.
    unread := batuta.find_unread(won, run_ids, states, message_runs, message_ids) || ARRAY(
        SELECT s.run_id
        FROM unnest(new_ids, chain_ids, new_states) AS s(run_id, chain_id, state)
        WHERE s.state IS NOT NULL AND (s.run_id IN (SELECT unnest(begun))) IS TRUE
          AND s.chain_id IS NOT NULL AND batuta.has_unread(s.chain_id, s.state));
    won := batuta.except_for(won, unread);
    begun := batuta.except_for(begun, unread);
    unread := unread || batuta.hold_back(
        won, won || again || begun, run_ids, states, senders, batuta.current_runs(ns, send_ids), sent_ids, send_kinds);
    won := batuta.except_for(won, unread);
    durable := won || again || begun;

    -- Starts and children.
    fresh := ARRAY(
        SELECT s.started FROM batuta.insert_runs(
            ns, worker, new_ids, ids, renewals, chain_ids, kinds, names, codes, queues, priorities, versions, tag_sets,
            memos, timeouts, execution_timeouts, parents, parent_seqs, policies, flow_keys, expiries, new_epochs,
            first_heads, new_states, new_wakes, delays, new_reasons, new_fingerprints, makers, durable) s);
    PERFORM batuta.must_be_locked(begun, fresh);  -- an id was taken while we looked
    won := won || begun;
    locked := locked || fresh;
    due := cardinality(fresh) > cardinality(begun);
    INSERT INTO batuta.inbox (namespace, chain_id, message_id, kind, name, body, at)
    SELECT ns, coalesce(s.chain_id, s.run_id), 'start:' || s.run_id, 'start', s.name, s.body, batuta.batuta_now()
    FROM unnest(new_ids, makers, chain_ids, names, start_bodies) AS s(run_id, maker, chain_id, name, body)
    WHERE s.run_id <> s.maker AND (s.run_id IN (SELECT unnest(fresh))) IS TRUE;

    -- A closing run no longer counts for parents, children and messages, unless another run follows.
    leaving := ARRAY(
        SELECT c.run_id FROM unnest(run_ids, states) AS c(run_id, state)
        WHERE c.state = ANY (closed_states) AND (c.run_id IN (SELECT unnest(won))) IS TRUE);
    ending := batuta.except_for(leaving, before_ids);
    targets := batuta.current_runs(ns, send_ids);
    holders := batuta.current_runs(ns, ids);
    SELECT f.refused, f.seqs, f.refused_ids, f.errors, f.refused_states, f.refused_holders
    INTO refused, refused_seqs, refused_ids, refused_errors, refused_states, refused_holders
    FROM batuta.find_refused(
        durable, ending, run_ids, states, new_ids, makers, parent_seqs, ids, holders, senders, send_seqs, send_ids,
        sent_ids, targets) f;

    -- Messages go into inboxes before any eviction: an eviction checks its inbox last.
    IF cardinality(senders) > 0 THEN
        SELECT * INTO got FROM batuta.deliver(
            ns, durable, ending, locked, senders, targets, sent_ids, send_kinds, send_names, send_bodies);
        told := got.owned;
        due := due OR got.due;
    END IF;
    IF cardinality(closers) > 0 THEN
        SELECT k.owned, k.due INTO got
        FROM (
            SELECT array_agg(c.run_id) AS closers, array_agg(c.outcome) AS outcomes, array_agg(c.tell) AS tells
            FROM unnest(closers, outcomes, tells) AS c(run_id, outcome, tell)
            WHERE (c.run_id IN (SELECT unnest(won))) IS TRUE
        ) c, batuta.tell_kin(ns, why_children, c.closers, c.outcomes, c.tells, ending, locked) k;
        told := told || got.owned;
        due := due OR got.due;
    END IF;
    IF cardinality(output_runs) > 0 THEN
        answered := batuta.write_outputs(
            ns, won, output_runs, output_kinds, output_names, output_ords, output_ats, output_values, output_errors);
    END IF;
    due := batuta.write_changes(
        ns, won, run_ids, new_heads, states, wakes, reasons, fingerprints, entry_runs, entry_epochs, ords, entry_kinds,
        ats, crcs, bodies, message_runs, message_ids, attempt_runs, seqs, numbers, starts, ends, nexts, errors, details,
        outsides, token_sets) OR due;
    IF cardinality(before_ids) > 0 THEN
        due := batuta.follow(
            ns, won, before_ids, next_ids, next_names, next_codes, next_queues, next_versions, next_delays,
            next_timeouts, next_execution_timeouts, next_bodies) OR due;
    END IF;
END
$$;
