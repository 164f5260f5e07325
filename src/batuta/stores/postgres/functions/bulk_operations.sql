-- Pauses, resumes and cancels many runs at once.

-- Whether a PAUSE waits in the inbox of a chain. VOLATILE: its own snapshot sees what came before the run's lock.
CREATE OR REPLACE FUNCTION batuta.has_pause(chain uuid) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM batuta.inbox i WHERE i.chain_id = chain AND i.consumed_at IS NULL AND i.kind = 'pause' OFFSET 0);
END
$$;

-- Mark the PAUSE messages of these chains as read.
CREATE OR REPLACE FUNCTION batuta.read_pauses(chains uuid[], moment bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE batuta.inbox i SET consumed_at = moment
    FROM (
        SELECT p.chain_id, p.message_id
        FROM unnest(chains) AS c(chain_id)
        CROSS JOIN LATERAL (
            SELECT p.chain_id, p.message_id FROM batuta.inbox p
            WHERE p.chain_id = c.chain_id AND p.consumed_at IS NULL AND p.kind = 'pause' OFFSET 0
        ) p
        OFFSET 0
    ) p
    WHERE i.chain_id = p.chain_id AND i.message_id = p.message_id;
END
$$;

-- The owners of these runs release them. Runs with a PAUSE in the inbox become paused, and read it; runs that were
-- resumed meanwhile go on instead. Returns their new states.
CREATE OR REPLACE FUNCTION batuta.hold(won uuid[], run_ids uuid[], new_heads integer[], states text[])
RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    moment bigint := batuta.batuta_now();
    held uuid[];
    chains uuid[];
BEGIN
    SELECT array_agg(c.run_id), array_agg(r.chain_id) INTO held, chains
    FROM unnest(run_ids, states) AS c(run_id, state)
    CROSS JOIN LATERAL (SELECT r.chain_id FROM batuta.runs r WHERE r.run_id = c.run_id LIMIT 1) r
    WHERE c.state = 'paused' AND (c.run_id IN (SELECT unnest(won))) IS TRUE AND batuta.has_pause(r.chain_id);
    PERFORM batuta.read_pauses(chains, moment);
    RETURN ARRAY(
        SELECT CASE WHEN c.state IS DISTINCT FROM 'paused' OR (c.run_id IN (SELECT unnest(held))) IS TRUE THEN c.state
                    WHEN c.head < 0 THEN 'pending' ELSE 'waiting' END
        FROM unnest(run_ids, new_heads, states) WITH ORDINALITY AS c(run_id, head, state, n) ORDER BY c.n);
END
$$;

-- Pause runs: unowned ones at once, the others by a message to their owner. held: all of them; told: the latter.
CREATE OR REPLACE FUNCTION batuta.pause_runs(
    ns text, wanted uuid[], actor text, verb text, why text, detail text, act_before text, act_after text,
    OUT held uuid[], OUT told uuid[]
) LANGUAGE plpgsql AS $$
DECLARE
    moment bigint;
    them record;
BEGIN
    PERFORM batuta.lock_runs(ns, wanted);
    moment := batuta.batuta_now();
    SELECT array_agg(w.run_id ORDER BY w.n) AS run_ids, array_agg(r.id ORDER BY w.n) AS ids,
           array_agg(batuta.state_json(r.state) ORDER BY w.n) AS befores,
           array_agg(batuta.state_json(CASE WHEN r.owner IS NULL THEN 'paused' ELSE r.state END) ORDER BY w.n) AS afters,
           array_agg(w.run_id) FILTER (WHERE r.owner IS NULL) AS idle,
           array_agg(r.chain_id) FILTER (WHERE r.owner IS NULL) AS idle_chains,
           array_agg(w.run_id) FILTER (WHERE r.owner IS NOT NULL) AS busy,
           array_agg(r.chain_id) FILTER (WHERE r.owner IS NOT NULL) AS busy_chains
    INTO them
    FROM unnest(wanted) WITH ORDINALITY AS w(run_id, n)
    CROSS JOIN LATERAL (
        SELECT r.id, r.chain_id, r.state, r.owner FROM batuta.runs r
        WHERE r.run_id = w.run_id AND r.namespace || '' = ns AND r.closed_at IS NULL AND r.state <> 'paused' LIMIT 1
    ) r
    WHERE r.owner IS NULL OR NOT batuta.has_pause(r.chain_id);
    held := them.run_ids;
    told := them.busy;
    PERFORM batuta.read_pauses(them.idle_chains, moment);
    -- One that is parked is tried again when it goes on.
    UPDATE batuta.runs r
    SET state = 'paused', reason = why, paused_at = moment, wake_at = NULL, debounce = NULL,
        resume_at = CASE WHEN r.state IN ('needs_code', 'poisoned') THEN moment ELSE r.wake_at END,
        deaths = CASE WHEN r.state IN ('needs_code', 'poisoned') THEN 0 ELSE r.deaths END,
        failed_code = CASE WHEN r.state IN ('needs_code', 'poisoned') THEN '{}' ELSE r.failed_code END
    FROM unnest(them.idle) AS i(run_id) WHERE r.run_id = i.run_id;
    INSERT INTO batuta.inbox (namespace, chain_id, message_id, kind, name, body, at)
    SELECT ns, b.chain_id, 'pause:' || 1 + (
               SELECT count(*) FROM batuta.inbox i
               WHERE i.chain_id = b.chain_id AND i.message_id >= 'pause:' AND i.message_id < 'pause;'),
           'pause', why, 'null', moment
    FROM unnest(them.busy_chains) AS b(chain_id);
    PERFORM batuta.record_acts(
        ns, actor, verb, why, detail, act_before, act_after, them.ids, them.run_ids::text[], them.befores, them.afters,
        moment);
END
$$;

COMMENT ON FUNCTION batuta.pause_runs IS 'Holds runs; nothing makes a paused run due, times it out or lets it expire';

-- Record how long these runs were paused, as attempts of command 0, which does not exist: activities do not count that
-- time. Activities that wait for an outside answer get as much more of it.
CREATE OR REPLACE FUNCTION batuta.note_pauses(run_ids uuid[], since bigint[], moment bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE batuta.attempts a SET next_at = a.next_at + (moment - p.paused_at)
    FROM (
        SELECT o.run_id, o.seq, o.number, p.paused_at
        FROM unnest(run_ids, since) AS p(run_id, paused_at)
        CROSS JOIN LATERAL (
            SELECT o.run_id, o.seq, o.number FROM batuta.attempts o
            WHERE o.run_id = p.run_id AND o.outside AND o.ended_at IS NULL AND o.next_at IS NOT NULL OFFSET 0
        ) o
        OFFSET 0
    ) p
    WHERE a.run_id = p.run_id AND a.seq = p.seq AND a.number = p.number;
    INSERT INTO batuta.attempts (run_id, seq, number, namespace, started_at, ended_at)
    SELECT p.run_id, 0, 1 + n.before, n.namespace, p.paused_at, moment
    FROM unnest(run_ids, since) AS p(run_id, paused_at)
    CROSS JOIN LATERAL (
        SELECT r.namespace, (
                   SELECT count(*) FROM batuta.attempts o
                   WHERE o.run_id = p.run_id AND o.seq = 0 AND o.number > 0)::integer AS before
        FROM batuta.runs r WHERE r.run_id = p.run_id LIMIT 1
    ) n;
END
$$;

-- Resume runs. resumed: all of them; told: those whose owners have not released them yet.
CREATE OR REPLACE FUNCTION batuta.resume_runs(
    ns text, wanted uuid[], actor text, verb text, why text, detail text, act_before text, act_after text,
    OUT resumed uuid[], OUT told uuid[]
) LANGUAGE plpgsql AS $$
DECLARE
    moment bigint;
    them record;
BEGIN
    -- Only the affected ones: the others, whose owners may be writing entries, are not waited for. Row and inbox in one
    -- snapshot (has_pause has its own): an owner that releases in between would leave them in neither.
    wanted := ARRAY(
        SELECT w.run_id
        FROM unnest(wanted) WITH ORDINALITY AS w(run_id, n)
        CROSS JOIN LATERAL (
            SELECT r.state, r.chain_id FROM batuta.runs r WHERE r.run_id = w.run_id AND r.closed_at IS NULL LIMIT 1
        ) r
        WHERE r.state = 'paused' OR EXISTS (
            SELECT FROM batuta.inbox i
            WHERE i.chain_id = r.chain_id AND i.consumed_at IS NULL AND i.kind = 'pause' OFFSET 0)
        ORDER BY w.n);
    PERFORM batuta.lock_runs(ns, wanted);
    moment := batuta.batuta_now();
    SELECT array_agg(w.run_id ORDER BY w.n) AS run_ids, array_agg(r.id ORDER BY w.n) AS ids,
           array_agg(r.chain_id) AS chains, array_agg(batuta.state_json(r.state) ORDER BY w.n) AS befores,
           array_agg(batuta.state_json(CASE WHEN r.state <> 'paused' THEN r.state WHEN r.head < 0 THEN 'pending'
                                            ELSE 'waiting' END) ORDER BY w.n) AS afters,
           array_agg(w.run_id) FILTER (WHERE r.state = 'paused') AS paused,
           array_agg(w.run_id) FILTER (WHERE r.state = 'paused' AND (r.head >= 0 OR r.kind <> 'job')) AS noted,
           array_agg(r.paused_at) FILTER (WHERE r.state = 'paused' AND (r.head >= 0 OR r.kind <> 'job')) AS since,
           array_agg(w.run_id) FILTER (WHERE r.owner IS NOT NULL) AS busy
    INTO them
    FROM unnest(wanted) WITH ORDINALITY AS w(run_id, n)
    CROSS JOIN LATERAL (
        SELECT r.id, r.chain_id, r.state, r.head, r.owner, r.kind, r.paused_at FROM batuta.runs r
        WHERE r.run_id = w.run_id AND r.namespace || '' = ns AND r.closed_at IS NULL LIMIT 1
    ) r
    WHERE r.state = 'paused' OR batuta.has_pause(r.chain_id);
    resumed := them.run_ids;
    told := them.busy;
    PERFORM batuta.read_pauses(them.chains, moment);
    PERFORM batuta.note_pauses(them.noted, them.since, moment);
    UPDATE batuta.runs r
    SET state = CASE WHEN r.head < 0 THEN 'pending' ELSE 'waiting' END, reason = '', paused_at = NULL, resume_at = NULL,
        deadline = r.deadline + (moment - r.paused_at), expires_at = r.expires_at + (moment - r.paused_at),
        wake_at = CASE
            WHEN EXISTS (
                SELECT FROM batuta.inbox i
                WHERE i.chain_id = r.chain_id AND i.consumed_at IS NULL
                  AND (r.head >= 0 OR i.kind IN ('cancel', 'terminate')) OFFSET 0) THEN moment
            WHEN r.head >= 0 OR r.awaits > 0 THEN r.resume_at
            ELSE coalesce(r.resume_at, moment) END
    FROM unnest(them.paused) AS p(run_id) WHERE r.run_id = p.run_id;
    PERFORM batuta.record_acts(
        ns, actor, verb, why, detail, act_before, act_after, them.ids, them.run_ids::text[], them.befores, them.afters,
        moment);
END
$$;

COMMENT ON FUNCTION batuta.resume_runs IS 'Lets paused runs go on; deadline and expiry are later by as long as they were';

-- Ask open runs to end. asked: those that were not asked before; told: those of them that have an owner; due: whether
-- one may be claimed now.
CREATE OR REPLACE FUNCTION batuta.cancel_runs(
    ns text, wanted uuid[], reason text, actor text, verb text, why text, detail text, act_before text, act_after text,
    OUT asked uuid[], OUT told uuid[], OUT due boolean
) LANGUAGE plpgsql AS $$
DECLARE
    them record;
    got record;
BEGIN
    PERFORM batuta.lock_runs(ns, wanted);
    SELECT array_agg(w.run_id ORDER BY w.n) AS run_ids, array_agg(r.id ORDER BY w.n) AS ids,
           array_agg(batuta.state_json(r.state) ORDER BY w.n) AS states,
           array_agg('cancel:' || w.run_id ORDER BY w.n) AS message_ids, array_agg('cancel'::text) AS kinds,
           array_agg(reason) AS names, array_agg('null'::text) AS bodies
    INTO them
    FROM unnest(wanted) WITH ORDINALITY AS w(run_id, n)
    CROSS JOIN LATERAL (
        SELECT r.id, r.chain_id, r.state FROM batuta.runs r
        WHERE r.run_id = w.run_id AND r.namespace || '' = ns AND r.closed_at IS NULL LIMIT 1
    ) r
    WHERE NOT EXISTS (
        SELECT FROM batuta.inbox i WHERE i.chain_id = r.chain_id AND i.message_id = 'cancel:' || w.run_id OFFSET 0);
    asked := them.run_ids;
    SELECT p.owned, p.due INTO told, due
    FROM batuta.post(ns, them.run_ids, them.message_ids, them.kinds, them.names, them.bodies) p;
    PERFORM batuta.record_acts(
        ns, actor, verb, why, detail, act_before, act_after, them.ids, them.run_ids::text[], them.states, them.states,
        batuta.batuta_now());
END
$$;
