-- Schedules: a due schedule fires once, however many workers look at it.

-- Advance the schedules that were not written since they were read, and are not paused. Locked rows are left to their
-- holder. Returns the keys of those that fired.
CREATE OR REPLACE FUNCTION batuta.fire_schedules(
    ns text, keys uuid[], ids text[], revisions bigint[], nexts bigint[], states text[], lasts bigint[], last_ids text[]
) RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    moment bigint := batuta.batuta_now();
    won uuid[];
BEGIN
    won := ARRAY(
        SELECT f.key
        FROM unnest(keys, ids, revisions) AS f(key, id, revision)
        CROSS JOIN LATERAL (
            SELECT FROM batuta.schedules s
            WHERE s.namespace = ns AND s.id = f.id AND s.revision = f.revision AND NOT s.paused
            FOR NO KEY UPDATE SKIP LOCKED
        ) s);
    UPDATE batuta.schedules s
    SET revision = s.revision + 1, updated_at = moment, next_at = f.next_at, state = f.state,
        last_at = coalesce(f.last_at, s.last_at),
        last_id = CASE WHEN f.last_at IS NULL THEN s.last_id ELSE f.last_id END
    FROM unnest(keys, ids, nexts, states, lasts, last_ids) AS f(key, id, next_at, state, last_at, last_id)
    WHERE s.namespace = ns AND s.id = f.id AND (f.key IN (SELECT unnest(won))) IS TRUE;
    RETURN won;
END
$$;

COMMENT ON FUNCTION batuta.fire_schedules IS 'The fence of schedules: the revision that was read is still there';
