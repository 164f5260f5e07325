-- Commits a worker's changes: entries, states, messages read, attempts. For a commit with effects on other runs see
-- cross_run_effects.sql.

-- Whether a run must read messages of this kind before it ends by itself in this state. Signals and updates go to the
-- run that follows it; a cancel is for the current code.
CREATE OR REPLACE FUNCTION batuta.must_read(state text, kind text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT state IN ('completed', 'failed', 'cancelled') AND kind IN ('signal', 'update', 'cancel')
        OR state = 'continued' AND kind = 'cancel'
$$;

-- Whether a chain has an unread message that its run must read before this end: no acknowledged message may be lost.
-- Sending one makes a new version of the run's row, so that a statement which waited for the row tests again; and a
-- volatile function takes a new snapshot each time, where the statement itself would still see the inbox from before
-- the wait.
CREATE OR REPLACE FUNCTION batuta.has_unread(chain uuid, state text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM batuta.inbox i
        WHERE i.chain_id = chain AND i.consumed_at IS NULL AND batuta.must_read(state, i.kind));
END
$$;

-- Of locked runs: those that would end by themselves with an unread message, which they do not read now.
CREATE OR REPLACE FUNCTION batuta.find_unread(
    won uuid[], run_ids uuid[], states text[], message_runs uuid[], message_ids text[]
) RETURNS uuid[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(
        SELECT c.run_id
        FROM unnest(run_ids, states) AS c(run_id, state)
        CROSS JOIN LATERAL (
            SELECT r.chain_id FROM batuta.runs r WHERE r.run_id = c.run_id AND r.signalled LIMIT 1
        ) r
        WHERE c.state IS NOT NULL AND (c.run_id IN (SELECT unnest(won))) IS TRUE
          AND EXISTS (
            SELECT FROM batuta.inbox i
            WHERE i.chain_id = r.chain_id AND i.consumed_at IS NULL AND batuta.must_read(c.state, i.kind)
              AND ((c.run_id, i.message_id) IN (SELECT * FROM unnest(message_runs, message_ids))) IS NOT TRUE
            OFFSET 0));
END
$$;

-- Write all changes of a batch whose fence holds; `won` has their run ids, `due` whether one may be claimed now.
-- A run occurs once, and the changes come in order of run_id.
CREATE OR REPLACE FUNCTION batuta.commit_changes(
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
    errors text[], details text[], outsides boolean[], token_sets text[],
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
        SELECT c.run_id, r.closed_at,
               r.epoch = c.epoch AND r.head = c.head AND r.owner IS NOT DISTINCT FROM worker AS mine
        FROM unnest(run_ids, epochs, heads) AS c(run_id, epoch, head)
        CROSS JOIN LATERAL (
            SELECT * FROM batuta.runs r
            WHERE r.run_id = c.run_id AND r.namespace || '' = ns FOR NO KEY UPDATE
        ) r
    )
    SELECT array_agg(l.run_id) INTO won FROM locked l WHERE l.mine AND l.closed_at IS NULL;

    IF states && ARRAY['completed', 'failed', 'cancelled', 'continued'] THEN
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
        outsides, token_sets);
END
$$;

-- Write the changes of runs that are locked and whose fence held (`won`). Returns whether one may be claimed now.
CREATE OR REPLACE FUNCTION batuta.write_changes(
    ns text, won uuid[],
    run_ids uuid[], new_heads integer[], states text[], wakes bigint[], reasons text[], fingerprints text[],
    entry_runs uuid[], entry_epochs integer[], ords integer[], entry_kinds text[], ats bigint[], crcs bigint[],
    bodies text[], message_runs uuid[], message_ids text[], attempt_runs uuid[], seqs integer[], numbers integer[],
    starts bigint[], ends bigint[], nexts bigint[], errors text[], details text[], outsides boolean[],
    token_sets text[],
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
        IF EXISTS (SELECT FROM unnest(message_ids) AS m(message_id) WHERE starts_with(m.message_id, 'beat:')) THEN
            -- Nobody sends a heartbeat again, so that its id need not be known.
            DELETE FROM batuta.inbox i
            USING (
                SELECT r.chain_id, m.message_id
                FROM unnest(message_runs, message_ids) AS m(run_id, message_id)
                CROSS JOIN LATERAL (SELECT r.chain_id FROM batuta.runs r WHERE r.run_id = m.run_id OFFSET 0) r
                WHERE (m.run_id IN (SELECT unnest(won))) IS TRUE AND starts_with(m.message_id, 'beat:')
                OFFSET 0
            ) m
            WHERE i.chain_id = m.chain_id AND i.message_id = m.message_id AND i.kind = 'activity';
        END IF;
    END IF;

    IF cardinality(attempt_runs) > 0 THEN
        INSERT INTO batuta.attempts AS a (
            namespace, run_id, seq, number, started_at, ended_at, next_at, error, details, outside, tokens)
        SELECT ns, t.*
        FROM unnest(attempt_runs, seqs, numbers, starts, ends, nexts, errors, details, outsides, token_sets)
             AS t(run_id, seq, number, started_at, ended_at, next_at, error, details, outside, tokens)
        WHERE (t.run_id IN (SELECT unnest(won))) IS TRUE
        ON CONFLICT (run_id, seq, number) DO UPDATE
        SET started_at = excluded.started_at, ended_at = excluded.ended_at, next_at = excluded.next_at,
            error = excluded.error, details = excluded.details, outside = excluded.outside,
            tokens = coalesce(excluded.tokens, a.tokens);
        IF EXISTS (SELECT FROM unnest(numbers) AS t(number) WHERE t.number > 100) THEN  -- see records.Attempt
            DELETE FROM batuta.attempts a
            USING unnest(attempt_runs, seqs, numbers) AS t(run_id, seq, number)
            WHERE (t.run_id IN (SELECT unnest(won))) IS TRUE AND t.number > 100
              AND a.run_id = t.run_id AND a.seq = t.seq AND a.number = t.number - 90;
        END IF;
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
    due := coalesce(batuta.await_fewer(ns, parents), false) OR due;
END
$$;
