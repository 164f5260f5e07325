-- Claiming from many queues at once, and starts that look at more than their own id.

-- What a claim returns of a run: all that the caller cannot know of one that it owns. rare: what few runs have, as a JSON
-- array (see the Python class), or null; flow keys are not rare where there are some. A run that sleeps after its start has
-- a journal of one entry, and nothing else: first is that entry, as one text. more: there is something to be read besides,
-- of attempts, messages but the start, and of the journal.
CREATE TYPE batuta.claimed AS (
    run_id uuid, id text, kind text, name text, queue text, priority integer, epoch integer, head integer,
    created_at bigint, code text, flow_key text, rare text, start text, first text, more boolean, news text
);

-- Own up to `wanted` due runs: by priority, then by wake_at, and one suspect at most. One index range per queue and
-- priority, so that runs that sleep are not looked at. Of queues that are named in `room_names`, as many as `rooms` says.
-- `turns`, by queue and priority, say where a turn stands: its key, its step, and what each key had of late.
-- Rows without a run are news, as JSON: where turns stand now (queue, priority, key, step), where the next look may begin
-- (queue, priority, time), or that limits held something back, and until when.
--
-- What was claimed stays in the index until it is vacuumed, which somebody's old snapshot can hold up for long. Whoever had
-- to pass many such entries is told a time before which nothing of a queue and priority was left, and gives it back next
-- time, as `floors`: by queue and priority. What comes to be due with a time before that (its transaction took long, or its
-- worker died) is found by the next look without: the caller's to make every now and then.
CREATE FUNCTION batuta.claim(
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
                    WHERE r.namespace = ns AND r.queue = n.name AND r.priority = rank AND r.flow_key <> ''
                      AND r.wake_at <= moment AND r.wake_at >= batuta.floor_of(floors, n.name, rank) OFFSET 0));
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
        SET epoch = r.epoch + 1, state = 'running', owner = worker, wake_at = NULL, reason = '', claimed_head = r.head,
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

-- The queues of a claim that flow, at one priority, in the order in which it takes from them: by what has been due for
-- longest. Among them '', for all others, which are taken from together. Nothing when none of them flows.
CREATE FUNCTION batuta.by_age(ns text, queue_names text[], flowing text[], rank bigint, moment bigint)
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

-- Lock the rows of queues with limits, in order. `shut` are those that can give nothing; due: but something is due in one
-- that is full. Of the others, owned: see count_owned. A full queue that another has locked is not waited for.
CREATE FUNCTION batuta.lock_queues(
    ns text, names text[], OUT shut text[], OUT due boolean, OUT owned jsonb
) LANGUAGE plpgsql AS $$
DECLARE
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
                SELECT * INTO q FROM batuta.queues k WHERE k.namespace = ns AND k.name = queue_name FOR NO KEY UPDATE;
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

-- The earliest time at which the worker can claim something.
CREATE FUNCTION batuta.next_due(ns text, worker text, queue_names text[], codes text[], fingerprints text[])
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
CREATE FUNCTION batuta.next_allowed(ns text, q batuta.queues, codes text[], fingerprints text[], may_suspect boolean)
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

-- Insert unowned runs, each with its start message, of which some are debounced, or all of which are awaited by
-- `after_id`, which is among them. Those without a debounce key come first, in order of their ids; the others in order of
-- their keys. `insteads`: of those with a key the one run that may do their work, null for any. Returns what became of those
-- that were started or replace another: `started` is that one then, and also where it is not the one of `insteads`, and
-- nothing was written. Nothing when `after_id` is there already: it is being written again.
CREATE FUNCTION batuta.start_together(
    ns text, after_id uuid, debounces text[], debounce_limits bigint[], insteads uuid[],
    run_ids uuid[], ids text[], renewals bigint[], chain_ids uuid[], kinds text[], names text[], codes text[],
    queues text[], priorities integer[], versions text[], tag_sets text[], memos text[], timeouts bigint[],
    execution_timeouts bigint[], parents uuid[], parent_seqs integer[], policies text[], flow_keys text[],
    expiries bigint[], epochs integer[], heads integer[], states text[], wakes bigint[], delays bigint[],
    reasons text[], fingerprints text[],
    message_ids text[], message_kinds text[], message_names text[], bodies text[]
) RETURNS TABLE (asked uuid, started uuid, started_at bigint, ends_at bigint, due_at bigint) LANGUAGE plpgsql AS $$
DECLARE
    moment bigint;
    fresh uuid[];
    other record;
BEGIN
    PERFORM 1 FROM batuta.runs r WHERE r.run_id = after_id;
    IF FOUND THEN
        RETURN;
    END IF;
    -- Who has a key of the same bucket waits here, and not later for a run that the other one has just made: in order of
    -- the keys, which is not that of the runs. Few buckets: a lock for each of ten thousand keys would fill their table.
    PERFORM pg_advisory_xact_lock(b.bucket) FROM (
        SELECT DISTINCT hashtextextended(ns, 7041) & x'7fffffffffff0000'::bigint | hashtext(d.key) & 63 AS bucket
        FROM unnest(debounces) AS d(key) WHERE d.key IS NOT NULL ORDER BY 1
    ) b;
    PERFORM batuta.lock_runs(ARRAY(
        SELECT h.run_id FROM unnest(debounces) AS d(key) CROSS JOIN LATERAL (
            SELECT r.run_id FROM batuta.runs r WHERE r.debounce = d.key AND r.namespace || '' = ns LIMIT 1) h));
    FOR asked, started, started_at, ends_at, due_at IN
        SELECT s.started, s.* FROM batuta.insert_runs(
            ns, NULL, run_ids, ids, renewals, chain_ids, kinds, names, codes, queues, priorities, versions, tag_sets,
            memos, timeouts, execution_timeouts, parents, parent_seqs, policies, flow_keys, expiries, epochs, heads,
            states, wakes, delays, reasons, fingerprints, run_ids, ARRAY(
                SELECT n.run_id FROM unnest(run_ids, debounces, insteads) AS n(run_id, key, instead)
                WHERE n.key IS NULL OR (coalesce(n.instead, n.run_id) = n.run_id AND NOT EXISTS (
                    SELECT FROM batuta.runs r WHERE r.debounce = n.key AND r.namespace || '' = ns OFFSET 0))
            ), debounces) s
    LOOP
        fresh := fresh || started;
        RETURN NEXT;
    END LOOP;
    moment := coalesce(started_at, batuta.batuta_now());
    INSERT INTO batuta.inbox (namespace, chain_id, message_id, kind, name, body, at)
    SELECT ns, coalesce(m.chain_id, m.run_id), m.message_id, m.kind, m.name, m.body, moment
    FROM unnest(run_ids, chain_ids, message_ids, message_kinds, message_names, bodies)
         AS m(run_id, chain_id, message_id, kind, name, body)
    WHERE (m.run_id IN (SELECT unnest(fresh))) IS TRUE;

    FOR other IN
        SELECT d.* FROM unnest(run_ids, ids, debounces, debounce_limits, insteads, delays, names, tag_sets, memos,
                               priorities, expiries, timeouts, execution_timeouts, bodies) WITH ORDINALITY
            AS d(run_id, id, key, put_off, instead, delay, name, tags, memo, priority, expiry, timeout, execution_timeout,
                 body, n)
        WHERE d.key IS NOT NULL AND (d.run_id IN (SELECT unnest(fresh))) IS NOT TRUE
          AND NOT EXISTS (SELECT FROM batuta.runs r WHERE r.run_id = d.run_id OFFSET 0)
        ORDER BY d.n
    LOOP
        UPDATE batuta.runs r
        SET tags = coalesce(other.tags, '{}'), memo = coalesce(other.memo, 'null'),
            priority = coalesce(other.priority, 0), expires_at = moment + nullif(other.expiry, 0), wake_at = w.wake_at,
            deadline = least(w.wake_at + nullif(other.timeout, 0), r.created_at + nullif(other.execution_timeout, 0))
        FROM (
            SELECT h.run_id, least(moment + other.delay, h.created_at + nullif(other.put_off, 0)) AS wake_at
            FROM batuta.runs h
            WHERE h.debounce = other.key AND h.namespace || '' = ns AND coalesce(other.instead, h.run_id) = h.run_id
            FOR NO KEY UPDATE
        ) w
        WHERE r.run_id = w.run_id
        RETURNING other.run_id, r.run_id, r.created_at, r.deadline, r.wake_at
        INTO asked, started, started_at, ends_at, due_at;
        IF FOUND THEN
            UPDATE batuta.inbox i SET name = other.name, body = other.body
            WHERE i.chain_id = started AND i.message_id = 'start:' || started;
            RETURN NEXT;
        ELSIF other.instead IS NOT NULL THEN
            SELECT other.run_id, h.run_id, h.created_at, h.deadline, h.wake_at
            INTO asked, started, started_at, ends_at, due_at
            FROM batuta.runs h WHERE h.debounce = other.key AND h.namespace || '' = ns;
            IF FOUND THEN
                RETURN NEXT;
            END IF;
        ELSE
            IF batuta.current_run(ns, other.id) IS NULL THEN
                RAISE EXCEPTION 'what was to be replaced has begun: try again' USING ERRCODE = 'serialization_failure';
            END IF;
        END IF;
    END LOOP;

    IF after_id = ANY (fresh) THEN
        UPDATE batuta.runs r
        SET awaits = cardinality(fresh) - 1, wake_at = CASE WHEN cardinality(fresh) = 1 THEN r.wake_at END
        WHERE r.run_id = after_id;
    ELSIF after_id IS NOT NULL THEN
        -- Nobody waits for them: another run has the id.
        UPDATE batuta.runs r SET parent_run_id = NULL, parent_policy = 'cancel'
        FROM unnest(fresh) AS f(run_id) WHERE r.run_id = f.run_id;
    END IF;
END
$$;

-- Every queue of a namespace that there is something to say about, by name.
CREATE FUNCTION batuta.view_queues(ns text, moment bigint) RETURNS TABLE (
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
