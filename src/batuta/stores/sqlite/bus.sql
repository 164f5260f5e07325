-- Statements about messages of the bus.

-- publish_message --
INSERT INTO bus_messages (namespace, topic, subscription, via, id, key, body, at)
VALUES (:namespace, :topic, :subscription, :via, :id, :key, :body, :now)
ON CONFLICT (namespace, topic, subscription, id) DO NOTHING;

-- put_subscription --
INSERT INTO bus_subscriptions (namespace, name, topic, via, ordered, created_at)
VALUES (:namespace, :name, :topic, :via, :ordered, :now) ON CONFLICT (namespace, name) DO NOTHING;

-- order_subscription --
UPDATE bus_subscriptions SET ordered = :ordered
WHERE namespace = :namespace AND name = :name AND topic = :topic AND via = :via;

-- subscription --
SELECT name, topic, via, ordered, created_at FROM bus_subscriptions WHERE namespace = :namespace AND name = :name;

-- drop_subscription --
DELETE FROM bus_subscriptions WHERE namespace = :namespace AND name = :name;

-- drop_deliveries --
DELETE FROM bus_deliveries WHERE namespace = :namespace AND subscription = :name;

-- begin_delivery --
UPDATE bus_deliveries SET state = 2, run_id = :run_id
WHERE namespace = :namespace AND subscription = :subscription AND number = :number AND state = 1;

-- end_deliveries --
DELETE FROM bus_deliveries WHERE namespace = :namespace AND state = 2 AND NOT EXISTS (
    SELECT 1 FROM runs r WHERE r.run_id = bus_deliveries.run_id AND r.namespace = :namespace AND r.closed_at IS NULL)
RETURNING subscription, key;

-- next_of_key --
UPDATE bus_deliveries SET state = 1
WHERE namespace = :namespace AND subscription = :subscription AND number = (
    SELECT min(n.number) FROM bus_deliveries n
    WHERE n.namespace = :namespace AND n.subscription = :subscription AND n.key = :key AND n.key <> '' AND n.state = 0);

-- new_messages --
SELECT min(number), max(number), count(*) FROM (
    SELECT number FROM bus_messages WHERE namespace = :namespace AND via = '' AND taken = 0 ORDER BY number LIMIT :limit
);

-- hand_out --
-- New messages up to that number, to all that they are for; or those that were handed out before, to one that is new.
INSERT INTO bus_deliveries (namespace, subscription, number, key, state, at)
SELECT :namespace, f.name, f.number, f.key,
       CASE WHEN f.key = '' THEN 1
            WHEN row_number() OVER (PARTITION BY f.name, f.key ORDER BY f.number) > 1 THEN 0
            WHEN EXISTS (
                SELECT 1 FROM bus_deliveries d
                WHERE d.namespace = :namespace AND d.subscription = f.name AND d.key = f.key AND d.key <> '') THEN 0
            ELSE 1 END,
       f.at
FROM (
    SELECT s.name, m.number, iif(s.ordered, m.key, '') AS key, m.at
    FROM bus_messages m JOIN bus_subscriptions s ON s.namespace = :namespace AND s.topic = m.topic
        AND iif(m.subscription = '', s.via = '', s.name = m.subscription)
    WHERE m.namespace = :namespace AND m.via = '' AND m.taken = :taken AND m.number BETWEEN :first AND :last
      AND (:name IS NULL OR (s.name = :name AND m.subscription = ''))
) f
WHERE true
ON CONFLICT (namespace, subscription, number) DO NOTHING;

-- take_messages --
UPDATE bus_messages SET taken = 1 WHERE namespace = :namespace AND via = '' AND taken = 0 AND number <= :last;

-- ready_deliveries --
-- The first of one subscription, which leave it room for so many runs. In the order of the index.
SELECT r.number FROM bus_deliveries r
WHERE r.namespace = :namespace AND r.subscription = :subscription AND r.state = 1 ORDER BY r.number
LIMIT max(0, min(:limit, :room - (
    SELECT count(*) FROM bus_deliveries o
    WHERE o.namespace = :namespace AND o.subscription = :subscription AND o.state = 2)));

-- ready_delivery --
SELECT :subscription, number, topic, id, key, body, at FROM bus_messages
WHERE number = :number AND namespace = :namespace;

-- unsent_messages --
SELECT topic, id, key, body, subscription, via, number, at, taken FROM bus_messages
WHERE namespace = :namespace AND via = :via AND taken = 0 ORDER BY number LIMIT :limit;

-- sent_message --
UPDATE bus_messages SET taken = 1 WHERE namespace = :namespace AND number = :number;

-- topic_messages --
SELECT topic, id, key, body, subscription, via, number, at, taken FROM bus_messages
WHERE namespace = :namespace AND topic = :topic AND number < :before ORDER BY number DESC LIMIT :limit;

-- all_messages --
SELECT topic, id, key, body, subscription, via, number, at, taken FROM bus_messages
WHERE namespace = :namespace AND number < :before ORDER BY number DESC LIMIT :limit;

-- rewrite_body_of_bus --
UPDATE bus_messages SET body = :body WHERE namespace = :namespace AND number = :number;

-- topics --
-- A walk over the index, one step for each topic.
WITH RECURSIVE found (name) AS (
    SELECT (SELECT min(m.topic) FROM bus_messages m WHERE m.namespace = :namespace)
    UNION ALL
    SELECT (SELECT min(m.topic) FROM bus_messages m WHERE m.namespace = :namespace AND m.topic > found.name)
    FROM found WHERE found.name IS NOT NULL
), named AS (
    SELECT name FROM found WHERE name IS NOT NULL
    UNION SELECT s.topic FROM bus_subscriptions s WHERE s.namespace = :namespace
), unsent AS (
    SELECT u.topic, count(*) AS waiting FROM (
        SELECT m.topic FROM bus_messages m
        WHERE m.namespace = :namespace AND m.via <> '' AND m.taken = 0 LIMIT :most) u
    GROUP BY u.topic
)
SELECT n.name, (
           SELECT count(*) FROM (
               SELECT 1 FROM bus_messages m WHERE m.namespace = :namespace AND m.topic = n.name LIMIT :most)),
       coalesce((SELECT u.waiting FROM unsent u WHERE u.topic = n.name), 0), (
           SELECT m.at FROM bus_messages m WHERE m.namespace = :namespace AND m.topic = n.name
           ORDER BY m.number DESC LIMIT 1)
FROM named n ORDER BY n.name LIMIT 500;

-- subscriptions --
-- What no turn has seen yet counts for every subscription of its topic.
WITH unseen AS (
    SELECT topic, subscription, count(*) AS messages, min(at) AS at FROM (
        SELECT topic, subscription, at FROM bus_messages
        WHERE namespace = :namespace AND via = '' AND taken = 0 ORDER BY number LIMIT :most)
    GROUP BY topic, subscription
)
SELECT s.name, s.topic, s.via, s.ordered, s.created_at, (
           SELECT count(*) FROM (
               SELECT 1 FROM bus_deliveries d
               WHERE d.namespace = :namespace AND d.subscription = s.name AND d.state < 2 LIMIT :most)
       ) + (
           SELECT coalesce(sum(n.messages), 0) FROM unseen n
           WHERE iif(n.subscription = '', n.topic = s.topic AND s.via = '', n.subscription = s.name)
       ), (
           SELECT count(*) FROM (
               SELECT 1 FROM bus_deliveries d
               WHERE d.namespace = :namespace AND d.subscription = s.name AND d.state = 2 LIMIT :most)
       ), coalesce((
           SELECT d.at FROM bus_deliveries d
           WHERE d.namespace = :namespace AND d.subscription = s.name ORDER BY d.number LIMIT 1
       ), (
           SELECT min(n.at) FROM unseen n
           WHERE iif(n.subscription = '', n.topic = s.topic AND s.via = '', n.subscription = s.name)))
FROM bus_subscriptions s WHERE s.namespace = :namespace ORDER BY s.name;

-- prune_messages --
-- What a subscription has yet to get is kept, and all after it.
DELETE FROM bus_messages WHERE number IN (
    SELECT o.number FROM bus_messages o
    WHERE o.namespace = :namespace AND o.number < coalesce((
        SELECT min((
            SELECT d.number FROM bus_deliveries d
            WHERE d.namespace = :namespace AND d.subscription = s.name ORDER BY d.number LIMIT 1))
        FROM bus_subscriptions s WHERE s.namespace = :namespace), 9223372036854775807)
    ORDER BY o.number LIMIT :limit
) AND namespace = :namespace AND taken = 1 AND at <= :before;
