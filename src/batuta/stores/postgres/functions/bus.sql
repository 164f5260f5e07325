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
    CROSS JOIN LATERAL (
        SELECT b.number, b.topic, b.subscription, b.key, b.at FROM batuta.bus_messages b
        WHERE b.namespace = ns AND b.number = n.number LIMIT 1) m
    CROSS JOIN LATERAL (
        SELECT w.name, w.ordered FROM batuta.bus_subscriptions w
        WHERE w.namespace = ns AND w.topic = m.topic
          AND CASE WHEN m.subscription = '' THEN w.via = '' ELSE w.name = m.subscription END OFFSET 0) s
    CROSS JOIN LATERAL (SELECT CASE WHEN s.ordered THEN m.key ELSE '' END AS key) k
    WHERE only_to IS NULL OR s.name = only_to
    ON CONFLICT (namespace, subscription, number) DO NOTHING;
END
$$;

-- Hand new messages to all subscriptions, so many at most; all when that is null. Returns whether there may be more.
-- Under the lock of the bus.
CREATE OR REPLACE FUNCTION batuta.take_messages(ns text, most integer) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    seen bigint[];
    fresh bigint[];
BEGIN
    seen := ARRAY(
        SELECT m.number FROM batuta.bus_messages m
        WHERE m.namespace = ns AND m.via = '' AND NOT m.taken ORDER BY m.number LIMIT most);
    fresh := ARRAY(
        SELECT m.number FROM batuta.bus_messages m
        WHERE m.namespace = ns AND m.number = ANY (seen) AND NOT m.taken ORDER BY m.number FOR UPDATE SKIP LOCKED);
    IF cardinality(fresh) < cardinality(seen) THEN  -- those of the same key wait for one that is locked
        fresh := ARRAY(
            SELECT m.number FROM batuta.bus_messages m
            WHERE m.namespace = ns AND m.number = ANY (fresh) AND NOT EXISTS (
                SELECT FROM batuta.bus_messages o
                WHERE o.namespace = ns AND o.number = ANY (seen) AND o.number < m.number AND NOT o.number = ANY (fresh)
                  AND o.topic = m.topic AND o.key = m.key AND o.key <> '')
            ORDER BY m.number);
    END IF;
    IF cardinality(fresh) > 0 THEN
        UPDATE batuta.bus_messages m SET taken = true WHERE m.namespace = ns AND m.number = ANY (fresh);
        PERFORM batuta.hand_out(ns, NULL, fresh);
    END IF;
    RETURN cardinality(seen) >= most AND cardinality(fresh) > 0;
END
$$;

-- One turn: see BusStore.bus_turn. A row of nulls at the end: there may be more.
CREATE OR REPLACE FUNCTION batuta.bus_turn(
    ns text, names text[], begun_of text[], begun_numbers bigint[], begun_runs uuid[], most integer, room integer
) RETURNS TABLE (subscription text, number bigint, topic text, id text, key text, body text, at bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    ended tid[];
    gone record;
    next_of_key tid;
    more boolean;
BEGIN
    PERFORM batuta.hold_bus(ns);
    -- One by one: without statistics a join of many is planned as one of few.
    FOR place IN 1 .. cardinality(begun_of) LOOP
        PERFORM FROM batuta.bus_deliveries d
        WHERE d.namespace = ns AND d.subscription = begun_of[place] AND d.number = begun_numbers[place] AND d.state = 1
        FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            UPDATE batuta.bus_deliveries d SET state = 2, run_id = begun_runs[place]
            WHERE d.namespace = ns AND d.subscription = begun_of[place] AND d.number = begun_numbers[place];
        END IF;
    END LOOP;
    ended := ARRAY(
        SELECT d.ctid FROM batuta.bus_deliveries d
        WHERE d.namespace = ns AND d.state = 2 AND NOT EXISTS (
            SELECT FROM batuta.runs r WHERE r.run_id = d.run_id AND r.namespace = ns AND r.closed_at IS NULL OFFSET 0)
        FOR UPDATE SKIP LOCKED);
    DELETE FROM batuta.bus_deliveries d WHERE d.ctid = ANY (ended) AND d.key = '';
    FOR gone IN
        SELECT d.ctid AS place, d.subscription, d.key, d.number FROM batuta.bus_deliveries d
        WHERE d.ctid = ANY (ended) AND d.key <> ''
    LOOP
        SELECT n.ctid INTO next_of_key FROM batuta.bus_deliveries n
        WHERE n.namespace = ns AND n.subscription = gone.subscription AND n.key = gone.key AND n.key <> ''
          AND n.number <> gone.number
        ORDER BY n.number LIMIT 1;
        IF FOUND THEN
            PERFORM FROM batuta.bus_deliveries n WHERE n.ctid = next_of_key FOR UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND;  -- a later turn sees that this one has ended
            UPDATE batuta.bus_deliveries n SET state = 1 WHERE n.ctid = next_of_key AND n.state = 0;
        END IF;
        DELETE FROM batuta.bus_deliveries d WHERE d.ctid = gone.place;
    END LOOP;
    more := batuta.take_messages(ns, most);
    RETURN QUERY
    SELECT r.name, m.number, m.topic, m.id, m.key, m.body, m.at
    FROM (
        SELECT s.name, d.number FROM unnest(names) AS s(name)
        CROSS JOIN LATERAL (
            SELECT b.number FROM batuta.bus_deliveries b
            WHERE b.namespace = ns AND b.subscription = s.name AND b.state = 1 ORDER BY b.number
            LIMIT greatest(0, least(most, room - (
                SELECT count(*) FROM batuta.bus_deliveries o
                WHERE o.namespace = ns AND o.subscription = s.name AND o.state = 2)))
        ) d
        ORDER BY d.number, s.name LIMIT most
    ) r
    CROSS JOIN LATERAL (
        SELECT b.number, b.topic, b.id, b.key, b.body, b.at FROM batuta.bus_messages b
        WHERE b.namespace = ns AND b.number = r.number LIMIT 1) m
    ORDER BY r.number, r.name;
    IF more THEN
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
    IF NOT EXISTS (SELECT FROM batuta.bus_subscriptions s WHERE s.namespace = ns AND s.name = called) THEN
        PERFORM batuta.take_messages(ns, NULL);  -- those of before are for others
    END IF;
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
