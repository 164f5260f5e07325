-- Choosing where limits count places only: most queues with limits have no rate.

-- As batuta.choose, for a queue whose runs may all begin. The beginning of a statement this large and its sorts are much of
-- what it costs, so that nothing is in it but what is needed here: this takes a third less. more: not all that it saw was
-- chosen.
CREATE FUNCTION batuta.choose_places(
    ns text, q batuta.queues, rank bigint, moment bigint, codes text[], fingerprints text[], suspect uuid,
    busy jsonb, room integer, had jsonb, turn_key text, step integer, depth integer,
    OUT ids uuid[], OUT last_turn text, OUT deeper boolean, OUT more boolean
) LANGUAGE plpgsql AS $$
DECLARE
    visits CONSTANT integer := 1000;
    by_turn integer := batuta.in_turn(room, step);
    early integer := room - by_turn + 8;
BEGIN
    WITH RECURSIVE turn AS (
        SELECT turn_key COLLATE "C" AS flow_key, NULL::uuid AS run_id, NULL::bigint AS wake_at, false AS fits,
               false AS again, 0 AS may_give, 0::bigint AS before, 0 AS n, 0 AS able
        UNION ALL
        SELECT k.flow_key, k.run_id, k.wake_at, k.fits, k.again, g.may_give, g.before, t.n + 1,
               t.able + (k.fits AND g.may_give > 0 AND g.before = 0)::integer
        FROM turn t
        CROSS JOIN LATERAL (
            SELECT * FROM (
                SELECT r.flow_key, r.run_id, r.wake_at,
                       batuta.may_take(r.code, r.failed_code, codes, fingerprints)
                       AND (NOT batuta.is_suspect(r.deaths, r.head, r.claimed_head) OR r.run_id = suspect) AS fits, t.again
                FROM batuta.runs r
                WHERE r.namespace = ns AND r.queue = q.name AND r.priority = rank AND r.flow_key > t.flow_key
                  AND r.wake_at IS NOT NULL
                ORDER BY r.flow_key, r.wake_at LIMIT 1
            ) behind
            UNION ALL
            SELECT * FROM (
                SELECT r.flow_key, r.run_id, r.wake_at,
                       batuta.may_take(r.code, r.failed_code, codes, fingerprints)
                       AND (NOT batuta.is_suspect(r.deaths, r.head, r.claimed_head) OR r.run_id = suspect), true
                FROM batuta.runs r
                WHERE NOT t.again AND r.namespace = ns AND r.queue = q.name AND r.priority = rank AND r.wake_at IS NOT NULL
                ORDER BY r.flow_key, r.wake_at LIMIT 1
            ) from_the_first
            LIMIT 1
        ) k
        CROSS JOIN LATERAL (
            SELECT CASE WHEN k.wake_at > moment THEN 0
                        WHEN k.flow_key = '' OR q.key_concurrency IS NULL THEN room
                        ELSE q.key_concurrency - coalesce((busy ->> k.flow_key)::integer, 0) END AS may_give,
                   coalesce((had ->> k.flow_key)::bigint, 0) AS before
        ) g
        WHERE t.n < visits AND t.able < room AND (NOT k.again OR k.flow_key <= turn_key)
    ), giving AS MATERIALIZED (
        SELECT t.*, CASE WHEN t.may_give <= 1 THEN t.may_give ELSE least(t.may_give, room, -t.before + (
            SELECT batuta.fill_to(array_agg(o.before), room * depth) FROM turn o WHERE o.may_give > 0)) END AS most
        FROM turn t
    ), peek AS (
        SELECT * FROM (
            SELECT r.run_id, r.flow_key, r.wake_at FROM batuta.runs r
            WHERE r.namespace = ns AND r.queue = q.name AND r.priority = rank AND r.flow_key = '' AND r.wake_at <= moment
              AND batuta.may_take(r.code, r.failed_code, codes, fingerprints)
              AND (NOT batuta.is_suspect(r.deaths, r.head, r.claimed_head) OR r.run_id = suspect)
            ORDER BY r.wake_at LIMIT early
        ) plain
        UNION ALL
        SELECT * FROM (
            SELECT r.run_id, r.flow_key, r.wake_at FROM batuta.runs r
            WHERE r.namespace = ns AND r.queue = q.name AND r.priority = rank AND r.flow_key <> '' AND r.wake_at <= moment
              AND batuta.may_take(r.code, r.failed_code, codes, fingerprints)
              AND (NOT batuta.is_suspect(r.deaths, r.head, r.claimed_head) OR r.run_id = suspect)
            ORDER BY r.wake_at LIMIT early
        ) keyed
        UNION ALL
        SELECT g.run_id, g.flow_key, g.wake_at FROM giving g WHERE g.most = 1 AND g.fits
        UNION ALL
        SELECT p.*
        FROM (SELECT g.flow_key, g.most FROM giving g WHERE g.most > 1 OR g.most = 1 AND NOT g.fits) g
        CROSS JOIN LATERAL (
            SELECT r.run_id, r.flow_key, r.wake_at FROM batuta.runs r
            WHERE r.namespace = ns AND r.queue = q.name AND r.priority = rank AND r.flow_key = g.flow_key
              AND r.wake_at <= moment
              AND batuta.may_take(r.code, r.failed_code, codes, fingerprints)
              AND (NOT batuta.is_suspect(r.deaths, r.head, r.claimed_head) OR r.run_id = suspect)
            ORDER BY r.wake_at LIMIT g.most
        ) p
    ), counted AS MATERIALIZED (
        -- The how manieth of its key each is, and whether it was seen before: by its time, and by its key.
        SELECT p.*, dense_rank() OVER in_key AS nth, coalesce(lag(p.run_id) OVER in_key = p.run_id, false) AS twice
        FROM peek p WINDOW in_key AS (PARTITION BY p.flow_key ORDER BY p.wake_at, p.run_id)
    ), aged AS MATERIALIZED (
        SELECT c.*, c.nth + coalesce((had ->> c.flow_key)::bigint, 0) AS lap,
               row_number() OVER (ORDER BY c.wake_at, c.run_id) <= room - by_turn AS old
        FROM counted c
        WHERE NOT c.twice AND (c.flow_key = '' OR q.key_concurrency IS NULL
                               OR c.nth <= q.key_concurrency - coalesce((busy ->> c.flow_key)::integer, 0))
    ), chosen AS MATERIALIZED (
        SELECT * FROM (
            SELECT a.*, row_number() OVER (ORDER BY a.old, a.lap, a.flow_key <= turn_key, a.flow_key) AS turn FROM aged a
        ) t
        WHERE t.old OR t.turn <= by_turn
    ), locked AS MATERIALIZED (
        SELECT c.* FROM chosen c
        CROSS JOIN LATERAL (
            SELECT r.run_id FROM batuta.runs r
            WHERE r.run_id = c.run_id AND r.wake_at <= moment FOR NO KEY UPDATE SKIP LOCKED
        ) r
    )
    SELECT coalesce(array_agg(l.run_id ORDER BY l.wake_at, l.run_id), '{}'),
           coalesce((SELECT c.flow_key FROM chosen c WHERE NOT c.old ORDER BY c.turn DESC LIMIT 1),
                    CASE WHEN count(*) = 0 THEN (SELECT t.flow_key FROM turn t ORDER BY t.n DESC LIMIT 1) END),
           (SELECT count(*) FROM chosen) < room AND EXISTS (
               SELECT FROM giving g
               WHERE g.most < least(g.may_give, room)
                 AND g.most <= (SELECT count(*) FROM aged a WHERE a.flow_key = g.flow_key)),
           (SELECT count(*) FROM counted c WHERE NOT c.twice) > count(*)
    INTO ids, last_turn, deeper, more
    FROM locked l;
END
$$;
