-- Keeps a worker's lease, and releases the runs of dead workers.

CREATE OR REPLACE FUNCTION batuta.worker_lock(ns text, worker text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    -- Not of joined texts, which could read the same: the namespace "a/b" with the worker "c", and "a" with "b/c".
    SELECT hashtextextended(worker, hashtextextended(ns, hashtextextended('batuta.workers/', 7)))
$$;

COMMENT ON FUNCTION batuta.worker_lock IS 'The key of the advisory lock that a worker''s heartbeat session holds';

-- A run is a suspect when two workers or more died with it since it last made progress. Whether the worker may take
-- one: it owns none.
CREATE OR REPLACE FUNCTION batuta.may_take_suspect(ns text, worker text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT NOT EXISTS (
            SELECT FROM batuta.runs r
            WHERE r.namespace = ns AND r.owner = worker AND r.deaths >= 2 AND r.head = r.claimed_head
              AND r.closed_at IS NULL));
END
$$;

-- Release up to `most` runs of a dead worker. freed: how many; due: how many of them may be claimed now (the others are
-- parked). If it owned a suspect, that one counts the death, and goes last so that the others can always be told from
-- it. Begun runs note it as an attempt of command -1, which does not exist: see records.LOSSES.
CREATE OR REPLACE FUNCTION batuta.set_free(
    ns text, dead text, moment bigint, most integer, poison integer, poisoned text, OUT freed integer, OUT due integer
) LANGUAGE sql AS $$
    WITH orphan AS MATERIALIZED (
        SELECT r.run_id,
               CASE WHEN (r.deaths < 2 OR r.head <> r.claimed_head) AND NOT c.blameless THEN r.deaths
                    WHEN r.head = r.claimed_head THEN least(r.deaths, 2147483646) + 1
                    ELSE 1 END AS deaths
        FROM batuta.runs r CROSS JOIN (SELECT batuta.may_take_suspect(ns, dead) AS blameless) c
        WHERE r.namespace = ns AND r.owner = dead
        ORDER BY r.deaths >= 2 AND r.head = r.claimed_head LIMIT most FOR NO KEY UPDATE OF r SKIP LOCKED
    ), moved AS (
        UPDATE batuta.runs r
        SET epoch = least(r.epoch, 2147483646) + 1, owner = NULL, deaths = o.deaths,
            state = CASE WHEN o.deaths >= poison THEN 'poisoned' WHEN r.head < 0 THEN 'pending' ELSE 'waiting' END,
            reason = CASE WHEN o.deaths >= poison THEN poisoned ELSE r.reason END,
            wake_at = CASE WHEN o.deaths < poison THEN moment END
        FROM orphan o WHERE r.run_id = o.run_id
        RETURNING r.wake_at, r.run_id, r.epoch, r.head
    ), noted AS (
        INSERT INTO batuta.attempts (run_id, seq, number, namespace, started_at, ended_at)
        SELECT m.run_id, -1, 1 + m.epoch % 20, ns, moment, moment FROM moved m WHERE m.head >= 0
        ON CONFLICT (run_id, seq, number) DO UPDATE
        SET started_at = excluded.started_at, ended_at = excluded.ended_at
    )
    SELECT count(*)::integer, count(m.wake_at)::integer FROM moved m
$$;

-- Delete the rows of workers whose lease has expired, then release up to `most` open runs whose owner has no row.
CREATE OR REPLACE FUNCTION batuta.reap(
    ns text, moment bigint, most integer, poison integer, poisoned text, OUT freed integer, OUT due integer
) LANGUAGE plpgsql AS $$
DECLARE
    dead text;
    got record;
BEGIN
    freed := 0;
    due := 0;
    -- After the clock was set back a lease of before is over as long after now as it would have been after its last beat.
    UPDATE batuta.workers w SET beat_at = moment, lease_until = moment + w.lease_until - w.beat_at
    WHERE w.namespace = ns AND w.beat_at > moment + 1000000;
    DELETE FROM batuta.workers w USING (
        SELECT g.worker_id FROM batuta.workers g
        WHERE g.namespace = ns AND g.lease_until <= moment LIMIT most FOR UPDATE SKIP LOCKED
    ) g
    WHERE w.namespace = ns AND w.worker_id = g.worker_id;
    FOR dead IN
        -- Owners one by one from the index: their number is small, that of their runs is not.
        WITH RECURSIVE owners AS (
            (SELECT r.owner FROM batuta.runs r WHERE r.namespace = ns AND r.owner IS NOT NULL ORDER BY r.owner LIMIT 1)
            UNION ALL
            SELECT (SELECT r.owner FROM batuta.runs r
                    WHERE r.namespace = ns AND r.owner > o.owner ORDER BY r.owner LIMIT 1)
            FROM owners o WHERE o.owner IS NOT NULL
        )
        SELECT o.owner FROM owners o
        WHERE o.owner IS NOT NULL
          AND NOT EXISTS (SELECT FROM batuta.workers w WHERE w.namespace = ns AND w.worker_id = o.owner)
    LOOP
        SELECT * INTO got FROM batuta.set_free(ns, dead, moment, most - freed, poison, poisoned);
        freed := freed + got.freed;
        due := due + got.due;
        EXIT WHEN freed >= most;
    END LOOP;
END
$$;

-- Take up to `most` runs out of needs_code that failed only with other code than this. Returns their number.
CREATE OR REPLACE FUNCTION batuta.revive(
    ns text, moment bigint, queue_names text[], codes text[], fingerprints text[], most integer
) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    several integer;
BEGIN
    WITH curable AS MATERIALIZED (
        SELECT p.run_id
        FROM unnest(codes, fingerprints) AS c(code, fingerprint)
        CROSS JOIN LATERAL (
            SELECT r.run_id FROM batuta.runs r
            WHERE r.namespace = ns AND r.state = 'needs_code' AND r.code = c.code
              AND r.closed_at IS NULL AND r.owner IS NULL AND r.wake_at IS NULL
              AND r.queue = ANY (queue_names) AND c.fingerprint <> ALL (r.failed_code)
            LIMIT most FOR NO KEY UPDATE SKIP LOCKED
        ) p
        LIMIT most
    )
    UPDATE batuta.runs r SET state = 'waiting', wake_at = moment, reason = ''
    FROM curable c WHERE r.run_id = c.run_id;
    GET DIAGNOSTICS several = ROW_COUNT;
    RETURN several;
END
$$;

-- Since when locks have been held without a break: a restart, also one after a crash, sets all of them free. Roles
-- without pg_read_all_stats do not see when the checkpointer began; this session began later for sure.
CREATE OR REPLACE FUNCTION batuta.up_since() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT (extract(epoch FROM greatest(pg_postmaster_start_time(), coalesce(
        (SELECT max(a.backend_start) FROM pg_stat_activity a WHERE a.backend_type = 'checkpointer'),
        (SELECT a.backend_start FROM pg_stat_activity a WHERE a.pid = pg_backend_pid())
    ))) * 1000000)::bigint
$$;

-- A heartbeat: renew the lease while the row exists, look for dead workers, return news. `overdue` are open runs whose
-- deadline has passed, for the caller to close; `due` is how many runs became claimable; `beaten_at` is the `moment` of
-- the last beat that this database knows of.
CREATE OR REPLACE FUNCTION batuta.beat(
    ns text, worker text, queue_names text[], codes text[], fingerprints text[], lease bigint, reaping boolean,
    most integer, poison integer, poisoned text,
    OUT moment bigint, OUT alive boolean, OUT due_at bigint, OUT unread uuid[], OUT owned uuid[], OUT epochs integer[],
    OUT peers text[], OUT processes text[], OUT silent boolean[], OUT reaped integer, OUT due integer,
    OUT overdue uuid[], OUT beaten_at bigint
) LANGUAGE plpgsql AS $$
DECLARE
    was_live boolean;
BEGIN
    -- After a standstill of the database every lease has expired although no worker died: the first one must not reap.
    SELECT w.lease_until > batuta.batuta_now(), w.beat_at INTO was_live, beaten_at
    FROM batuta.workers w WHERE w.namespace = ns AND w.worker_id = worker FOR NO KEY UPDATE;
    moment := batuta.batuta_now();
    UPDATE batuta.workers w SET beat_at = moment, lease_until = moment + beat.lease
    WHERE w.namespace = ns AND w.worker_id = worker;
    alive := FOUND;
    IF NOT alive THEN
        RETURN;
    END IF;
    overdue := ARRAY(
        SELECT r.run_id FROM batuta.runs r
        WHERE r.namespace = ns AND least(r.deadline, r.expires_at) <= moment
          AND r.closed_at IS NULL AND r.paused_at IS NULL
        ORDER BY least(r.deadline, r.expires_at) LIMIT most);
    PERFORM batuta.forget_begun(ns, moment, most);
    reaped := 0;
    due := 0;
    IF reaping AND was_live THEN
        SELECT r.freed, r.due INTO reaped, due FROM batuta.reap(ns, moment, most, poison, poisoned) r;
    END IF;
    due := due + batuta.revive(ns, moment, queue_names, codes, fingerprints, most);
    due_at := batuta.next_due(ns, worker, queue_names, codes, fingerprints);
    SELECT array_agg(r.run_id), array_agg(r.epoch),
           array_agg(r.run_id) FILTER (WHERE EXISTS (
               SELECT FROM batuta.inbox i WHERE i.chain_id = r.chain_id AND i.consumed_at IS NULL))
    INTO owned, epochs, unread
    FROM batuta.runs r WHERE r.namespace = ns AND r.owner = worker;
    -- Workers whose locks are free: their processes have ended, or have lost their sessions for a moment. Only silence
    -- for two thirds of a lease tells these apart, where the process cannot be checked.
    SELECT array_agg(w.worker_id), array_agg(w.process), array_agg(
               batuta.up_since() + (w.lease_until - w.beat_at) < moment
               AND w.beat_at + (w.lease_until - w.beat_at) * 2 / 3 < moment)
    INTO peers, processes, silent
    FROM batuta.workers w
    WHERE w.namespace = ns AND w.worker_id <> worker AND w.locked
      AND NOT EXISTS (
        SELECT FROM pg_locks l
        WHERE l.locktype = 'advisory' AND l.objsubid = 1
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
          AND (l.classid::bigint << 32 | l.objid::bigint) = batuta.worker_lock(ns, w.worker_id));
END
$$;

-- Delete workers whose lock is free, and release up to `most` of their runs. Call it until it finds fewer.
CREATE OR REPLACE FUNCTION batuta.bury(
    ns text, mourner text, worker_ids text[], most integer, poison integer, poisoned text,
    OUT freed integer, OUT due integer
) LANGUAGE plpgsql AS $$
DECLARE
    candidate text;
    got record;
BEGIN
    freed := 0;
    due := 0;
    FOR candidate IN SELECT w.id FROM unnest(worker_ids) AS w(id) WHERE w.id <> mourner ORDER BY w.id LOOP
        -- Taken until the end of this transaction: the worker can't come back in between.
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(batuta.worker_lock(ns, candidate));
        DELETE FROM batuta.workers w WHERE w.namespace = ns AND w.worker_id = candidate;
        SELECT * INTO got
        FROM batuta.set_free(ns, candidate, batuta.batuta_now(), most - freed, poison, poisoned);
        freed := freed + got.freed;
        due := due + got.due;
    END LOOP;
END
$$;

-- Delete a worker and release its runs, without counting a death. Returns the number of runs. Locked runs are found by
-- others, since their owner has no row any more.
CREATE OR REPLACE FUNCTION batuta.retire(ns text, worker text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    several integer;
BEGIN
    DELETE FROM batuta.workers w WHERE w.namespace = ns AND w.worker_id = worker;
    WITH mine AS MATERIALIZED (
        SELECT r.run_id FROM batuta.runs r WHERE r.namespace = ns AND r.owner = worker ORDER BY r.run_id
        FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE batuta.runs r
    SET epoch = least(r.epoch, 2147483646) + 1, owner = NULL, wake_at = batuta.batuta_now(),
        state = CASE WHEN r.head < 0 THEN 'pending' ELSE 'waiting' END
    FROM mine m WHERE r.run_id = m.run_id;
    GET DIAGNOSTICS several = ROW_COUNT;
    RETURN several;
END
$$;
