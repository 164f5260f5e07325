-- Claims: workers take runs from their queues.
--
-- A queue without limits, with runs that have no flow key, is one index range and nothing else. A worker that claims
-- from a queue with limits locks the queue's row before it counts: that row first, then runs, which it never waits for.
-- It counts owned runs directly, so that no counter can drift.
--
-- Functions with a query are plpgsql: the server keeps their plan, but plans a function in SQL again with each call.

-- Whether a worker with this code may have a run.
CREATE OR REPLACE FUNCTION batuta.may_take(code text, failed text[], codes text[], fingerprints text[])
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT code = ANY (codes) AND fingerprints[array_position(codes, code)] <> ALL (failed)
$$;

-- See may_take_suspect.
CREATE OR REPLACE FUNCTION batuta.is_suspect(deaths integer, head integer, claimed_head integer)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT deaths >= 2 AND head = claimed_head
$$;

-- The highest priority below `under` that is waiting in any of the queues, due or not.
CREATE OR REPLACE FUNCTION batuta.next_priority(ns text, queue_names text[], under bigint) RETURNS integer LANGUAGE plpgsql STABLE AS $$
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
CREATE OR REPLACE FUNCTION batuta.next_priority_from(ns text, queue_names text[], under bigint, floors jsonb)
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
CREATE OR REPLACE FUNCTION batuta.floor_of(floors jsonb, queue_name text, rank bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce((floors -> queue_name ->> rank::text)::bigint, '-9223372036854775808')
$$;

-- The earliest wake_at of a queue at one priority.
CREATE OR REPLACE FUNCTION batuta.oldest_due(ns text, queue_name text, rank bigint) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
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
CREATE OR REPLACE FUNCTION batuta.has_due(ns text, queue_name text, moment bigint) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
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

-- The longest due of queues whose runs have no flow key, up to `most`, and of each queue up to its cap. `first_at` is the
-- wake_at of the first of them.
CREATE OR REPLACE FUNCTION batuta.take_plain(
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
CREATE OR REPLACE FUNCTION batuta.take_by_time(
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

-- Take from a queue with limits, whose row is locked: by wake_at, those that are `taken`. owned: see count_owned; null when that
-- was not asked since the last were taken. held: something due was left because
-- of the limits; again_at: when time allows the next of that; spent: no more of it in this claim, of whatever priority.
CREATE OR REPLACE FUNCTION batuta.take_limited(
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
    -- A worker that took all slots at once would leave the others idle while it writes the results.
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

-- Whether anything is due at this priority that the worker may take, except what it has taken.
CREATE OR REPLACE FUNCTION batuta.is_left(
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
        WHERE r.namespace = ns AND r.queue = queue_name AND r.priority = rank AND r.flow_key > '' AND r.wake_at <= moment
          AND batuta.may_take(r.code, r.failed_code, codes, fingerprints) AND r.run_id <> ALL (taken)
          AND (NOT batuta.is_suspect(r.deaths, r.head, r.claimed_head) OR r.run_id = suspect)
    );
END
$$;

-- Own up to `wanted` due runs: by priority, then by wake_at, and at most one suspect. One index range per queue and
-- priority, so that sleeping runs are not looked at. From queues named in `room_names`, as many as `rooms` says.
-- `turns`, by queue and priority, hold the state of the rotation: its key, its step, and how many runs of each key were
-- taken recently. Rows without a run are news, as JSON: the new state of the rotation (queue, priority, key, step),
-- where the next look may begin (queue, priority, time), or that limits held something back, and until when.
--
-- Claimed runs stay in the index until it is vacuumed, which an old snapshot can delay for long. A claim that had to
-- pass many such entries returns a time before which nothing of a queue and priority was left, and the caller passes it
-- back next time, as `floors`: by queue and priority. A run that becomes due with an earlier time (its transaction took
-- long, or its worker died) is found by the next look without floors, which the caller makes regularly.
CREATE OR REPLACE FUNCTION batuta.claim(
    ns text, worker text, queue_names text[], codes text[], fingerprints text[], wanted integer,
    room_names text[], rooms integer[], turns jsonb, floors jsonb
) RETURNS SETOF batuta.claimed LANGUAGE plpgsql AS $$
DECLARE
    many CONSTANT integer := 1000;
    late CONSTANT integer := 1000000;
    index CONSTANT oid := 'batuta.runs_due'::regclass;
    passed bigint;
    moment bigint := batuta.batuta_now();
    rank bigint := 2147483648;
    left_over integer := wanted;
    most integer;
    may_suspect boolean;
    suspect uuid;
    names text[];
    shut text[];
    limited text[];
    flowing text[];
    plain text[];
    owned jsonb;
    spent text[] := '{}';
    caps integer[];
    found_ids uuid[];
    turn jsonb;
    turn_queue text;
    turn_key text;
    step integer;
    held boolean := false;
    again_at bigint;
    other batuta.claimed;
    part record;
    got record;
BEGIN
    PERFORM 1 FROM batuta.workers w WHERE w.namespace = ns AND w.worker_id = worker AND w.lease_until > moment;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT array_agg(k.name) FILTER (WHERE k.paused), array_agg(k.name ORDER BY k.name) FILTER (WHERE NOT k.paused)
    INTO shut, limited
    FROM batuta.queues k WHERE k.namespace = ns AND k.name = ANY (queue_names) AND (k.paused OR k.limited);
    names := queue_names;
    IF shut IS NOT NULL OR rooms IS NOT NULL THEN
        names := ARRAY(
            SELECT n.name FROM unnest(queue_names) AS n(name)
            WHERE (n.name = ANY (shut)) IS NOT TRUE AND coalesce(rooms[array_position(room_names, n.name)] > 0, true));
        -- In the order that they have: the database may sort names in another one than the column does.
        limited := ARRAY(SELECT n.name FROM unnest(limited) WITH ORDINALITY AS n(name, n) WHERE n.name = ANY (names) ORDER BY n.n);
    END IF;
    IF cardinality(limited) > 0 THEN
        part := batuta.lock_queues(ns, limited);
        IF cardinality(part.shut) > 0 THEN
            names := ARRAY(SELECT n.name FROM unnest(names) AS n(name) WHERE n.name <> ALL (part.shut));
            held := part.due;
            again_at := part.again_at;
        END IF;
        owned := part.owned;
        moment := batuta.batuta_now();
    END IF;
    may_suspect := batuta.may_take_suspect(ns, worker);
    WHILE left_over > 0 AND cardinality(names) > 0 LOOP
        passed := pg_stat_get_xact_tuples_returned(index);
        IF floors IS NULL THEN
            rank := batuta.next_priority(ns, names, rank);
        ELSE
            rank := batuta.next_priority_from(ns, names, rank, floors);
        END IF;
        EXIT WHEN rank IS NULL;
        suspect := NULL;
        -- Suspects are few and have their own index; `+ 0` keeps the planner from looking through all that is due.
        SELECT r.run_id INTO suspect FROM batuta.runs r
        WHERE may_suspect AND r.namespace = ns AND r.owner IS NULL AND r.deaths >= 2 AND r.closed_at IS NULL
          AND r.head = r.claimed_head
          AND r.queue || '' = ANY (names) AND r.priority + 0 = rank AND r.wake_at + 0 <= moment
          AND batuta.may_take(r.code, r.failed_code, codes, fingerprints)
        ORDER BY r.wake_at + 0 LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
        IF names <@ limited THEN
            flowing := names;
        ELSE
            flowing := ARRAY(
                SELECT n.name FROM unnest(names) AS n(name)
                WHERE n.name = ANY (limited) OR EXISTS (
                    SELECT FROM batuta.runs r
                    -- By time, and not <> '': else PostgreSQL 15 goes through all that have none, in runs_due.
                    WHERE r.namespace = ns AND r.queue = n.name AND r.priority = rank AND r.flow_key > ''
                      AND r.wake_at <= moment AND r.wake_at >= batuta.floor_of(floors, n.name, rank)
                    ORDER BY r.wake_at OFFSET 0));
        END IF;
        found_ids := '{}';
        IF cardinality(flowing) = 0 THEN
            IF rooms IS NOT NULL THEN
                caps := ARRAY(SELECT rooms[array_position(room_names, n.name)]
                              FROM unnest(names) WITH ORDINALITY AS n(name, n) ORDER BY n.n);
            END IF;
            SELECT * INTO got FROM batuta.take_plain(
                ns, names, caps, rank, moment, left_over, codes, fingerprints, suspect, floors);
            found_ids := got.ids;
            IF pg_stat_get_xact_tuples_returned(index) - passed > many + 3 * cardinality(found_ids) THEN
                FOREACH turn_queue IN ARRAY names LOOP
                    other.news := json_build_array(turn_queue, rank, least(moment - late, got.first_at));
                    RETURN NEXT other;
                END LOOP;
            END IF;
        END IF;
        FOREACH turn_queue IN ARRAY batuta.by_age(ns, names, flowing, rank, moment) LOOP
            most := left_over - cardinality(found_ids);
            EXIT WHEN most <= 0;
            IF turn_queue = '' THEN
                SELECT array_agg(n.name ORDER BY n.n), array_agg(rooms[array_position(room_names, n.name)] ORDER BY n.n)
                INTO plain, caps
                FROM unnest(names) WITH ORDINALITY AS n(name, n) WHERE n.name <> ALL (flowing);
                SELECT found_ids || t.ids INTO found_ids FROM batuta.take_plain(
                    ns, plain, caps, rank, moment, most, codes, fingerprints, suspect, floors) t;
                CONTINUE;
            END IF;
            most := least(most, rooms[array_position(room_names, turn_queue)]);
            turn := turns -> turn_queue -> rank::text;
            turn_key := coalesce(turn ->> 0, '');
            step := coalesce((turn ->> 1)::integer, 0);
            IF turn_queue = ANY (limited) THEN
                got := batuta.take_limited(
                    ns, turn_queue, rank, moment, most, codes, fingerprints, suspect, turn -> 2, turn_key, step,
                    owned -> turn_queue);
                owned := owned - turn_queue;  -- at another priority it is counted anew
                held := held OR got.held;
                again_at := least(again_at, got.again_at);
                IF got.spent THEN
                    spent := spent || turn_queue;
                END IF;
            ELSE
                got := batuta.take_in_turn(
                    ns, turn_queue, rank, moment, most, codes, fingerprints, suspect, turn -> 2, turn_key, step);
            END IF;
            found_ids := found_ids || got.taken;
            IF (got.turn_key, got.step) <> (turn_key, step) THEN
                other.news := json_build_array(turn_queue, rank, got.turn_key, got.step);
                RETURN NEXT other;
            END IF;
        END LOOP;
        may_suspect := may_suspect AND coalesce(suspect <> ALL (found_ids), true);
        left_over := left_over - cardinality(found_ids);
        -- One queue with limits gives them in order; others by turns, or one after the other.
        IF cardinality(flowing) > 0 AND (cardinality(names) > 1 OR (names[1] = ANY (limited)) IS NOT TRUE) THEN
            found_ids := ARRAY(
                SELECT f.run_id FROM unnest(found_ids) AS f(run_id)
                CROSS JOIN LATERAL (SELECT r.wake_at FROM batuta.runs r WHERE r.run_id = f.run_id OFFSET 0) r
                ORDER BY r.wake_at, f.run_id);
        END IF;
        IF rooms IS NOT NULL THEN
            SELECT array_agg(m.room - taken.several ORDER BY m.n),
                   array_agg(m.name) FILTER (WHERE m.room <= taken.several)
            INTO rooms, flowing
            FROM unnest(room_names, rooms) WITH ORDINALITY AS m(name, room, n)
            CROSS JOIN LATERAL (
                SELECT count(*)::integer AS several FROM unnest(found_ids) AS f(run_id)
                WHERE (SELECT r.queue FROM batuta.runs r WHERE r.run_id = f.run_id) = m.name
            ) taken;
            spent := spent || flowing;
        END IF;
        IF cardinality(spent) > 0 THEN
            names := ARRAY(SELECT n.name FROM unnest(names) AS n(name) WHERE n.name <> ALL (spent));
        END IF;
        RETURN QUERY
        UPDATE batuta.runs r
        SET epoch = least(r.epoch, 2147483646) + 1, state = 'running', owner = worker, wake_at = NULL, reason = '',
            claimed_head = r.head,
            deaths = CASE WHEN r.head = r.claimed_head THEN r.deaths ELSE 0 END,
            deadline = CASE WHEN r.expires_at <= moment THEN least(r.deadline, r.expires_at) ELSE r.deadline END,
            expires_at = NULL, debounce = NULL
        FROM unnest(found_ids) AS f(run_id)
        WHERE r.run_id = f.run_id
        RETURNING r.run_id, r.id, r.kind, r.name, r.queue, r.priority, r.epoch, r.head, r.created_at, r.code, r.flow_key,
                  CASE WHEN r.deaths <> 0 OR r.deadline IS NOT NULL OR r.chain_id <> r.run_id OR r.parent_run_id IS NOT NULL
                            OR r.parent_seq <> 0 OR r.forked_from IS NOT NULL OR r.forked_at <> -1 OR r.version <> ''
                            OR r.tags <> '{}' OR r.memo <> 'null' OR r.failed_code <> '{}' OR r.awaits <> 0
                       THEN json_build_array(
                           r.deaths, r.deadline, r.chain_id, r.parent_run_id, r.parent_seq, r.forked_from, r.forked_at,
                           r.flow_key, r.version, r.tags, r.memo, r.failed_code, r.awaits)::text END,
                  r.start,
                  CASE WHEN r.head = 0 THEN (
                      SELECT j.kind || ' ' || j.at || ' ' || j.crc || ' ' || j.body
                      FROM batuta.journal j WHERE j.run_id = r.run_id AND j.ord = 0) END,
                  r.head > 0 OR (r.head < 0 AND r.start IS NULL)
                  OR EXISTS (SELECT FROM batuta.inbox i
                             WHERE i.chain_id = r.chain_id AND i.consumed_at IS NULL OFFSET 0)
                  OR (r.head = 0 AND EXISTS (SELECT FROM batuta.attempts t WHERE t.run_id = r.run_id OFFSET 0)),
                  NULL::text;
    END LOOP;
    IF left_over = wanted AND cardinality(limited) > 0 THEN
        -- Nothing was written but locks: that need not be on disk.
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    IF held THEN
        other.news := json_build_array(again_at, limited);
        RETURN NEXT other;
    END IF;
END
$$;

-- The queues of a claim with flow keys, at one priority, in claim order: by the longest due. Among them '', for all
-- others, which are claimed together. Nothing when none has flow keys.
CREATE OR REPLACE FUNCTION batuta.by_age(ns text, queue_names text[], flowing text[], rank bigint, moment bigint)
RETURNS text[] LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF cardinality(flowing) = 0 OR cardinality(queue_names) = 1 THEN
        RETURN flowing;
    END IF;
    RETURN ARRAY(
        SELECT p.name
        FROM (
            SELECT f.name, batuta.oldest_due(ns, f.name, rank) AS oldest FROM unnest(flowing) AS f(name)
            UNION ALL
            SELECT '', min(batuta.oldest_due(ns, n.name, rank))
            FROM unnest(queue_names) AS n(name) WHERE n.name <> ALL (flowing)
        ) p
        WHERE p.oldest <= moment ORDER BY p.oldest);
END
$$;

-- The earliest time at which the worker can claim something.
CREATE OR REPLACE FUNCTION batuta.next_due(ns text, worker text, queue_names text[], codes text[], fingerprints text[])
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    rank bigint := 2147483648;
    earliest bigint;
    may_suspect boolean := batuta.may_take_suspect(ns, worker);
    names text[];
    q batuta.queues;
BEGIN
    names := ARRAY(
        SELECT n.name FROM unnest(queue_names) AS n(name)
        WHERE NOT EXISTS (
            SELECT FROM batuta.queues k WHERE k.namespace = ns AND k.name = n.name AND (k.paused OR k.limited) OFFSET 0));
    IF cardinality(names) < cardinality(queue_names) THEN
        FOR q IN SELECT * FROM batuta.queues k
                 WHERE k.namespace = ns AND k.name = ANY (queue_names) AND k.limited AND NOT k.paused LOOP
            earliest := least(earliest, batuta.next_allowed(ns, q, codes, fingerprints, may_suspect));
        END LOOP;
    END IF;
    LOOP
        rank := batuta.next_priority(ns, names, rank);
        EXIT WHEN rank IS NULL;
        SELECT least(earliest, min(d.wake_at)) INTO earliest
        FROM unnest(names) AS n(name)
        CROSS JOIN LATERAL (
            SELECT * FROM (
                SELECT r.wake_at FROM batuta.runs r
                WHERE r.namespace = ns AND r.queue = n.name AND r.priority = rank AND r.flow_key = ''
                  AND r.wake_at IS NOT NULL AND batuta.may_take(r.code, r.failed_code, codes, fingerprints)
                  AND (may_suspect OR NOT batuta.is_suspect(r.deaths, r.head, r.claimed_head))
                ORDER BY r.wake_at LIMIT 1
            ) plain
            UNION ALL
            SELECT * FROM (
                SELECT r.wake_at FROM batuta.runs r
                WHERE r.namespace = ns AND r.queue = n.name AND r.priority = rank AND r.flow_key <> ''
                  AND r.wake_at IS NOT NULL AND batuta.may_take(r.code, r.failed_code, codes, fingerprints)
                  AND (may_suspect OR NOT batuta.is_suspect(r.deaths, r.head, r.claimed_head))
                ORDER BY r.wake_at LIMIT 1
            ) keyed
        ) d;
    END LOOP;
    RETURN earliest;
END
$$;

-- The same for one queue with limits. Where flow keys have limits it looks at the longest waiting, and at a good number
-- of keys.
CREATE OR REPLACE FUNCTION batuta.next_allowed(ns text, q batuta.queues, codes text[], fingerprints text[], may_suspect boolean)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    moment bigint := batuta.batuta_now();
    rank bigint := 2147483648;
    owned record;
    queue_at bigint := 0;
    keys text[];
    earliest bigint;
BEGIN
    SELECT * INTO owned FROM batuta.count_owned(ns, q.name);
    IF q.concurrency <= owned.total THEN
        RETURN NULL;
    END IF;
    IF q.rate_count IS NOT NULL THEN
        queue_at := batuta.rate_at(ns, q.name, '', q.rate_count, q.rate_period, moment);
    END IF;
    LOOP
        rank := batuta.next_priority(ns, ARRAY[q.name], rank);
        EXIT WHEN rank IS NULL;
        keys := '{}';
        LOOP
            WITH waiting AS (
                SELECT * FROM (
                    SELECT r.flow_key, r.wake_at, r.epoch = 0 AS first FROM batuta.runs r
                    WHERE r.namespace = ns AND r.queue = q.name AND r.priority = rank AND r.flow_key = ''
                      AND r.wake_at IS NOT NULL AND batuta.may_take(r.code, r.failed_code, codes, fingerprints)
                      AND (may_suspect OR NOT batuta.is_suspect(r.deaths, r.head, r.claimed_head))
                    ORDER BY r.wake_at LIMIT 100
                ) plain
                UNION ALL
                SELECT * FROM (
                    SELECT r.flow_key, r.wake_at, r.epoch = 0 FROM batuta.runs r
                    WHERE r.namespace = ns AND r.queue = q.name AND r.priority = rank AND r.flow_key <> ''
                      AND r.wake_at IS NOT NULL AND batuta.may_take(r.code, r.failed_code, codes, fingerprints)
                      AND (may_suspect OR NOT batuta.is_suspect(r.deaths, r.head, r.claimed_head))
                    ORDER BY r.wake_at LIMIT 100
                ) keyed
                UNION ALL
                SELECT * FROM (
                    SELECT r.flow_key, r.wake_at, false FROM batuta.runs r
                    WHERE r.namespace = ns AND r.queue = q.name AND r.priority = rank AND r.epoch > 0
                      AND r.wake_at IS NOT NULL AND batuta.may_take(r.code, r.failed_code, codes, fingerprints)
                      AND (may_suspect OR NOT batuta.is_suspect(r.deaths, r.head, r.claimed_head))
                    ORDER BY r.wake_at LIMIT 100
                ) begun
                UNION ALL
                SELECT p.*
                FROM unnest(keys) AS k(key)
                CROSS JOIN LATERAL (
                    SELECT r.flow_key, r.wake_at, r.epoch = 0 FROM batuta.runs r
                    WHERE r.namespace = ns AND r.queue = q.name AND r.priority = rank AND r.flow_key = k.key
                      AND r.wake_at IS NOT NULL AND batuta.may_take(r.code, r.failed_code, codes, fingerprints)
                      AND (may_suspect OR NOT batuta.is_suspect(r.deaths, r.head, r.claimed_head))
                    ORDER BY r.wake_at LIMIT 1
                ) p
            ), distinct_waiting AS (
                SELECT w.flow_key, w.first, min(w.wake_at) AS wake_at FROM waiting w
                WHERE w.flow_key = '' OR q.key_concurrency IS NULL
                   OR coalesce((owned.by_key ->> w.flow_key)::integer, 0) < q.key_concurrency
                GROUP BY w.flow_key, w.first
            )
            SELECT least(earliest, min(CASE
                WHEN NOT w.first THEN w.wake_at
                WHEN queue_at + k.key_at IS NOT NULL THEN greatest(w.wake_at, queue_at, k.key_at) END))
            INTO earliest
            FROM distinct_waiting w
            CROSS JOIN LATERAL (
                SELECT CASE
                    WHEN w.flow_key = '' OR q.key_rate_count IS NULL OR NOT w.first THEN 0
                    WHEN q.key_rate_count > coalesce((
                        SELECT sum(b.count) FROM batuta.begun b
                        WHERE b.namespace = ns AND b.queue = q.name AND b.flow_key = w.flow_key
                          AND b.slot > moment - q.key_rate_period
                          AND b.slot <= moment + greatest(q.key_rate_period, 60000000)), 0) THEN 0
                    ELSE batuta.rate_at(ns, q.name, w.flow_key, q.key_rate_count, q.key_rate_period, moment)
                END AS key_at
            ) k;
            EXIT WHEN earliest <= moment OR cardinality(keys) > 0
                   OR q.key_concurrency IS NULL AND q.key_rate_count IS NULL;
            SELECT t.keys INTO keys FROM batuta.next_keys(ns, q.name, rank, '', 1000) t;
            EXIT WHEN cardinality(keys) = 0;
        END LOOP;
        EXIT WHEN earliest <= moment;
    END LOOP;
    RETURN earliest;
END
$$;
