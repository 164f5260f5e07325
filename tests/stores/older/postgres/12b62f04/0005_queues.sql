-- What a worker takes from its queues.
--
-- Queues that were never limited, with runs that have no flow key, are one index range each and nothing else. Whoever
-- takes from a queue with limits holds its row locked from before it counts: the row comes first, then runs, which are
-- never waited for. Owned runs are counted as they are, so that nothing can drift.
--
-- What is due and has a flow key is taken by turns: one that has been due for longest, then three of the keys that have had
-- the fewest. Where the turn stands is the caller's to remember, per queue and priority: `turn_key` had the last turn;
-- `step` is how much of the lap of four is over; `had` says how many of each key were taken of late.

-- All that runs a query is plpgsql: its plan is kept, where that of a function in SQL is made anew by each call.

-- Those of the queues in which no run may begin at once.
CREATE FUNCTION batuta.shut_queues(ns text, names text[]) RETURNS text[] LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN ARRAY(
        SELECT q.name FROM batuta.queues q WHERE q.namespace = ns AND q.name = ANY (names) AND (q.paused OR q.limited));
END
$$;

-- Whether a worker with this code may have a run.
CREATE FUNCTION batuta.may_take(code text, failed text[], codes text[], fingerprints text[])
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT code = ANY (codes) AND fingerprints[array_position(codes, code)] <> ALL (failed)
$$;

-- See may_take_suspect.
CREATE FUNCTION batuta.is_suspect(deaths integer, head integer, claimed_head integer)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT deaths >= 2 AND head = claimed_head
$$;

-- The highest priority below `under` that is waiting in any of the queues, due or not.
CREATE FUNCTION batuta.next_priority(ns text, queue_names text[], under bigint) RETURNS integer LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT max(p.priority)
        FROM unnest(queue_names) AS q(name)
        CROSS JOIN LATERAL (
            SELECT r.priority FROM batuta.runs r
            WHERE r.namespace = ns AND r.queue = q.name AND r.priority < under AND r.wake_at IS NOT NULL
            ORDER BY r.priority DESC LIMIT 1
        ) p);
END
$$;

-- The same for a look that begins at `floors`: priorities that have one are taken for waiting.
CREATE FUNCTION batuta.next_priority_from(ns text, queue_names text[], under bigint, floors jsonb)
RETURNS integer LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT max(coalesce(p.priority, f.priority))
        FROM unnest(queue_names) AS q(name)
        CROSS JOIN LATERAL (
            SELECT max(k.rank::integer) AS priority FROM jsonb_object_keys(floors -> q.name) AS k(rank)
            WHERE k.rank::bigint < under
        ) f
        LEFT JOIN LATERAL (
            SELECT r.priority FROM batuta.runs r
            WHERE r.namespace = ns AND r.queue = q.name AND r.priority < under AND r.wake_at IS NOT NULL
              AND r.priority > coalesce(f.priority, -2147483649)
            ORDER BY r.priority DESC LIMIT 1
        ) p ON true);
END
$$;

-- Where a look at a queue and priority begins.
CREATE FUNCTION batuta.floor_of(floors jsonb, queue_name text, rank bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce((floors -> queue_name ->> rank::text)::bigint, '-9223372036854775808')
$$;

-- The earliest wake_at of a queue at one priority.
CREATE FUNCTION batuta.oldest_due(ns text, queue_name text, rank bigint) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT least(
            (SELECT r.wake_at FROM batuta.runs r
             WHERE r.namespace = ns AND r.queue = queue_name AND r.priority = rank AND r.flow_key = ''
               AND r.wake_at IS NOT NULL
             ORDER BY r.wake_at LIMIT 1),
            (SELECT r.wake_at FROM batuta.runs r
             WHERE r.namespace = ns AND r.queue = queue_name AND r.priority = rank AND r.flow_key <> ''
               AND r.wake_at IS NOT NULL
             ORDER BY r.wake_at LIMIT 1)));
END
$$;

-- Whether anything in the queue is due.
CREATE FUNCTION batuta.has_due(ns text, queue_name text, moment bigint) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
DECLARE
    rank bigint := 2147483648;
BEGIN
    LOOP
        rank := batuta.next_priority(ns, ARRAY[queue_name], rank);
        IF rank IS NULL OR batuta.oldest_due(ns, queue_name, rank) <= moment THEN
            RETURN rank IS NOT NULL;
        END IF;
    END LOOP;
END
$$;

-- The owned runs of a queue, in all and by flow key: owner by owner, of which there are few.
CREATE FUNCTION batuta.count_owned(ns text, queue_name text, OUT total integer, OUT by_key jsonb) LANGUAGE plpgsql STABLE AS $$
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

-- How many may begin now under a rate of `most` in a period. What began is counted by parts of a period, each until its
-- end is a whole period ago: never more than `most` begin in any period. What seems to begin later than that,
-- or in a minute, began before the clock was set back.
CREATE FUNCTION batuta.rate_left(ns text, queue_name text, key text, most integer, period bigint, moment bigint)
RETURNS integer LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT greatest(most - coalesce(sum(b.count), 0), 0)::integer FROM batuta.begun b
        WHERE b.namespace = ns AND b.queue = queue_name AND b.flow_key = key
          AND b.slot > moment - period AND b.slot <= moment + greatest(period, 60000000));
END
$$;

-- When one more may begin; null when no time allows it.
CREATE FUNCTION batuta.rate_at(ns text, queue_name text, key text, most integer, period bigint, moment bigint)
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

-- Drop up to `most` counts that no rate looks at any more.
CREATE FUNCTION batuta.forget_begun(ns text, moment bigint, most integer) RETURNS void LANGUAGE plpgsql AS $$
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
CREATE FUNCTION batuta.note_begun(ns text, q batuta.queues, keys text[], moment bigint) RETURNS void LANGUAGE plpgsql AS $$
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

-- Flow keys that are waiting in a queue at one priority, each once, from behind one of them: up to `many`, and when the
-- first of each is due. What has no key is as a key of its own, before all others.
CREATE FUNCTION batuta.next_keys(
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

-- The longest due of queues whose runs have no flow key, up to `most`, and of each queue up to its cap. `first_at` is the
-- wake_at of the first of them.
CREATE FUNCTION batuta.take_plain(
    ns text, names text[], caps integer[], rank bigint, moment bigint, most integer, codes text[], fingerprints text[],
    suspect uuid, floors jsonb, OUT ids uuid[], OUT first_at bigint
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT coalesce(array_agg(t.run_id), '{}'), min(t.wake_at) INTO ids, first_at
    FROM (
        SELECT p.run_id, p.wake_at
        FROM unnest(names, caps) AS q(name, cap)
        CROSS JOIN LATERAL (
            SELECT r.run_id, r.wake_at FROM batuta.runs r
            WHERE r.namespace = ns AND r.queue = q.name AND r.priority = rank AND r.flow_key = '' AND r.wake_at <= moment
              AND r.wake_at >= batuta.floor_of(floors, q.name, rank)
              AND batuta.may_take(r.code, r.failed_code, codes, fingerprints)
              AND (NOT batuta.is_suspect(r.deaths, r.head, r.claimed_head) OR r.run_id = suspect)
            ORDER BY r.wake_at LIMIT least(most, q.cap) FOR NO KEY UPDATE SKIP LOCKED
        ) p
        ORDER BY p.wake_at, p.run_id LIMIT most
    ) t;
END
$$;

-- The longest due of one queue, whatever their flow keys, but for `besides`.
CREATE FUNCTION batuta.take_by_time(
    ns text, queue_name text, rank bigint, moment bigint, most integer, codes text[], fingerprints text[], suspect uuid,
    besides uuid[], OUT ids uuid[], OUT keys text[]
) LANGUAGE plpgsql AS $$
BEGIN
    SELECT coalesce(array_agg(t.run_id), '{}'), coalesce(array_agg(t.flow_key), '{}') INTO ids, keys
    FROM (
        SELECT * FROM (
            SELECT r.run_id, r.flow_key, r.wake_at FROM batuta.runs r
            WHERE r.namespace = ns AND r.queue = queue_name AND r.priority = rank AND r.flow_key = ''
              AND r.wake_at <= moment AND r.run_id <> ALL (besides)
              AND batuta.may_take(r.code, r.failed_code, codes, fingerprints)
              AND (NOT batuta.is_suspect(r.deaths, r.head, r.claimed_head) OR r.run_id = suspect)
            ORDER BY r.wake_at LIMIT most FOR NO KEY UPDATE SKIP LOCKED
        ) plain
        UNION ALL
        SELECT * FROM (
            SELECT r.run_id, r.flow_key, r.wake_at FROM batuta.runs r
            WHERE r.namespace = ns AND r.queue = queue_name AND r.priority = rank AND r.flow_key <> ''
              AND r.wake_at <= moment AND r.run_id <> ALL (besides)
              AND batuta.may_take(r.code, r.failed_code, codes, fingerprints)
              AND (NOT batuta.is_suspect(r.deaths, r.head, r.claimed_head) OR r.run_id = suspect)
            ORDER BY r.wake_at LIMIT most FOR NO KEY UPDATE SKIP LOCKED
        ) keyed
        ORDER BY wake_at, run_id LIMIT most
    ) t;
END
$$;

-- Of so many that are taken, how many come in turn.
CREATE FUNCTION batuta.in_turn(most integer, step integer) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT most - (most + step + 3) / 4 + (step + 3) / 4
$$;

-- How much each key may have in all, when those that have had the fewest are given `most` more.
CREATE FUNCTION batuta.fill_to(had bigint[], most integer) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
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
CREATE FUNCTION batuta.take_in_turn(
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
        -- What was taken by time counts as turns of its keys.
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

-- Choose among what is due in a queue whose row is locked, and lock that: the longest due, and those of flow keys in turn,
-- from behind `turn_key`, up to as many keys as may be needed. A key that can give nothing is passed, and so is one that has
-- had some of late, for which others may do. `room` is how many it may give, `fresh` how many of them may begin (null: any),
-- `depth` how often the share of a key is looked for in it (null: all that it may give). last_turn: where the turn stands
-- then; begins: the keys of those that begin; late: keys whose rate left some out; deeper: keys have less than their share, and
-- others may have more.
CREATE FUNCTION batuta.choose(
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

-- Take from a queue with limits, whose row is locked: by wake_at, those that are `taken`. owned: see count_owned; null when that
-- was not asked since the last were taken. held: something due was left because
-- of the limits; again_at: when time allows the next of that; spent: no more of it in this claim, of whatever priority.
CREATE FUNCTION batuta.take_limited(
    ns text, queue_name text, rank bigint, moment bigint, most integer, codes text[], fingerprints text[], suspect uuid,
    had jsonb, INOUT turn_key text, INOUT step integer, owned jsonb, OUT taken uuid[], OUT held boolean,
    OUT again_at bigint, OUT spent boolean
) LANGUAGE plpgsql AS $$
DECLARE
    q batuta.queues;
    total integer;
    got record;
    share integer;
    room integer;
    fresh integer;
    depth integer;
    late text[];
    more boolean := false;
BEGIN
    SELECT * INTO q FROM batuta.queues k WHERE k.namespace = ns AND k.name = queue_name;
    IF owned IS NULL THEN
        owned := to_jsonb(batuta.count_owned(ns, queue_name));
    END IF;
    total := owned -> 'total';
    -- Who took all places at once would leave nobody anything to do while it writes what they came to.
    share := CASE WHEN q.concurrency IS NOT NULL THEN greatest((q.concurrency + 1) / 2, 8) END;
    room := greatest(least(most, q.concurrency - total, share), 0);
    IF q.rate_count IS NOT NULL THEN
        fresh := batuta.rate_left(ns, queue_name, '', q.rate_count, q.rate_period, moment);
    END IF;
    taken := '{}';
    IF room > 0 AND q.rate_count IS NULL AND q.key_rate_count IS NULL THEN
        FOREACH depth IN ARRAY ARRAY[1, 8, NULL] LOOP
            got := batuta.choose_places(
                ns, q, rank, moment, codes, fingerprints, suspect, owned -> 'by_key', room, had, turn_key, step, depth);
            EXIT WHEN NOT got.deeper;
        END LOOP;
        more := got.more;
    ELSIF room > 0 THEN
        FOREACH depth IN ARRAY ARRAY[1, 8, NULL] LOOP
            got := batuta.choose(
                ns, q, rank, moment, codes, fingerprints, suspect, owned -> 'by_key', room, fresh, had, turn_key, step, depth);
            EXIT WHEN NOT got.deeper;
        END LOOP;
        late := got.late;
        IF cardinality(got.begins) > 0 THEN
            PERFORM batuta.note_begun(ns, q, got.begins, moment);
            PERFORM batuta.forget_begun(ns, moment, 2 * cardinality(got.begins));
        END IF;
    END IF;
    IF room > 0 THEN
        taken := got.ids;
        step := (step + cardinality(taken)) % 4;
        turn_key := coalesce(got.last_turn, turn_key);
    END IF;
    held := cardinality(taken) < most AND (more OR batuta.is_left(
        ns, queue_name, rank, moment, codes, fingerprints, suspect, taken));
    spent := held AND coalesce(total + cardinality(taken) >= q.concurrency, false);
    IF held AND NOT spent AND cardinality(taken) = share THEN
        spent := true;
        again_at := moment;
    ELSIF held AND NOT spent THEN
        IF q.rate_count IS NOT NULL THEN
            again_at := nullif(batuta.rate_at(ns, queue_name, '', q.rate_count, q.rate_period, moment), moment);
        END IF;
        IF again_at IS NULL THEN
            SELECT min(batuta.rate_at(ns, queue_name, k.key, q.key_rate_count, q.key_rate_period, moment)) INTO again_at
            FROM (SELECT l.key FROM unnest(late) AS l(key) LIMIT 100) k;
        END IF;
    END IF;
END
$$;

-- Whether anything is due at this priority that the worker may take, but for what it has taken.
CREATE FUNCTION batuta.is_left(
    ns text, queue_name text, rank bigint, moment bigint, codes text[], fingerprints text[], suspect uuid, taken uuid[]
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM batuta.runs r
        WHERE r.namespace = ns AND r.queue = queue_name AND r.priority = rank AND r.flow_key = '' AND r.wake_at <= moment
          AND batuta.may_take(r.code, r.failed_code, codes, fingerprints) AND r.run_id <> ALL (taken)
          AND (NOT batuta.is_suspect(r.deaths, r.head, r.claimed_head) OR r.run_id = suspect)
    ) OR EXISTS (
        SELECT FROM batuta.runs r
        WHERE r.namespace = ns AND r.queue = queue_name AND r.priority = rank AND r.flow_key <> '' AND r.wake_at <= moment
          AND batuta.may_take(r.code, r.failed_code, codes, fingerprints) AND r.run_id <> ALL (taken)
          AND (NOT batuta.is_suspect(r.deaths, r.head, r.claimed_head) OR r.run_id = suspect)
    );
END
$$;
