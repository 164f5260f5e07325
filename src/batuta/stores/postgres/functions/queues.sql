-- Limits of queues: concurrency, rates, pauses.

-- Those of the queues in which no run may begin at once.
CREATE OR REPLACE FUNCTION batuta.shut_queues(ns text, names text[]) RETURNS text[] LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN ARRAY(
        SELECT q.name FROM batuta.queues q WHERE q.namespace = ns AND q.name = ANY (names) AND (q.paused OR q.limited));
END
$$;

-- The owned runs of a queue, in all and by flow key: owner by owner, of which there are few.
CREATE OR REPLACE FUNCTION batuta.count_owned(ns text, queue_name text, OUT total integer, OUT by_key jsonb) LANGUAGE plpgsql STABLE AS $$
BEGIN
    WITH RECURSIVE owners AS (
        (SELECT r.owner FROM batuta.runs r WHERE r.namespace = ns AND r.owner IS NOT NULL ORDER BY r.owner LIMIT 1)
        UNION ALL
        SELECT (SELECT r.owner FROM batuta.runs r WHERE r.namespace = ns AND r.owner > o.owner ORDER BY r.owner LIMIT 1)
        FROM owners o WHERE o.owner IS NOT NULL
    ), owned AS (
        SELECT k.flow_key, count(*) AS several
        FROM owners o
        CROSS JOIN LATERAL (
            SELECT r.flow_key FROM batuta.runs r
            WHERE r.namespace = ns AND r.owner = o.owner AND r.queue = queue_name OFFSET 0
        ) k
        GROUP BY k.flow_key
    )
    SELECT coalesce(sum(w.several), 0)::integer,
           coalesce(jsonb_object_agg(w.flow_key, w.several) FILTER (WHERE w.flow_key <> ''), '{}')
    INTO total, by_key FROM owned w;
END
$$;

-- How many may begin now under a rate of `most` in a period. Begun runs are counted by parts of a period, each until
-- its end is a whole period ago: never more than `most` begin in any period. A count that seems to be in the future, or
-- a minute ahead, is from before the clock was set back.
CREATE OR REPLACE FUNCTION batuta.rate_left(ns text, queue_name text, key text, most integer, period bigint, moment bigint)
RETURNS integer LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT greatest(most - coalesce(sum(b.count), 0), 0)::integer FROM batuta.begun b
        WHERE b.namespace = ns AND b.queue = queue_name AND b.flow_key = key
          AND b.slot > moment - period AND b.slot <= moment + greatest(period, 60000000));
END
$$;

-- When one more may begin; null when no time allows it.
CREATE OR REPLACE FUNCTION batuta.rate_at(ns text, queue_name text, key text, most integer, period bigint, moment bigint)
RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT CASE WHEN coalesce(max(p.total), 0) < most THEN moment
                    ELSE min(p.slot + period) FILTER (WHERE p.total - p.over < most) END
        FROM (
            SELECT b.slot, sum(b.count) OVER (ORDER BY b.slot) AS over, sum(b.count) OVER () AS total
            FROM batuta.begun b
            WHERE b.namespace = ns AND b.queue = queue_name AND b.flow_key = key
              AND b.slot > moment - period AND b.slot <= moment + greatest(period, 60000000)
        ) p);
END
$$;

-- Delete up to `most` counts that no rate needs any more.
CREATE OR REPLACE FUNCTION batuta.forget_begun(ns text, moment bigint, most integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM batuta.begun b
    USING (
        SELECT o.queue, o.flow_key, o.slot FROM batuta.begun o
        WHERE o.namespace = ns AND o.over_at <= moment ORDER BY o.over_at LIMIT most FOR UPDATE SKIP LOCKED
    ) o
    WHERE b.namespace = ns AND b.queue = o.queue AND b.flow_key = o.flow_key AND b.slot = o.slot;
END
$$;

-- Count runs that begin: one for each flow key that is named.
CREATE OR REPLACE FUNCTION batuta.note_begun(ns text, q batuta.queues, keys text[], moment bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO batuta.begun AS b (namespace, queue, flow_key, slot, over_at, count)
    SELECT ns, q.name, k.key, w.slot, w.slot + k.period, k.several
    FROM (
        SELECT '' AS key, q.rate_period AS period, cardinality(keys) AS several WHERE q.rate_count IS NOT NULL
        UNION ALL
        SELECT n.key, q.key_rate_period, count(*) FROM unnest(keys) AS n(key)
        WHERE q.key_rate_count IS NOT NULL AND n.key <> '' GROUP BY n.key
    ) k
    CROSS JOIN LATERAL (SELECT (k.period + 59) / 60 AS width) p
    CROSS JOIN LATERAL (SELECT moment - moment % p.width + p.width AS slot) w
    ON CONFLICT (namespace, queue, flow_key, slot) DO UPDATE SET count = b.count + excluded.count;
END
$$;

-- Lock the rows of queues with limits, in order. `shut` are those that can give nothing; due: something is due in a
-- full one. For the others, owned: see count_owned. A full queue that another transaction has locked is not waited for.
-- Claims hold a row for milliseconds. A queue whose row stays locked gives nothing, and is looked at anew at `again_at`:
-- the other queues do not wait for it.
CREATE OR REPLACE FUNCTION batuta.lock_queues(
    ns text, names text[], OUT shut text[], OUT due boolean, OUT owned jsonb, OUT again_at bigint
) LANGUAGE plpgsql AS $$
DECLARE
    patience CONSTANT text := '100ms';
    rest CONSTANT bigint := 250000;
    usual text;
    q batuta.queues;
    queue_name text;
    counted record;
BEGIN
    shut := '{}';
    due := false;
    owned := '{}';
    FOREACH queue_name IN ARRAY names LOOP
        SELECT * INTO q FROM batuta.queues k WHERE k.namespace = ns AND k.name = queue_name FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            SELECT * INTO q FROM batuta.queues k WHERE k.namespace = ns AND k.name = queue_name;
            counted := batuta.count_owned(ns, queue_name);
            IF (counted.total < q.concurrency) IS NOT FALSE THEN
                usual := current_setting('lock_timeout');
                BEGIN
                    PERFORM set_config('lock_timeout', patience, true);
                    SELECT * INTO q FROM batuta.queues k
                    WHERE k.namespace = ns AND k.name = queue_name FOR NO KEY UPDATE;
                EXCEPTION WHEN lock_not_available THEN
                    shut := shut || queue_name;
                    due := true;
                    again_at := batuta.batuta_now() + rest;
                    CONTINUE;  -- the setting is as it was, for the block is rolled back
                END;
                PERFORM set_config('lock_timeout', usual, true);
                counted := batuta.count_owned(ns, queue_name);
            END IF;
        ELSE
            counted := batuta.count_owned(ns, queue_name);
        END IF;
        IF q.paused OR counted.total >= q.concurrency THEN
            shut := shut || queue_name;
            due := due OR NOT q.paused AND batuta.has_due(ns, queue_name, batuta.batuta_now());  -- it may have waited
        ELSE
            owned := owned || jsonb_build_object(queue_name, to_jsonb(counted));
        END IF;
    END LOOP;
END
$$;

-- Every queue of a namespace with settings, work or workers, by name.
CREATE OR REPLACE FUNCTION batuta.view_queues(ns text, moment bigint) RETURNS TABLE (
    name text, paused boolean, note text, concurrency integer, key_concurrency integer, rate_count integer,
    rate_period bigint, key_rate_count integer, key_rate_period bigint, ready integer, delayed integer, running integer,
    oldest bigint, workers integer
) LANGUAGE sql STABLE AS $$
    WITH RECURSIVE waiting AS (
        (SELECT r.queue FROM batuta.runs r
         WHERE r.namespace = ns AND r.wake_at IS NOT NULL ORDER BY r.queue LIMIT 1)
        UNION ALL
        SELECT (SELECT r.queue FROM batuta.runs r
                WHERE r.namespace = ns AND r.queue > w.queue AND r.wake_at IS NOT NULL ORDER BY r.queue LIMIT 1)
        FROM waiting w WHERE w.queue IS NOT NULL
    ), owned AS MATERIALIZED (
        SELECT r.queue, count(*)::integer AS several FROM batuta.runs r
        WHERE r.namespace = ns AND r.owner IS NOT NULL GROUP BY r.queue
    ), taken_from AS MATERIALIZED (
        SELECT t.queue, count(*)::integer AS several
        FROM batuta.workers w CROSS JOIN LATERAL (SELECT DISTINCT unnest(w.queues) AS queue) t
        WHERE w.namespace = ns AND w.lease_until > moment GROUP BY t.queue
    ), named AS (
        SELECT w.queue FROM waiting w WHERE w.queue IS NOT NULL
        UNION SELECT o.queue FROM owned o
        UNION SELECT t.queue FROM taken_from t
        UNION SELECT r.queue FROM batuta.runs r
              WHERE r.namespace = ns AND r.closed_at IS NULL AND r.owner IS NULL AND r.wake_at IS NULL
        UNION SELECT q.name FROM batuta.queues q WHERE q.namespace = ns AND (q.paused OR q.limited)
    )
    SELECT n.queue, coalesce(q.paused, false), coalesce(q.note, ''), q.concurrency, q.key_concurrency, q.rate_count,
           q.rate_period, q.key_rate_count, q.key_rate_period, c.ready, c.delayed,
           coalesce((SELECT o.several FROM owned o WHERE o.queue = n.queue), 0), c.oldest,
           coalesce((SELECT t.several FROM taken_from t WHERE t.queue = n.queue), 0)
    FROM named n
    LEFT JOIN batuta.queues q ON q.namespace = ns AND q.name = n.queue
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE r.wake_at <= moment)::integer AS ready,
               count(*) FILTER (WHERE r.wake_at > moment)::integer AS delayed,
               min(r.wake_at) FILTER (WHERE r.wake_at <= moment) AS oldest
        FROM batuta.runs r WHERE r.namespace = ns AND r.queue = n.queue AND r.wake_at IS NOT NULL
    ) c
    ORDER BY n.queue
$$;
