-- Starting runs inside a transaction of the caller's own, from any driver: all parameters are plain texts.

-- Names this database and no other, also when one is a copy of the other.
CREATE FUNCTION batuta.place() RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    cluster text := 'unnamed';
BEGIN
    IF has_function_privilege('pg_control_system()', 'execute') THEN
        cluster := (SELECT c.system_identifier::text FROM pg_control_system() c);
    END IF;
    RETURN cluster || '/' || (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());
END
$$;

CREATE FUNCTION batuta.texts(column_of json) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT ARRAY(SELECT e.value FROM json_array_elements_text(column_of) WITH ORDINALITY AS e(value, n) ORDER BY e.n)
$$;

COMMENT ON FUNCTION batuta.texts IS 'A JSON array as an array. What was JSON within it is text, and not looked into';

-- Start unowned runs, and tell the workers when, and if, the transaction commits. `home` is the place that the caller
-- means; `columns` are those of start_together behind `ns`, as a JSON array of arrays. Gives JSON: for each run its row,
-- or that of the run that stands in its place; nothing when this is another place.
-- The session is the caller's, so that the settings which our statements count on come with the function.
CREATE FUNCTION batuta.enqueue(ns text, home text, channel text, news text, columns text)
RETURNS text LANGUAGE plpgsql
SET plan_cache_mode = 'force_generic_plan' SET jit = off SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    c json[];
    several bigint;
    replacing uuid[];
    replaced uuid[];
BEGIN
    IF batuta.place() <> home THEN
        RETURN NULL;
    END IF;
    c := ARRAY(SELECT e.value FROM json_array_elements(columns::json) WITH ORDINALITY AS e(value, n) ORDER BY e.n);
    SELECT count(*), array_agg(s.asked) FILTER (WHERE s.asked <> s.started),
           array_agg(s.started) FILTER (WHERE s.asked <> s.started)
    INTO several, replacing, replaced
    FROM batuta.start_together(
            ns, (batuta.texts(c[1])::uuid[])[1],
            batuta.texts(c[2]), batuta.texts(c[3])::bigint[], batuta.texts(c[4])::uuid[], batuta.texts(c[5]),
            batuta.texts(c[6])::bigint[], batuta.texts(c[7])::uuid[], batuta.texts(c[8]), batuta.texts(c[9]),
            batuta.texts(c[10]), batuta.texts(c[11]), batuta.texts(c[12])::integer[], batuta.texts(c[13]),
            batuta.texts(c[14]), batuta.texts(c[15]), batuta.texts(c[16])::bigint[], batuta.texts(c[17])::bigint[],
            batuta.texts(c[18])::uuid[], batuta.texts(c[19])::integer[], batuta.texts(c[20]), batuta.texts(c[21]),
            batuta.texts(c[22])::bigint[], batuta.texts(c[23])::integer[], batuta.texts(c[24])::integer[],
            batuta.texts(c[25]), batuta.texts(c[26])::bigint[], batuta.texts(c[27])::bigint[], batuta.texts(c[28]),
            batuta.texts(c[29]), batuta.texts(c[30]), batuta.texts(c[31]), batuta.texts(c[32]), batuta.texts(c[33])) s;
    IF several > 0 THEN
        PERFORM pg_notify(channel, news);
    END IF;
    -- With its own snapshot: it must see what was written just now.
    RETURN (
        SELECT coalesce(json_agg(json_build_object('asked', a.run_id, 'run', row_to_json(r))), '[]')::text
        FROM unnest(batuta.texts(c[4])::uuid[], batuta.texts(c[5])) AS a(run_id, id)
        CROSS JOIN LATERAL (
            SELECT coalesce(replaced[array_position(replacing, a.run_id)], a.run_id) AS run_id
        ) m
        CROSS JOIN LATERAL (
            SELECT k.* FROM batuta.runs k WHERE k.run_id = coalesce(
                (SELECT o.run_id FROM batuta.runs o WHERE o.run_id = m.run_id),
                (SELECT o.run_id FROM batuta.runs o WHERE o.id = a.id AND o.namespace || '' = ns AND o.current))
        ) r);
END
$$;
