-- Finds and locks runs. The other files use these.
--
-- Two habits throughout. Functions lock rows by primary key, in order of run_id, before they test them: a condition that
-- is false on the version of before the wait does not wait, and would be wrong. And where a list of winners restricts
-- rows, it says `(x IN (SELECT ...)) IS TRUE`: that stays a hash look-up, where a plain IN may become a join of n by n.
--
-- A look-up by key says LIMIT 1 or OFFSET 0: that keeps it a look-up, one per row. The planner would otherwise make it a
-- join that reads a whole namespace, on a table that was empty when it made the plan.

-- By date_part, whose floats are exact to a quarter of a microsecond: extract gives a numeric, which takes four.
CREATE OR REPLACE FUNCTION batuta.batuta_now() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint
         + coalesce(nullif(current_setting('testing.batuta_shift', true), ''), '0')::bigint
$$;

COMMENT ON FUNCTION batuta.batuta_now IS 'The only clock of the store, in microseconds; tests shift it per session';

-- The run_id in an id, if the run has its run_id as its id; null when the text is not one.
CREATE OR REPLACE FUNCTION batuta.run_id_in(id text) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN length(id) = 36 AND id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$'
        THEN id::uuid END
$$;

-- The current run of an id, null where there is none. Look here before giving a run an id: the index does not contain
-- runs that have their own run_id as their id.
CREATE OR REPLACE FUNCTION batuta.current_run(ns text, wanted text) RETURNS uuid LANGUAGE plpgsql STABLE AS $$
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
CREATE OR REPLACE FUNCTION batuta.is_free(ns text, wanted text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN length(wanted) <> 36 OR NOT EXISTS (
        SELECT FROM batuta.runs r
        WHERE r.run_id = batuta.run_id_in(wanted) AND r.id = wanted AND r.namespace || '' = ns AND r.current);
END
$$;

CREATE OR REPLACE FUNCTION batuta.except_for(many uuid[], few uuid[]) RETURNS uuid[] LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN cardinality(few) > 0
        THEN ARRAY(SELECT m.run_id FROM unnest(many) AS m(run_id) WHERE (m.run_id IN (SELECT unnest(few))) IS NOT TRUE)
        ELSE many END
$$;

-- Of this namespace alone: nobody waits for, or holds up, runs of others.
CREATE OR REPLACE FUNCTION batuta.lock_runs(ns text, wanted uuid[]) RETURNS uuid[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(
        SELECT r.run_id
        FROM (SELECT DISTINCT a.run_id FROM unnest(wanted) AS a(run_id) ORDER BY a.run_id) w
        CROSS JOIN LATERAL (
            SELECT r.run_id FROM batuta.runs r
            WHERE r.run_id = w.run_id AND r.namespace || '' = ns FOR NO KEY UPDATE
        ) r);
END
$$;

-- The current run of each id, null where there is none.
CREATE OR REPLACE FUNCTION batuta.current_runs(ns text, ids text[]) RETURNS uuid[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(
        SELECT batuta.current_run(ns, a.id) FROM unnest(ids) WITH ORDINALITY AS a(id, n) ORDER BY a.n);
END
$$;

-- Raise a serialisation failure unless all of these are locked.
CREATE OR REPLACE FUNCTION batuta.must_be_locked(asked uuid[], locked uuid[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM unnest(asked) AS a(run_id) WHERE (a.run_id IN (SELECT unnest(locked))) IS NOT TRUE;
    IF FOUND THEN
        RAISE EXCEPTION 'a run that is concerned has moved on: try again' USING ERRCODE = 'serialization_failure';
    END IF;
END
$$;
