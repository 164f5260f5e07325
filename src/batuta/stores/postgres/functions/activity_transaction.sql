-- Transactions of activities: the entry commits together with what the activity wrote.

-- Raises when this is not the original transaction of an activity: its code has ended that one, and begun another. The
-- name of the setting does not contain the schema, which may vary.
CREATE OR REPLACE FUNCTION batuta.must_be_whole() RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF current_setting('activity.begun', true) IS DISTINCT FROM 'here' THEN
        RAISE EXCEPTION 'the transaction is not the one that was begun' USING ERRCODE = 'BT002';
    END IF;
END
$$;

-- One entry of one run, as the last statement of an activity's transaction. It must not commit unless the fence holds,
-- so this raises. It brings its own settings, because the session has none of ours: see database/connection.py.
CREATE OR REPLACE FUNCTION batuta.commit_within(
    ns text, run uuid, worker text, mine integer, expected integer, place integer, entry_kind text, moment bigint,
    checksum bigint, entry_body text
) RETURNS void LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
AS $$
BEGIN
    IF current_setting('activity.begun', true) IS DISTINCT FROM 'here' THEN
        PERFORM batuta.must_be_whole();  -- which raises
    END IF;
    UPDATE batuta.runs r SET head = place
    WHERE r.run_id = run AND r.epoch = mine AND r.head = expected AND r.closed_at IS NULL AND r.namespace || '' = ns
      AND r.owner IS NOT DISTINCT FROM worker;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the run has another owner, or is closed' USING ERRCODE = 'BT001';
    END IF;
    INSERT INTO batuta.journal (namespace, run_id, ord, epoch, kind, at, crc, body)
    VALUES (ns, run, place, mine, entry_kind, moment, checksum, entry_body);
END
$$;
