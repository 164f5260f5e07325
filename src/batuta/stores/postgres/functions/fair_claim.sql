-- Fair claims: runs with a flow key are claimed in rotation: the longest due, then three of the least recently served
-- keys. The caller remembers the rotation, per queue and priority: `turn_key` had the last turn; `step` is the position
-- in the lap of four; `had` says how many of each key were taken recently.

-- Flow keys that are waiting in a queue at one priority, each once, from behind one of them: up to `many`, and when the
-- first of each is due. Runs without a key count as one key, before all others.
CREATE OR REPLACE FUNCTION batuta.next_keys(
    ns text, queue_name text, rank bigint, behind text, many integer, OUT keys text[], OUT due_at bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    others record;
    start text;
BEGIN
    keys := '{}';
    due_at := '{}';
    FOREACH start IN ARRAY ARRAY[behind, NULL] LOOP
        EXIT WHEN cardinality(keys) >= many;
        IF start IS NULL THEN
            SELECT r.wake_at INTO others FROM batuta.runs r
            WHERE r.namespace = ns AND r.queue = queue_name AND r.priority = rank AND r.flow_key = ''
              AND r.wake_at IS NOT NULL
            ORDER BY r.wake_at LIMIT 1;
            IF FOUND THEN
                keys := array_append(keys, '');
                due_at := array_append(due_at, others.wake_at);
            END IF;
            EXIT WHEN behind = '';
            start := '';
        END IF;
        WITH RECURSIVE turn AS (
            SELECT start COLLATE "C" AS flow_key, NULL::bigint AS wake_at, 0 AS n
            UNION ALL
            SELECT k.flow_key, k.wake_at, t.n + 1
            FROM turn t
            CROSS JOIN LATERAL (
                SELECT r.flow_key, r.wake_at FROM batuta.runs r
                WHERE r.namespace = ns AND r.queue = queue_name AND r.priority = rank
                  AND r.flow_key > t.flow_key AND r.wake_at IS NOT NULL
                ORDER BY r.flow_key, r.wake_at LIMIT 1
            ) k
            WHERE t.n < many - cardinality(keys) AND (start = behind OR t.flow_key < behind)
        )
        SELECT array_agg(t.flow_key ORDER BY t.n) AS keys, array_agg(t.wake_at ORDER BY t.n) AS due_at INTO others
        FROM turn t WHERE t.n > 0 AND (start = behind OR t.flow_key <= behind);
        keys := keys || others.keys;
        due_at := due_at || others.due_at;
    END LOOP;
END
$$;

-- Of this many claims, how many come in rotation.
CREATE OR REPLACE FUNCTION batuta.in_turn(most integer, step integer) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT most - (most + step + 3) / 4 + (step + 3) / 4
$$;

-- How much each key may have in all, when the least served keys get `most` more.
CREATE OR REPLACE FUNCTION batuta.fill_to(had bigint[], most integer) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN (
        SELECT min((most + w.had + w.several - 1) / w.several)
        FROM (
            SELECT (sum(h.had) OVER least_first)::bigint AS had, row_number() OVER least_first AS several
            FROM unnest(had) AS h(had) WINDOW least_first AS (ORDER BY h.had ROWS UNBOUNDED PRECEDING)
        ) w);
END
$$;

-- Take from a queue without limits in which runs with flow keys are due.
CREATE OR REPLACE FUNCTION batuta.take_in_turn(
    ns text, queue_name text, rank bigint, moment bigint, most integer, codes text[], fingerprints text[], suspect uuid,
    had jsonb, INOUT turn_key text, INOUT step integer, OUT taken uuid[]
) LANGUAGE plpgsql AS $$
DECLARE
    by_turn integer := batuta.in_turn(most, step);
    turns record;
    had_before bigint[];
    level bigint;
    got record;
BEGIN
    SELECT * INTO got
    FROM batuta.take_by_time(ns, queue_name, rank, moment, most - by_turn, codes, fingerprints, suspect, '{}');
    taken := got.ids;
    IF by_turn > 0 AND cardinality(taken) = most - by_turn THEN
        SELECT * INTO turns FROM batuta.next_keys(ns, queue_name, rank, turn_key, most + 1);
        -- Runs claimed by time count as turns of their keys.
        had_before := ARRAY(
            SELECT CASE WHEN k.due_at > moment THEN 1::bigint << 40
                        ELSE coalesce((had ->> k.key)::bigint, 0) + cardinality(array_positions(got.keys, k.key)) END
            FROM unnest(turns.keys, turns.due_at) WITH ORDINALITY AS k(key, due_at, n) ORDER BY k.n);
        level := batuta.fill_to(had_before, by_turn);
        SELECT array_agg(c.run_id ORDER BY c.nth, c.n) AS ids, (array_agg(c.key ORDER BY c.nth DESC, c.n DESC))[1] AS last
        INTO got
        FROM (
            SELECT p.run_id, k.key, k.n, k.had + row_number() OVER (PARTITION BY k.n ORDER BY p.wake_at) AS nth
            FROM unnest(turns.keys, had_before) WITH ORDINALITY AS k(key, had, n)
            CROSS JOIN LATERAL (
                SELECT r.run_id, r.wake_at FROM batuta.runs r
                WHERE r.namespace = ns AND r.queue = queue_name AND r.priority = rank AND r.flow_key = k.key
                  AND r.wake_at <= moment AND r.run_id <> ALL (taken)
                  AND batuta.may_take(r.code, r.failed_code, codes, fingerprints)
                  AND (NOT batuta.is_suspect(r.deaths, r.head, r.claimed_head) OR r.run_id = suspect)
                ORDER BY r.wake_at LIMIT greatest(level - k.had, 0) FOR NO KEY UPDATE SKIP LOCKED
            ) p
            ORDER BY nth, k.n LIMIT by_turn
        ) c;
        taken := taken || got.ids;
        turn_key := coalesce(got.last, turn_key);
        IF cardinality(taken) < most THEN
            SELECT * INTO got FROM batuta.take_by_time(
                ns, queue_name, rank, moment, most - cardinality(taken), codes, fingerprints, suspect, taken);
            taken := taken || got.ids;
        END IF;
    END IF;
    step := (step + cardinality(taken)) % 4;
END
$$;

-- Choose among the due runs of a queue whose row is locked, and lock them: the longest due, and those of flow keys in
-- rotation, from behind `turn_key`, up to as many keys as may be needed. A key that can give nothing is skipped, and so
-- is a recently served one if others will do. `room` is how many it may give, `fresh` how many of them may begin (null:
-- any), `depth` how often the share of a key is looked for in it (null: all that it may give). last_turn: the rotation
-- then; begins: the keys of runs that begin; late: keys whose rate left some out; deeper: keys have less than their
-- share, and others may have more.
CREATE OR REPLACE FUNCTION batuta.choose(
    ns text, q batuta.queues, rank bigint, moment bigint, codes text[], fingerprints text[], suspect uuid,
    busy jsonb, room integer, fresh integer, had jsonb, turn_key text, step integer, depth integer,
    OUT ids uuid[], OUT begins text[], OUT last_turn text, OUT late text[], OUT deeper boolean
) LANGUAGE plpgsql AS $$
DECLARE
    visits CONSTANT integer := 1000;
    wanted integer := least(room, fresh);
    by_turn integer := batuta.in_turn(wanted, step);
    -- Where a rate may leave some out, others must be there in their place.
    early integer := CASE WHEN fresh IS NULL AND q.key_rate_count IS NULL THEN wanted - by_turn + 8 ELSE room + 32 END;
BEGIN
    WITH RECURSIVE turn AS (
        SELECT turn_key COLLATE "C" AS flow_key, NULL::uuid AS run_id, NULL::bigint AS wake_at, false AS first,
               false AS fits, false AS again, false AS worn, 0 AS may_give, 0::bigint AS before, 0 AS n, 0 AS able
        UNION ALL
        SELECT k.flow_key, k.run_id, k.wake_at, k.first, k.fits, k.again, w.worn, g.may_give, g.before, t.n + 1,
               t.able + (k.fits AND g.may_give > 0 AND g.before = 0)::integer
        FROM turn t
        CROSS JOIN LATERAL (
            SELECT * FROM (
                SELECT r.flow_key, r.run_id, r.wake_at, r.epoch = 0 AS first,
                       batuta.may_take(r.code, r.failed_code, codes, fingerprints)
                       AND (NOT batuta.is_suspect(r.deaths, r.head, r.claimed_head) OR r.run_id = suspect) AS fits, t.again
                FROM batuta.runs r
                WHERE r.namespace = ns AND r.queue = q.name AND r.priority = rank AND r.flow_key > t.flow_key
                  AND r.wake_at IS NOT NULL
                ORDER BY r.flow_key, r.wake_at LIMIT 1
            ) behind
            UNION ALL
            SELECT * FROM (
                SELECT r.flow_key, r.run_id, r.wake_at, r.epoch = 0,
                       batuta.may_take(r.code, r.failed_code, codes, fingerprints)
                       AND (NOT batuta.is_suspect(r.deaths, r.head, r.claimed_head) OR r.run_id = suspect), true
                FROM batuta.runs r
                WHERE NOT t.again AND r.namespace = ns AND r.queue = q.name AND r.priority = rank AND r.wake_at IS NOT NULL
                ORDER BY r.flow_key, r.wake_at LIMIT 1
            ) from_the_first
            LIMIT 1
        ) k
        CROSS JOIN LATERAL (
            SELECT k.first AND k.flow_key <> '' AND q.key_rate_count IS NOT NULL AND k.wake_at <= moment
                   AND q.key_rate_count <= (SELECT sum(b.count) FROM batuta.begun b
                                            WHERE b.namespace = ns AND b.queue = q.name AND b.flow_key = k.flow_key
                                              AND b.slot > moment - q.key_rate_period
                                              AND b.slot <= moment + greatest(q.key_rate_period, 60000000)) AS worn
        ) w
        CROSS JOIN LATERAL (
            SELECT CASE WHEN k.wake_at > moment OR w.worn THEN 0
                        WHEN k.flow_key = '' OR q.key_concurrency IS NULL THEN room
                        ELSE q.key_concurrency - coalesce((busy ->> k.flow_key)::integer, 0) END AS may_give,
                   coalesce((had ->> k.flow_key)::bigint, 0) AS before
        ) g
        WHERE t.n < visits AND t.able < room AND (NOT k.again OR k.flow_key <= turn_key)
    ), giving AS MATERIALIZED (
        SELECT t.*, CASE WHEN t.may_give <= 1 THEN t.may_give ELSE least(t.may_give, room, -t.before + (
            SELECT batuta.fill_to(array_agg(o.before), room * depth) FROM turn o WHERE o.may_give > 0)) END AS most
        FROM turn t
    ), peek AS MATERIALIZED (
        SELECT * FROM (
            SELECT r.run_id, r.flow_key, r.wake_at, r.epoch = 0 AS first FROM batuta.runs r
            WHERE r.namespace = ns AND r.queue = q.name AND r.priority = rank AND r.flow_key = '' AND r.wake_at <= moment
              AND batuta.may_take(r.code, r.failed_code, codes, fingerprints)
              AND (NOT batuta.is_suspect(r.deaths, r.head, r.claimed_head) OR r.run_id = suspect)
            ORDER BY r.wake_at LIMIT early
        ) plain
        UNION
        SELECT * FROM (
            SELECT r.run_id, r.flow_key, r.wake_at, r.epoch = 0 FROM batuta.runs r
            WHERE r.namespace = ns AND r.queue = q.name AND r.priority = rank AND r.flow_key <> '' AND r.wake_at <= moment
              AND batuta.may_take(r.code, r.failed_code, codes, fingerprints)
              AND (NOT batuta.is_suspect(r.deaths, r.head, r.claimed_head) OR r.run_id = suspect)
            ORDER BY r.wake_at LIMIT early
        ) keyed
        UNION
        SELECT * FROM (
            SELECT r.run_id, r.flow_key, r.wake_at, false FROM batuta.runs r
            WHERE (fresh < room OR q.key_rate_count IS NOT NULL)
              AND r.namespace = ns AND r.queue = q.name AND r.priority = rank AND r.epoch > 0 AND r.wake_at <= moment
              AND batuta.may_take(r.code, r.failed_code, codes, fingerprints)
              AND (NOT batuta.is_suspect(r.deaths, r.head, r.claimed_head) OR r.run_id = suspect)
            ORDER BY r.wake_at LIMIT early
        ) begun
        UNION
        SELECT g.run_id, g.flow_key, g.wake_at, g.first FROM giving g WHERE g.most = 1 AND g.fits
        UNION
        SELECT p.*
        FROM (SELECT g.flow_key, g.most FROM giving g WHERE g.most > 1 OR g.most = 1 AND NOT g.fits) g
        CROSS JOIN LATERAL (
            SELECT r.run_id, r.flow_key, r.wake_at, r.epoch = 0 FROM batuta.runs r
            WHERE r.namespace = ns AND r.queue = q.name AND r.priority = rank AND r.flow_key = g.flow_key
              AND r.wake_at <= moment
              AND batuta.may_take(r.code, r.failed_code, codes, fingerprints)
              AND (NOT batuta.is_suspect(r.deaths, r.head, r.claimed_head) OR r.run_id = suspect)
            ORDER BY r.wake_at LIMIT g.most
        ) p
    ), rates AS MATERIALIZED (
        -- As rate_left, which would cost several times as much.
        SELECT jsonb_object_agg(d.flow_key, q.key_rate_count - coalesce((
            SELECT sum(b.count) FROM batuta.begun b
            WHERE b.namespace = ns AND b.queue = q.name AND b.flow_key = d.flow_key
              AND b.slot > moment - q.key_rate_period
              AND b.slot <= moment + greatest(q.key_rate_period, 60000000)), 0)) AS by_key
        FROM (SELECT DISTINCT p.flow_key FROM peek p WHERE p.flow_key <> '' AND q.key_rate_count IS NOT NULL) d
    ), counted AS MATERIALIZED (
        -- Of its key: how many that would begin and how many others there are up to this one, and how many may begin.
        SELECT p.*, count(*) FILTER (WHERE p.first) OVER in_key AS firsts,
               count(*) FILTER (WHERE NOT p.first) OVER in_key AS others,
               greatest(coalesce(((SELECT s.by_key FROM rates s) ->> p.flow_key)::integer, 2147483647), 0) AS allowed
        FROM peek p WINDOW in_key AS (PARTITION BY p.flow_key ORDER BY p.wake_at, p.run_id)
    ), aged AS (
        SELECT f.*, f.nth + coalesce((had ->> f.flow_key)::bigint, 0) AS lap,
               row_number() OVER (ORDER BY f.wake_at, f.run_id) <= wanted - by_turn AS old
        FROM (SELECT c.*, least(c.firsts, c.allowed, fresh) + c.others AS nth FROM counted c) f
        WHERE (NOT f.first OR f.firsts <= least(f.allowed, fresh))
          AND (f.flow_key = '' OR q.key_concurrency IS NULL
               OR f.nth <= q.key_concurrency - coalesce((busy ->> f.flow_key)::integer, 0))
    ), turned AS (
        SELECT a.*, NOT a.old AND by_turn >= row_number() OVER (
            PARTITION BY a.old ORDER BY a.lap, a.flow_key <= turn_key, a.flow_key) AS turn
        FROM aged a
    ), numbered AS (
        SELECT t.*, row_number() OVER chosen AS n, count(*) FILTER (WHERE t.first) OVER chosen AS so_far
        FROM turned t
        WINDOW chosen AS (ORDER BY NOT t.old, NOT t.turn, CASE WHEN t.turn THEN t.lap END,
                          CASE WHEN t.turn THEN t.flow_key <= turn_key END, CASE WHEN t.turn THEN t.flow_key END,
                          t.wake_at, t.run_id)
    ), chosen AS MATERIALIZED (
        SELECT n.* FROM numbered n WHERE NOT n.first OR fresh IS NULL OR n.so_far <= fresh ORDER BY n.n LIMIT room
    ), locked AS MATERIALIZED (
        SELECT c.* FROM chosen c
        CROSS JOIN LATERAL (
            SELECT r.run_id FROM batuta.runs r
            WHERE r.run_id = c.run_id AND r.wake_at <= moment FOR NO KEY UPDATE SKIP LOCKED
        ) r
    )
    SELECT coalesce(array_agg(l.run_id ORDER BY l.wake_at, l.run_id), '{}'), array_agg(l.flow_key) FILTER (WHERE l.first),
           coalesce((SELECT c.flow_key FROM chosen c WHERE c.turn ORDER BY c.n DESC LIMIT 1),
                    CASE WHEN count(*) = 0 THEN (SELECT t.flow_key FROM turn t ORDER BY t.n DESC LIMIT 1) END),
           ARRAY(SELECT c.flow_key FROM counted c WHERE c.first AND c.firsts > c.allowed
                 UNION SELECT t.flow_key FROM turn t WHERE t.worn),
           (SELECT count(*) FROM chosen) < wanted AND EXISTS (
               SELECT FROM giving g
               WHERE g.most < least(g.may_give, room)
                 AND g.most <= (SELECT count(*) FROM aged a WHERE a.flow_key = g.flow_key))
    INTO ids, begins, last_turn, late, deeper
    FROM locked l;
END
$$;

-- Like batuta.choose, for a queue whose runs may all begin. Starting a statement this large and its sorts cost much, so
-- it contains only what is needed here: this takes a third less. more: not all runs that it saw were chosen.
CREATE OR REPLACE FUNCTION batuta.choose_places(
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
