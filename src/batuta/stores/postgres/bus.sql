-- Statements about messages of the bus. `batuta` stands for the schema in use.

-- publish_messages --
SELECT batuta.publish_messages($1, $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[]) AS fresh;

-- publish --
-- Sent through any driver, as enqueue.
SELECT batuta.publish_within(
    CAST($1 AS text), CAST($2 AS text), CAST($3 AS text), CAST($4 AS text),
    CAST(CAST($5 AS text) AS text[]), CAST(CAST($6 AS text) AS text[]), CAST(CAST($7 AS text) AS text[]),
    CAST(CAST($8 AS text) AS text[]), CAST(CAST($9 AS text) AS text[]), CAST(CAST($10 AS text) AS text[])) AS published;

-- bus_turn --
SELECT subscription, number, topic, id, key, body, at
FROM batuta.bus_turn($1, $2::text[], $3::text[], $4::bigint[], $5::uuid[], $6, $7);

-- put_subscription --
SELECT name, topic, via, ordered, created_at FROM batuta.put_subscription($1, $2, $3, $4, $5, $6);

-- drop_subscription --
WITH dropped AS MATERIALIZED (SELECT d.name FROM batuta.drop_subscription($1, $2) AS d(name))
SELECT batuta.record_acts($1, $3, $4, $5, $6, $7, $8, ARRAY[d.name], '{}', '{}', '{}', batuta.batuta_now())
FROM dropped d;

-- unsent_messages --
SELECT number, topic, subscription, via, id, key, body, at, taken FROM batuta.bus_messages
WHERE namespace = $1 AND via = $2 AND NOT taken ORDER BY number LIMIT $3;

-- sent_messages --
UPDATE batuta.bus_messages m SET taken = true WHERE m.namespace = $1 AND m.number = ANY ($2::bigint[]);

-- topic_messages --
SELECT number, topic, subscription, via, id, key, body, at, taken FROM batuta.bus_messages
WHERE namespace = $1 AND topic = $2 AND number < $3 ORDER BY number DESC LIMIT $4;

-- all_messages --
SELECT number, topic, subscription, via, id, key, body, at, taken FROM batuta.bus_messages
WHERE namespace = $1 AND number < $2 ORDER BY number DESC LIMIT $3;

-- rewrite_messages --
UPDATE batuta.bus_messages m SET body = n.body
FROM unnest($2::bigint[], $3::text[]) AS n(number, body)
WHERE m.namespace = $1 AND m.number = n.number;

-- topics --
-- A walk over the index, one step for each topic.
WITH RECURSIVE found (name) AS (
    SELECT (SELECT min(m.topic) FROM batuta.bus_messages m WHERE m.namespace = $1)
    UNION ALL
    SELECT (SELECT min(m.topic) FROM batuta.bus_messages m WHERE m.namespace = $1 AND m.topic > found.name)
    FROM found WHERE found.name IS NOT NULL
), named AS (
    SELECT name FROM found WHERE name IS NOT NULL
    UNION SELECT s.topic FROM batuta.bus_subscriptions s WHERE s.namespace = $1
), unsent AS (
    SELECT u.topic, count(*) AS waiting FROM (
        SELECT m.topic FROM batuta.bus_messages m
        WHERE m.namespace = $1 AND m.via <> '' AND NOT m.taken LIMIT $2) u
    GROUP BY u.topic
)
SELECT n.name, (
           SELECT count(*) FROM (
               SELECT FROM batuta.bus_messages m WHERE m.namespace = $1 AND m.topic = n.name LIMIT $2) c) AS messages,
       coalesce((SELECT u.waiting FROM unsent u WHERE u.topic = n.name), 0) AS unsent, (
           SELECT m.at FROM batuta.bus_messages m WHERE m.namespace = $1 AND m.topic = n.name
           ORDER BY m.number DESC LIMIT 1) AS last_at
FROM named n ORDER BY n.name LIMIT 500;

-- subscriptions --
-- What no turn has seen yet counts for every subscription of its topic.
WITH unseen AS (
    SELECT m.topic, m.subscription, count(*) AS messages, min(m.at) AS at FROM (
        SELECT m.topic, m.subscription, m.at FROM batuta.bus_messages m
        WHERE m.namespace = $1 AND m.via = '' AND NOT m.taken ORDER BY m.number LIMIT $2) m
    GROUP BY m.topic, m.subscription
)
SELECT s.name, s.topic, s.via, s.ordered, s.created_at,
       w.waiting + coalesce(u.messages, 0)::bigint AS waiting, r.running, coalesce(o.at, u.at) AS oldest_at
FROM batuta.bus_subscriptions s
CROSS JOIN LATERAL (
    SELECT count(*) AS waiting FROM (
        SELECT FROM batuta.bus_deliveries d
        WHERE d.namespace = $1 AND d.subscription = s.name AND d.state < 2 LIMIT $2) c) w
CROSS JOIN LATERAL (
    SELECT count(*) AS running FROM (
        SELECT FROM batuta.bus_deliveries d
        WHERE d.namespace = $1 AND d.subscription = s.name AND d.state = 2 LIMIT $2) c) r
LEFT JOIN LATERAL (
    SELECT d.at FROM batuta.bus_deliveries d
    WHERE d.namespace = $1 AND d.subscription = s.name ORDER BY d.number LIMIT 1) o ON true
LEFT JOIN LATERAL (
    SELECT sum(n.messages) AS messages, min(n.at) AS at FROM unseen n
    WHERE CASE WHEN n.subscription = '' THEN n.topic = s.topic AND s.via = '' ELSE n.subscription = s.name END) u ON true
WHERE s.namespace = $1 ORDER BY s.name;

-- prune_messages --
-- What a subscription has yet to get is kept, and all after it.
WITH kept AS (
    SELECT coalesce(min(f.number), 9223372036854775807) AS number
    FROM batuta.bus_subscriptions s
    CROSS JOIN LATERAL (
        SELECT d.number FROM batuta.bus_deliveries d
        WHERE d.namespace = $1 AND d.subscription = s.name ORDER BY d.number LIMIT 1) f
    WHERE s.namespace = $1
)
DELETE FROM batuta.bus_messages m
WHERE m.namespace = $1 AND m.number = ANY (ARRAY(
    SELECT o.number FROM batuta.bus_messages o
    WHERE o.namespace = $1 AND o.number < (SELECT kept.number FROM kept) ORDER BY o.number LIMIT $3
)) AND m.taken AND m.at <= batuta.batuta_now() - $2
RETURNING m.number;
