-- Dead letters: runs that were given up, and wait for a person.

CREATE TABLE batuta.dead_letters (
    run_id      uuid    NOT NULL PRIMARY KEY,
    at          bigint  NOT NULL,
    resolved_at bigint,
    successor   uuid,
    seq         integer NOT NULL,
    attempts    integer NOT NULL,
    keep        integer NOT NULL,
    namespace   text COLLATE "C" NOT NULL,
    state       text COLLATE "C" NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'reprocessed', 'discarded')),
    fingerprint text COLLATE "C" NOT NULL,
    id          text COLLATE "C" NOT NULL,
    kind        text COLLATE "C" NOT NULL,
    name        text COLLATE "C" NOT NULL,
    queue       text COLLATE "C" NOT NULL,
    flow_key    text COLLATE "C" NOT NULL,
    reason      text COLLATE "C" NOT NULL,
    error       text COLLATE "C" NOT NULL,
    activity    text COLLATE "C" NOT NULL,
    trace       text    NOT NULL,
    note        text    NOT NULL DEFAULT '',
    message     text    NOT NULL
);

COMMENT ON TABLE batuta.dead_letters IS 'One row per run that was given up. Counted in letter_groups: see resolve_letters.';
COMMENT ON COLUMN batuta.dead_letters.keep IS 'The last journal entry before the failure';
COMMENT ON COLUMN batuta.dead_letters.note IS 'Why it was discarded';
COMMENT ON COLUMN batuta.dead_letters.successor IS 'The run that it was reprocessed by';

-- Those for lists have a word of their own for the namespace: on a small table the planner would take them for any query
-- that names one, and the plan would stay when the table has grown.
CREATE INDEX dead_letters_newest ON batuta.dead_letters ((namespace || ':'), state, at, run_id);
CREATE INDEX dead_letters_alike ON batuta.dead_letters (namespace, fingerprint, state, at, run_id);

CREATE TABLE batuta.letter_groups (
    count       bigint  NOT NULL,
    first_at    bigint  NOT NULL,
    last_at     bigint  NOT NULL,
    namespace   text COLLATE "C" NOT NULL,
    fingerprint text COLLATE "C" NOT NULL,
    state       text COLLATE "C" NOT NULL,
    name        text COLLATE "C" NOT NULL,
    reason      text COLLATE "C" NOT NULL,
    error       text COLLATE "C" NOT NULL,
    activity    text COLLATE "C" NOT NULL,
    PRIMARY KEY (namespace, fingerprint, state, name, reason)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);

COMMENT ON TABLE batuta.letter_groups IS 'How many dead letters there are of each kind: groups are listed without looking at their letters.';

CREATE INDEX letter_groups_newest ON batuta.letter_groups ((namespace || ':'), state, last_at, fingerprint);

CREATE VIEW batuta.batuta_dead_letters AS
SELECT namespace, id, run_id, kind, name, queue, flow_key, state, to_timestamp(at / 1e6) AS at, reason, error, message,
       fingerprint, activity, seq, attempts, trace, to_timestamp(resolved_at / 1e6) AS resolved_at, note, successor
FROM batuta.dead_letters;

COMMENT ON VIEW batuta.batuta_dead_letters IS 'Dead letters, with times that people can read';

-- Whoever writes rows of letter_groups does so last in its transaction, and locks those of open letters first, then the
-- others, each in order of their keys. So nobody waits for somebody who waits for him.

-- Runs of a commit that are dead letters, those that were written (`won`).
CREATE FUNCTION batuta.write_letters(
    ns text, won uuid[], run_ids uuid[], reasons text[], errors text[], messages text[], fingerprints text[],
    activities text[], seqs integer[], tries integer[], keeps integer[], traces text[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH dead AS MATERIALIZED (
        SELECT l.*, r.id, r.kind, r.name, r.queue, r.flow_key, r.closed_at AS at
        FROM unnest(run_ids, reasons, errors, messages, fingerprints, activities, seqs, tries, keeps, traces)
             AS l(run_id, reason, error, message, fingerprint, activity, seq, attempts, keep, trace)
        CROSS JOIN LATERAL (
            SELECT r.id, r.kind, r.name, r.queue, r.flow_key, r.closed_at FROM batuta.runs r
            WHERE r.run_id = l.run_id LIMIT 1
        ) r
        WHERE (l.run_id IN (SELECT unnest(won))) IS TRUE
    ), written AS (
        INSERT INTO batuta.dead_letters (
            run_id, namespace, id, kind, name, queue, flow_key, at, reason, error, message, fingerprint, activity, seq,
            attempts, keep, trace)
        SELECT d.run_id, ns, d.id, d.kind, d.name, d.queue, d.flow_key, d.at, d.reason, d.error, d.message,
               d.fingerprint, d.activity, d.seq, d.attempts, d.keep, d.trace
        FROM dead d
    )
    INSERT INTO batuta.letter_groups AS g (
        namespace, fingerprint, state, name, reason, error, activity, count, first_at, last_at)
    SELECT ns, d.fingerprint, 'open', d.name, d.reason, min(d.error), min(d.activity), count(*), min(d.at), max(d.at)
    FROM dead d
    GROUP BY d.fingerprint, d.name, d.reason
    ORDER BY d.fingerprint, d.name, d.reason
    ON CONFLICT (namespace, fingerprint, state, name, reason) DO UPDATE
    SET count = g.count + excluded.count, first_at = least(g.first_at, excluded.first_at),
        last_at = greatest(g.last_at, excluded.last_at);
END
$$;

-- Count fewer of each kind, one for each element of these arrays; their letters are gone, or in another state.
CREATE FUNCTION batuta.count_fewer_letters(
    ns text, fingerprints text[], states text[], names text[], reasons text[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM g.count
    FROM (
        SELECT k.state, k.fingerprint, k.name, k.reason
        FROM unnest(fingerprints, states, names, reasons) AS k(fingerprint, state, name, reason)
        GROUP BY k.state, k.fingerprint, k.name, k.reason
        ORDER BY k.state <> 'open', k.state, k.fingerprint, k.name, k.reason
    ) k
    CROSS JOIN LATERAL (
        SELECT g.count FROM batuta.letter_groups g
        WHERE g.namespace = ns AND g.fingerprint = k.fingerprint AND g.state = k.state AND g.name = k.name
          AND g.reason = k.reason
        FOR NO KEY UPDATE
    ) g;

    UPDATE batuta.letter_groups g
    SET count = g.count - k.count,
        first_at = coalesce((
            SELECT l.at FROM batuta.dead_letters l
            WHERE l.namespace = ns AND l.fingerprint = g.fingerprint AND l.state = g.state AND l.name = g.name
              AND l.reason = g.reason
            ORDER BY l.at LIMIT 1), g.first_at),
        last_at = coalesce((
            SELECT l.at FROM batuta.dead_letters l
            WHERE l.namespace = ns AND l.fingerprint = g.fingerprint AND l.state = g.state AND l.name = g.name
              AND l.reason = g.reason
            ORDER BY l.at DESC LIMIT 1), g.last_at)
    FROM (
        SELECT k.fingerprint, k.state, k.name, k.reason, count(*)
        FROM unnest(fingerprints, states, names, reasons) AS k(fingerprint, state, name, reason)
        GROUP BY k.fingerprint, k.state, k.name, k.reason
    ) k
    WHERE g.namespace = ns AND g.fingerprint = k.fingerprint AND g.state = k.state AND g.name = k.name
      AND g.reason = k.reason;

    DELETE FROM batuta.letter_groups g
    USING unnest(fingerprints, states, names, reasons) AS k(fingerprint, state, name, reason)
    WHERE g.namespace = ns AND g.fingerprint = k.fingerprint AND g.state = k.state AND g.name = k.name
      AND g.reason = k.reason AND g.count <= 0;
END
$$;

-- Mark those of the letters that are open, and give them back. `successors`: the runs that follow them, or null.
CREATE FUNCTION batuta.resolve_letters(
    ns text, resolved uuid[], new_state text, why text, successors uuid[]
) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    moment bigint := batuta.batuta_now();
    won uuid[];
    gone record;
BEGIN
    won := ARRAY(
        SELECT l.run_id
        FROM (SELECT DISTINCT a.run_id FROM unnest(resolved) AS a(run_id) ORDER BY a.run_id) a
        CROSS JOIN LATERAL (
            SELECT l.run_id FROM batuta.dead_letters l
            WHERE l.run_id = a.run_id AND l.namespace = ns AND l.state = 'open' FOR NO KEY UPDATE
        ) l);
    IF cardinality(won) = 0 THEN
        RETURN won;
    END IF;
    UPDATE batuta.dead_letters l
    SET state = new_state, resolved_at = moment, note = why, successor = a.successor
    FROM unnest(resolved, successors) AS a(run_id, successor)
    WHERE l.run_id = a.run_id AND (a.run_id IN (SELECT unnest(won))) IS TRUE;

    SELECT array_agg(l.fingerprint) AS fingerprints, array_agg('open'::text) AS states, array_agg(l.name) AS names,
           array_agg(l.reason) AS reasons
    INTO gone
    FROM unnest(won) AS w(run_id)
    CROSS JOIN LATERAL (
        SELECT l.fingerprint, l.name, l.reason FROM batuta.dead_letters l WHERE l.run_id = w.run_id LIMIT 1
    ) l;
    PERFORM batuta.count_fewer_letters(ns, gone.fingerprints, gone.states, gone.names, gone.reasons);

    INSERT INTO batuta.letter_groups AS g (
        namespace, fingerprint, state, name, reason, error, activity, count, first_at, last_at)
    SELECT ns, l.fingerprint, new_state, l.name, l.reason, min(l.error), min(l.activity), count(*), min(l.at), max(l.at)
    FROM unnest(won) AS w(run_id)
    CROSS JOIN LATERAL (SELECT l.* FROM batuta.dead_letters l WHERE l.run_id = w.run_id LIMIT 1) l
    GROUP BY l.fingerprint, l.name, l.reason
    ORDER BY l.fingerprint, l.name, l.reason
    ON CONFLICT (namespace, fingerprint, state, name, reason) DO UPDATE
    SET count = g.count + excluded.count, first_at = least(g.first_at, excluded.first_at),
        last_at = greatest(g.last_at, excluded.last_at);
    RETURN won;
END
$$;

-- Write into the audit log what became of letters that were open.
CREATE FUNCTION batuta.record_letters(
    ns text, actor text, verb text, reason text, detail text, act_before text, act_after text, resolved uuid[],
    new_state text
) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    letters record;
BEGIN
    SELECT array_agg(l.id) AS ids, array_agg(l.run_id::text) AS run_ids,
           array_agg(batuta.state_json('open')) AS befores, array_agg(batuta.state_json(new_state)) AS afters
    INTO letters
    FROM unnest(resolved) AS a(run_id)
    CROSS JOIN LATERAL (SELECT l.id, l.run_id FROM batuta.dead_letters l WHERE l.run_id = a.run_id LIMIT 1) l;
    RETURN batuta.record_acts(
        ns, actor, verb, reason, detail, act_before, act_after, letters.ids, letters.run_ids, letters.befores,
        letters.afters, batuta.batuta_now());
END
$$;

-- The runs are deleted.
CREATE FUNCTION batuta.forget_letters(ns text, forgotten uuid[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    gone record;
BEGIN
    -- Locked in order, as whoever resolves them does.
    PERFORM l.run_id
    FROM (SELECT DISTINCT a.run_id FROM unnest(forgotten) AS a(run_id) ORDER BY a.run_id) a
    CROSS JOIN LATERAL (SELECT l.run_id FROM batuta.dead_letters l WHERE l.run_id = a.run_id FOR UPDATE) l;
    WITH dropped AS (
        DELETE FROM batuta.dead_letters l
        WHERE l.run_id = ANY (forgotten) AND l.namespace = ns
        RETURNING l.fingerprint, l.state, l.name, l.reason
    )
    SELECT array_agg(d.fingerprint) AS fingerprints, array_agg(d.state) AS states, array_agg(d.name) AS names,
           array_agg(d.reason) AS reasons
    INTO gone FROM dropped d;
    IF gone.fingerprints IS NOT NULL THEN
        PERFORM batuta.count_fewer_letters(ns, gone.fingerprints, gone.states, gone.names, gone.reasons);
    END IF;
END
$$;
