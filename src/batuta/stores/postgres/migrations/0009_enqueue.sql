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
-- means; `columns` are those of start_runs, as a JSON array of arrays. Gives JSON: for each run its row or that of the
-- run that has its id; nothing when this is another place.
-- The session is the caller's, so that the settings which our statements count on come with the function.
CREATE FUNCTION batuta.enqueue(ns text, home text, channel text, news text, columns text)
RETURNS text LANGUAGE plpgsql
SET plan_cache_mode = 'force_generic_plan' SET jit = off SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    c json[];
    given uuid[];
    fresh uuid[];
BEGIN
    IF batuta.place() <> home THEN
        RETURN NULL;
    END IF;
    c := ARRAY(SELECT e.value FROM json_array_elements(columns::json) WITH ORDINALITY AS e(value, n) ORDER BY e.n);
    given := batuta.texts(c[1])::uuid[];
    fresh := ARRAY(SELECT s.started FROM batuta.insert_runs(
        ns, NULL, given, batuta.texts(c[2]), batuta.texts(c[3])::boolean[], batuta.texts(c[4])::uuid[],
        batuta.texts(c[5]), batuta.texts(c[6]), batuta.texts(c[7]), batuta.texts(c[8]), batuta.texts(c[9])::integer[],
        batuta.texts(c[10]), batuta.texts(c[11]), batuta.texts(c[12]), batuta.texts(c[13])::bigint[],
        batuta.texts(c[14])::bigint[], batuta.texts(c[15])::uuid[], batuta.texts(c[16])::integer[],
        batuta.texts(c[17]), batuta.texts(c[18]), batuta.texts(c[19])::integer[], batuta.texts(c[20])::integer[],
        batuta.texts(c[21]), batuta.texts(c[22])::bigint[], batuta.texts(c[23])::bigint[], batuta.texts(c[24]),
        batuta.texts(c[25])) s);
    INSERT INTO batuta.inbox (namespace, chain_id, message_id, kind, name, body, at)
    SELECT ns, coalesce(m.chain_id, m.run_id), m.message_id, m.kind, m.name, m.body, batuta.batuta_now()
    FROM unnest(given, batuta.texts(c[4])::uuid[], batuta.texts(c[26]), batuta.texts(c[27]), batuta.texts(c[28]),
                batuta.texts(c[29])) AS m(run_id, chain_id, message_id, kind, name, body)
    WHERE (m.run_id IN (SELECT unnest(fresh))) IS TRUE;
    IF cardinality(fresh) > 0 THEN
        PERFORM pg_notify(channel, news);
    END IF;
    RETURN (
        SELECT coalesce(json_agg(json_build_object('given', g.run_id, 'run', row_to_json(r))), '[]')::text
        FROM unnest(given, batuta.texts(c[2])) AS g(run_id, id)
        CROSS JOIN LATERAL (
            SELECT * FROM batuta.runs known WHERE known.run_id = g.run_id
            UNION ALL
            SELECT * FROM batuta.runs other WHERE other.id = g.id AND other.namespace || '' = ns AND other.current
            LIMIT 1
        ) r);
END
$$;
