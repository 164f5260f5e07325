-- Tells parents and children when a run closes.

-- Children of these runs have closed, one for each time that a run is named: runs that wait for all of their children
-- wait for fewer, and are due when there are no more. Called last, when everything locked by key is locked: a
-- transaction that holds the lock of an awaiting run waits for no other run. Returns whether one is due.
CREATE OR REPLACE FUNCTION batuta.await_fewer(ns text, parents uuid[]) RETURNS boolean LANGUAGE plpgsql STRICT AS $$
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
        WHERE r.run_id = parent.run_id AND r.namespace || '' = ns AND r.awaits > 0 AND r.closed_at IS NULL
        RETURNING r.awaits INTO awaited;
        due := due OR coalesce(awaited = 0, false);
    END LOOP;
    RETURN due;
END
$$;

-- The runs to notify when these runs close: their parents, unless those only count them, and, where `tells` is set,
-- their open children. A run awaits others for as long as one of them is open.
CREATE OR REPLACE FUNCTION batuta.find_kin(closers uuid[], tells boolean[]) RETURNS uuid[] LANGUAGE plpgsql AS $$
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

-- Notify the open parents and children of runs that are about to close (`leaving` has all of those): a parent by the
-- child's outcome, unless that is empty, children by their policy, whose words are kinds of messages.
CREATE OR REPLACE FUNCTION batuta.tell_kin(
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
            WHERE k.parent_run_id = c.run_id AND k.namespace || '' = ns AND k.closed_at IS NULL
              AND k.parent_policy <> 'abandon' OFFSET 0
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
