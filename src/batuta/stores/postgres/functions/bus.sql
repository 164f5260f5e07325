-- The bus: publishing, and handing messages to subscriptions. One turn at a time in a namespace: whether a delivery must
-- wait for another of its key is decided by what the turns before have left.

-- Write messages in the given order. Returns the ids of those that are new.
CREATE OR REPLACE FUNCTION batuta.publish_messages(
    ns text, topics text[], subscriptions text[], vias text[], message_ids text[], keys text[], bodies text[]
) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    fresh text[];
BEGIN
    WITH written AS (
        INSERT INTO batuta.bus_messages (namespace, topic, subscription, via, id, key, body, at)
        SELECT ns, m.topic, m.subscription, m.via, m.id, m.key, m.body, batuta.batuta_now()
        FROM unnest(topics, subscriptions, vias, message_ids, keys, bodies) WITH ORDINALITY
            AS m(topic, subscription, via, id, key, body, place)
        ORDER BY m.place
        ON CONFLICT (namespace, topic, subscription, id) DO NOTHING
        RETURNING bus_messages.id
    )
    SELECT coalesce(array_agg(w.id), '{}') INTO fresh FROM written w;
    RETURN fresh;
END
$$;

-- The same inside a transaction of the caller's own. `home` and the settings: as of enqueue. Returns JSON: the ids
-- of new ones; nothing when this is another place.
CREATE OR REPLACE FUNCTION batuta.publish_within(
    ns text, home text, channel text, news text, topics text[], subscriptions text[], vias text[], message_ids text[],
    keys text[], bodies text[]
) RETURNS text LANGUAGE plpgsql
SET plan_cache_mode = 'force_generic_plan' SET jit = off SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    fresh text[];
BEGIN
    IF batuta.place() <> home THEN
        RETURN NULL;
    END IF;
    fresh := batuta.publish_messages(ns, topics, subscriptions, vias, message_ids, keys, bodies);
    IF cardinality(fresh) > 0 THEN
        PERFORM pg_notify(channel, news);
    END IF;
    RETURN to_json(fresh)::text;
END
$$;

-- One turn of the bus at a time in a namespace, until the transaction ends.
CREATE OR REPLACE FUNCTION batuta.hold_bus(ns text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('batuta.bus ' || ns, 12));
END
$$;

-- Give these messages to a subscription, or, when it is null, to all that they are for. Under the lock of the bus.
CREATE OR REPLACE FUNCTION batuta.hand_out(ns text, only_to text, numbers bigint[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO batuta.bus_deliveries (namespace, subscription, number, key, state, at)
    SELECT ns, s.name, m.number, k.key,
           CASE WHEN k.key = '' THEN 1
                WHEN row_number() OVER (PARTITION BY s.name, k.key ORDER BY m.number) > 1 THEN 0
                WHEN EXISTS (
                    SELECT FROM batuta.bus_deliveries d
                    WHERE d.namespace = ns AND d.subscription = s.name AND d.key = k.key AND d.key <> '') THEN 0
                ELSE 1 END,
           m.at
    FROM unnest(numbers) AS n(number)
    JOIN batuta.bus_messages m ON m.namespace = ns AND m.number = n.number
    JOIN batuta.bus_subscriptions s ON s.namespace = ns AND s.topic = m.topic
        AND CASE WHEN m.subscription = '' THEN s.via = '' ELSE s.name = m.subscription END
    CROSS JOIN LATERAL (SELECT CASE WHEN s.ordered THEN m.key ELSE '' END AS key) k
    WHERE only_to IS NULL OR s.name = only_to
    ON CONFLICT (namespace, subscription, number) DO NOTHING;
END
$$;

-- One turn: see BusStore.bus_turn. A row of nulls at the end: there may be more.
CREATE OR REPLACE FUNCTION batuta.bus_turn(
    ns text, names text[], begun_of text[], begun_numbers bigint[], begun_runs uuid[], most integer, room integer
) RETURNS TABLE (subscription text, number bigint, topic text, id text, key text, body text, at bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    fresh bigint[];
BEGIN
    PERFORM batuta.hold_bus(ns);
    IF cardinality(begun_of) > 0 THEN
        UPDATE batuta.bus_deliveries d SET state = 2, run_id = b.run_id
        FROM unnest(begun_of, begun_numbers, begun_runs) AS b(subscription, number, run_id)
        WHERE d.namespace = ns AND d.subscription = b.subscription AND d.number = b.number AND d.state = 1;
    END IF;
    WITH ended AS (
        DELETE FROM batuta.bus_deliveries d
        WHERE d.namespace = ns AND d.state = 2 AND NOT EXISTS (
            SELECT FROM batuta.runs r WHERE r.run_id = d.run_id AND r.namespace = ns AND r.closed_at IS NULL OFFSET 0)
        RETURNING d.subscription, d.key
    ), next AS (
        SELECT e.subscription, (
            SELECT min(n.number) FROM batuta.bus_deliveries n
            WHERE n.namespace = ns AND n.subscription = e.subscription AND n.key = e.key AND n.key <> '' AND n.state = 0
        ) AS number
        FROM (SELECT DISTINCT subscription, key FROM ended WHERE key <> '') e
    )
    UPDATE batuta.bus_deliveries d SET state = 1 FROM next
    WHERE d.namespace = ns AND d.subscription = next.subscription AND d.number = next.number;
    WITH found AS (
        SELECT m.number FROM batuta.bus_messages m
        WHERE m.namespace = ns AND m.via = '' AND NOT m.taken ORDER BY m.number LIMIT most
    ), marked AS (
        UPDATE batuta.bus_messages m SET taken = true FROM found
        WHERE m.namespace = ns AND m.number = found.number
    )
    SELECT array_agg(f.number ORDER BY f.number) INTO fresh FROM found f;
    IF fresh IS NOT NULL THEN
        PERFORM batuta.hand_out(ns, NULL, fresh);
    END IF;
    RETURN QUERY
    SELECT s.name, m.number, m.topic, m.id, m.key, m.body, m.at
    FROM batuta.bus_subscriptions s
    CROSS JOIN LATERAL (
        SELECT d.number FROM batuta.bus_deliveries d
        WHERE d.namespace = ns AND d.subscription = s.name AND d.state = 1 ORDER BY d.number
        LIMIT greatest(0, room - (
            SELECT count(*) FROM batuta.bus_deliveries o
            WHERE o.namespace = ns AND o.subscription = s.name AND o.state = 2))
    ) d
    JOIN batuta.bus_messages m ON m.namespace = ns AND m.number = d.number
    WHERE s.namespace = ns AND s.name = ANY (names) ORDER BY m.number, s.name LIMIT most;
    IF cardinality(fresh) >= most THEN
        RETURN NEXT;
    END IF;
END
$$;

-- Add a subscription, or change `ordered` of the one that is there.
CREATE OR REPLACE FUNCTION batuta.put_subscription(
    ns text, called text, its_topic text, its_via text, in_order boolean, from_start boolean
) RETURNS SETOF batuta.bus_subscriptions LANGUAGE plpgsql AS $$
DECLARE
    fresh boolean;
BEGIN
    PERFORM batuta.hold_bus(ns);
    INSERT INTO batuta.bus_subscriptions AS s (namespace, name, topic, via, ordered, created_at)
    VALUES (ns, called, its_topic, its_via, in_order, batuta.batuta_now())
    ON CONFLICT (namespace, name) DO UPDATE SET ordered = excluded.ordered
    WHERE s.topic = excluded.topic AND s.via = excluded.via
    RETURNING s.xmax = 0 INTO fresh;
    IF fresh AND from_start THEN
        PERFORM batuta.hand_out(ns, called, ARRAY(
            SELECT m.number FROM batuta.bus_messages m
            WHERE m.namespace = ns AND m.topic = its_topic AND m.subscription = '' AND m.via = '' AND m.taken
            ORDER BY m.number));
    END IF;
    RETURN QUERY SELECT s.* FROM batuta.bus_subscriptions s WHERE s.namespace = ns AND s.name = called;
END
$$;

-- Forget a subscription and what it has yet to get. Returns its name.
CREATE OR REPLACE FUNCTION batuta.drop_subscription(ns text, called text) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM batuta.hold_bus(ns);
    DELETE FROM batuta.bus_deliveries d WHERE d.namespace = ns AND d.subscription = called;
    RETURN QUERY DELETE FROM batuta.bus_subscriptions s WHERE s.namespace = ns AND s.name = called RETURNING s.name;
END
$$;
