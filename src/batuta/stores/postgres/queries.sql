-- `batuta` is the schema in use; another configured schema replaces it.

-- now --
SELECT batuta.batuta_now() AS now;

-- shift --
-- Testing only: move this session's clock.
SELECT set_config('testing.batuta_shift', $1, false);

-- commit_entry --
-- One entry of one run: the whole cost of a step. The update is the fence: a key look-up that waits for the row's lock
-- and then tests again. The owner is checked besides the epoch: a database that went back in time, as by a failover
-- that lost a claim, gives an epoch out twice. `namespace` and `owner` (no index can answer IS NOT DISTINCT) are kept
-- away from indexes, here and below: a table that was never analysed tempts the planner to read a whole namespace.
WITH moved AS (
    UPDATE batuta.runs r SET head = $5
    WHERE r.run_id = $2 AND r.epoch = $3 AND r.head = $4 AND r.closed_at IS NULL AND r.namespace || '' = $1
      AND r.owner IS NOT DISTINCT FROM $10
    RETURNING r.run_id
)
INSERT INTO batuta.journal (namespace, run_id, ord, epoch, kind, at, crc, body)
SELECT $1, m.run_id, $5, $3, $6, $7, $8, $9 FROM moved m
RETURNING ord;

-- commit_last_entry --
-- The same, and the run is closed, unless it comes to its own end with messages unread. due: a run that awaited it may be
-- claimed now.
WITH moved AS (
    UPDATE batuta.runs r
    SET head = $5, state = $11, reason = $12, owner = NULL, wake_at = NULL, closed_at = batuta.batuta_now()
    WHERE r.run_id = $2 AND r.epoch = $3 AND r.head = $4 AND r.closed_at IS NULL AND r.namespace || '' = $1
      AND r.owner IS NOT DISTINCT FROM $10
      AND (NOT r.signalled OR NOT batuta.has_unread(r.chain_id, $11))
    RETURNING r.run_id, CASE WHEN $11 <> 'continued' THEN r.parent_run_id END AS parent
), written AS (
    INSERT INTO batuta.journal (namespace, run_id, ord, epoch, kind, at, crc, body)
    SELECT $1, m.run_id, $5, $3, $6, $7, $8, $9 FROM moved m
)
SELECT CASE WHEN m.parent IS NOT NULL THEN batuta.await_fewer($1, ARRAY[m.parent]) END AS due FROM moved m;

-- commit_plain_start --
-- A new run with its first entry, owned by its starter, with only a name, a code name and a queue, which must let it
-- begin at once. Its id is its own run_id, or cannot be another run's: see is_free.
WITH started AS (
    INSERT INTO batuta.runs AS r (
        run_id, chain_id, namespace, id, kind, name, code, queue, priority, state, owner, epoch, head, claimed_head,
        created_at)
    SELECT $3, $3, $1, $4, 'workflow', $5, $6, $7, 0, 'running', $2, $8, 0, -1, c.now
    FROM (SELECT batuta.batuta_now() AS now OFFSET 0) c
    WHERE c.now < (SELECT w.lease_until FROM batuta.workers w WHERE w.namespace = $1 AND w.worker_id = $2)
      AND NOT EXISTS (
        SELECT FROM batuta.queues q WHERE q.namespace = $1 AND q.name = $7 AND (q.paused OR q.limited))
    ON CONFLICT DO NOTHING
    RETURNING r.run_id
)
INSERT INTO batuta.journal (namespace, run_id, ord, epoch, kind, at, crc, body)
SELECT $1, s.run_id, 0, $8, 'started', $9, $10, $11 FROM started s
RETURNING ord;

-- commit_start --
-- The same for a run with more options that follows no other and replaces none. The length is what is_free checks
-- first: a call of it costs more than the look-up.
WITH started AS (
    INSERT INTO batuta.runs AS r (
        run_id, chain_id, namespace, id, kind, name, code, queue, priority, version, tags, memo, state, owner, epoch,
        head, claimed_head, created_at, deadline)
    SELECT $3, $3, $1, $4, $5, $6, $20, $7, $8, $9, $10, $11, 'running', $2, $14, $15, -1, c.now,
           least(c.now + nullif($12, 0), c.now + nullif($13, 0))
    FROM (SELECT batuta.batuta_now() AS now OFFSET 0) c
    WHERE c.now < (SELECT w.lease_until FROM batuta.workers w WHERE w.namespace = $1 AND w.worker_id = $2)
      AND NOT EXISTS (
        SELECT FROM batuta.queues q WHERE q.namespace = $1 AND q.name = $7 AND (q.paused OR q.limited))
      AND ($4 = $3::uuid::text OR length($4) <> 36 OR batuta.is_free($1, $4))
    ON CONFLICT DO NOTHING
    RETURNING r.run_id
)
INSERT INTO batuta.journal (namespace, run_id, ord, epoch, kind, at, crc, body)
SELECT $1, s.run_id, $15, $14, $16, $17, $18, $19 FROM started s
RETURNING ord;

-- commit_entries --
-- Entries of many runs, which may be new or close; rows come in order of run_id, and so do the locks. The last entry of
-- each run that exists carries the expected head and, perhaps, the state to close in. Returns how many runs there are
-- whose fence held, and which when they are not as many as $39: naming them costs the driver most. Of the runs in $40 the
-- start message has been read. Epoch and head only rise, an epoch has one owner at most and a closed run stays closed, so that a fence which is false on an old version of the
-- row is false for good, and need not wait for the lock. Most columns come as texts: see texts.py. Where each run has one
-- entry, that is the next one.
WITH entry AS MATERIALIZED (
    SELECT e.run_id, e.epoch, e.expected, coalesce(e.ord, e.expected + 1, 0) AS ord, e.kind, e.at, e.crc, e.body, e.state,
           e.reason
    FROM unnest(string_to_array($3, ',')::uuid[], string_to_array($4, ',')::integer[],
                string_to_array($5, ',', 'null')::integer[], string_to_array($6, ',')::integer[],
                string_to_array($7, ','), string_to_array($8, ',')::bigint[], string_to_array($9, ',')::bigint[],
                string_to_array($10, E'\x1f'), string_to_array($11, ',', ''), $12::text[])
         AS e(run_id, epoch, expected, ord, kind, at, crc, body, state, reason)
), moved AS (
    UPDATE batuta.runs r
    SET head = e.ord,
        state = coalesce(e.state, r.state),
        reason = CASE WHEN e.state IS NULL THEN r.reason ELSE coalesce(e.reason, '') END,
        owner = CASE WHEN e.state IS NULL THEN r.owner END,
        wake_at = CASE WHEN e.state IS NULL THEN r.wake_at END,
        closed_at = CASE WHEN e.state IS NOT NULL THEN (SELECT batuta.batuta_now()) END,
        start = CASE WHEN r.start IS NOT NULL AND (r.run_id IN (SELECT unnest(string_to_array($40, ',')::uuid[]))) IS NOT TRUE
                     THEN r.start END
    FROM (SELECT * FROM entry WHERE expected IS NOT NULL) e
    WHERE r.run_id = e.run_id AND r.epoch = e.epoch AND r.head = e.expected AND r.closed_at IS NULL
      AND r.namespace || '' = $1 AND r.owner IS NOT DISTINCT FROM $2
      AND (NOT r.signalled OR e.state IS NULL OR NOT batuta.has_unread(r.chain_id, e.state))
    RETURNING r.run_id, r.chain_id, CASE WHEN e.state <> 'continued' THEN r.parent_run_id END AS parent
), started AS MATERIALIZED (
    SELECT s.started AS run_id, s.due_at
    FROM batuta.insert_runs(
        $1, $2, string_to_array($13, ',')::uuid[], string_to_array($14, E'\x1f'), $15, $16,
        string_to_array($17, E'\x1f'), string_to_array($18, E'\x1f'), string_to_array($19, E'\x1f'),
        string_to_array($20, E'\x1f'), $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31,
        string_to_array($32, ',')::integer[], string_to_array($33, ',')::integer[], $34, $35, $36, $37, $38) s
    WHERE $13 <> ''
), winner AS MATERIALIZED (
    SELECT run_id, parent FROM moved UNION ALL SELECT run_id, NULL FROM started
), written AS (
    INSERT INTO batuta.journal (namespace, run_id, ord, epoch, kind, at, crc, body)
    SELECT $1, e.run_id, e.ord, e.epoch, e.kind, e.at, e.crc, e.body
    FROM entry e WHERE (e.run_id IN (SELECT w.run_id FROM winner w)) IS TRUE
), begun AS (
    -- Nobody sends one again, so that it need not be kept, as others are. By the whole primary key, and not tempted to
    -- look through all messages of a chain: see write_changes.
    DELETE FROM batuta.inbox i
    USING (
        SELECT m.chain_id, 'start:' || m.run_id AS message_id FROM moved m
        WHERE (m.run_id IN (SELECT unnest(string_to_array($40, ',')::uuid[]))) IS TRUE OFFSET 0
    ) m
    WHERE i.chain_id = m.chain_id AND i.message_id = m.message_id
)
SELECT count(*) AS winners, CASE WHEN count(*) <> $39::bigint THEN array_agg(run_id) END AS won,
       EXISTS (SELECT FROM started WHERE due_at <= batuta.batuta_now()) AS due,
       batuta.await_fewer($1, array_agg(parent) FILTER (WHERE parent IS NOT NULL)) AS also_due
FROM winner;

-- commit_jobs --
-- The same for jobs that have ended well and of which nothing was written before.
SELECT winners, won, due FROM batuta.end_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- commit_changes --
-- Any change: see the function.
SELECT won, due
FROM batuta.commit_changes(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25,
    $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39, $40, $41, $42, $43, $44, $45, $46, $47, $48,
    $49, $50, $51, $52, $53, $54, $55);

-- locked --
-- Those of these runs that another transaction has locked now, or that must write to a locked one: their parent, or the
-- run with the id of $4, which $3 sends to.
WITH asked AS MATERIALIZED (
    SELECT a.run_id, a.run_id AS needed FROM unnest($2::uuid[]) AS a(run_id)
    UNION ALL
    SELECT a.run_id, r.parent_run_id
    FROM unnest($2::uuid[]) AS a(run_id)
    CROSS JOIN LATERAL (SELECT r.parent_run_id FROM batuta.runs r WHERE r.run_id = a.run_id LIMIT 1) r
    UNION ALL
    SELECT s.run_id, batuta.current_run($1, s.id) FROM unnest($3::uuid[], $4::text[]) AS s(run_id, id)
), free AS MATERIALIZED (
    SELECT n.needed
    FROM (SELECT DISTINCT a.needed FROM asked a) n
    CROSS JOIN LATERAL (SELECT FROM batuta.runs r WHERE r.run_id = n.needed FOR NO KEY UPDATE SKIP LOCKED) r
)
SELECT DISTINCT a.run_id FROM asked a
WHERE EXISTS (SELECT FROM batuta.runs r WHERE r.run_id = a.needed OFFSET 0)
  AND NOT EXISTS (SELECT FROM free f WHERE f.needed = a.needed);

-- standing --
-- The state of these runs, the crc of their entry at the new head, whether a run has their id, whether the worker is
-- live and whether their queue lets nothing begin at once: to explain changes whose fence failed. A worker that was not
-- live then may be so now, which must not be taken for a taken id.
SELECT a.run_id, r.epoch, r.head, r.closed_at, r.owner,
       (SELECT j.crc FROM batuta.journal j WHERE j.run_id = a.run_id AND j.ord = a.new_head) AS crc,
       EXISTS (SELECT FROM batuta.runs c WHERE c.run_id = batuta.current_run($1, a.id)
                 AND (c.closed_at IS NULL OR a.renewal IS NULL OR c.created_at + a.renewal > batuta.batuta_now())
               OFFSET 0) AS taken,
       EXISTS (SELECT FROM batuta.workers w
               WHERE w.namespace = $1 AND w.worker_id = $2 AND w.lease_until > batuta.batuta_now()) AS live,
       EXISTS (SELECT FROM batuta.queues q
               WHERE q.namespace = $1 AND q.name = a.queue AND (q.paused OR q.limited) OFFSET 0) AS shut
FROM unnest($3::uuid[], $4::text[], $5::bigint[], $6::text[], $7::integer[]) AS a(run_id, id, renewal, queue, new_head)
LEFT JOIN LATERAL (
    SELECT r.epoch, r.head, r.closed_at, r.owner FROM batuta.runs r WHERE r.run_id = a.run_id AND r.namespace || '' = $1
) r ON true;

-- start_runs --
-- Insert unowned runs, each with its start message. Rows come in order of the ids; no row for one whose id is taken. There
-- are $23 of them; most columns come as texts: see texts.py.
WITH asked AS MATERIALIZED (
    SELECT string_to_array($2, ',')::uuid[] AS run_ids, string_to_array($7, E'\x1f') AS names,
           string_to_array($22, E'\x1f') AS starts
), fresh AS MATERIALIZED (
    SELECT f.*
    FROM asked a
    CROSS JOIN LATERAL batuta.insert_runs(
        $1, NULL, a.run_ids, string_to_array($3, E'\x1f'), $4, $5, string_to_array($6, E'\x1f'), a.names,
        string_to_array($8, E'\x1f'), string_to_array($9, E'\x1f'), $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20,
        array_fill(0, ARRAY[$23::integer]), array_fill(-1, ARRAY[$23]), array_fill('pending'::text, ARRAY[$23]), NULL,
        CASE WHEN $21 = '' THEN array_fill(0::bigint, ARRAY[$23]) ELSE string_to_array($21, ',')::bigint[] END, NULL, NULL,
        starts => a.starts
    ) f
), posted AS (
    INSERT INTO batuta.inbox (namespace, chain_id, message_id, kind, name, body, at)
    SELECT $1, coalesce(m.chain_id, m.run_id), 'start:' || m.run_id, 'start', m.name, m.body,
           (SELECT max(started_at) FROM fresh)
    FROM asked a
    CROSS JOIN LATERAL unnest(a.run_ids, $5::uuid[], a.names, a.starts)
         AS m(run_id, chain_id, name, body)
    WHERE NOT batuta.travels(m.chain_id, m.body) AND (m.run_id IN (SELECT f.started FROM fresh f)) IS TRUE
)
SELECT * FROM fresh;

-- start_plain --
-- The same for runs with nothing special about them: see the function. Null when one of them is there already.
SELECT batuta.insert_plain(
    $1, string_to_array($2, ',')::uuid[], $3, string_to_array($4, E'\x1f'), string_to_array($5, E'\x1f'),
    string_to_array($6, E'\x1f'), string_to_array($7, E'\x1f'), $8, $9, $10, $11, $12, string_to_array($13, ',')::bigint[],
    string_to_array($14, E'\x1f')) AS created_at;

-- start_together --
-- The same where some are debounced, or one awaits all others.
SELECT *
FROM batuta.start_together(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25,
    $26, $27, $28, $29, $30, $31, $32, $33, $34, $35);

-- start_debounced_and_send --
-- The same for a debounced start, and a message for whichever run it becomes.
SELECT s.asked, s.started, m.outcome, m.receiver_state
FROM batuta.start_together(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25,
    $26, $27, $28, $29, $30, $31, $32, $33, $34, $35) s
CROSS JOIN LATERAL batuta.send_message($1, s.started, $36, $37, $38, $39) m;

-- standing_starts --
-- Of starts that made no run: the run that has their own run_id, else the current one of their id.
SELECT a.run_id AS asked, r.*
FROM unnest($2::uuid[], $3::text[]) AS a(run_id, id)
CROSS JOIN LATERAL (
    SELECT * FROM (
        SELECT 1 AS n, k.* FROM batuta.runs k WHERE k.run_id = a.run_id AND k.namespace || '' = $1
        UNION ALL
        SELECT 2, c.* FROM batuta.runs c WHERE c.run_id = batuta.current_run($1, a.id)
    ) f
    ORDER BY f.n LIMIT 1
) r;

-- elsewhere --
-- Those of these run ids that another namespace has.
SELECT r.run_id FROM batuta.runs r WHERE r.run_id = ANY ($2::uuid[]) AND r.namespace || '' <> $1;

-- send_message --
SELECT * FROM batuta.send_message($1, $2, $3, $4, $5, $6);

-- send_as_act --
-- The same, recorded in the audit log.
WITH sent AS MATERIALIZED (
    SELECT * FROM batuta.send_message($1, $2, $3, $4, $5, $6)
)
SELECT s.*, CASE WHEN s.outcome = 'sent' THEN batuta.record_acts(
    $1, $7, $8, $9, $10, $11, $12, ARRAY[(SELECT r.id FROM batuta.runs r WHERE r.run_id = $2 AND r.namespace || '' = $1 LIMIT 1)],
    ARRAY[s.receiver::text], ARRAY[batuta.state_json(s.receiver_state)], ARRAY[batuta.state_json(s.receiver_state)],
    batuta.batuta_now()) END AS recorded
FROM sent s;

-- unpark --
-- Make a parked run due, with a clean slate. Whether it is known, and whether it was parked.
WITH known AS MATERIALIZED (
    SELECT r.run_id, r.id, r.state FROM batuta.runs r WHERE r.run_id = $2 AND r.namespace || '' = $1 FOR NO KEY UPDATE
), moved AS (
    UPDATE batuta.runs r
    SET state = 'waiting', wake_at = batuta.batuta_now(), deaths = 0, failed_code = '{}', reason = ''
    FROM known k WHERE r.run_id = k.run_id AND k.state IN ('needs_code', 'poisoned')
    RETURNING k.id, r.run_id, k.state
)
SELECT EXISTS (SELECT FROM known) AS known, EXISTS (SELECT FROM moved) AS unparked, (
    SELECT batuta.record_acts(
        $1, $3, $4, $5, $6, $7, $8, array_agg(m.id), array_agg(m.run_id::text), array_agg(batuta.state_json(m.state)),
        array_agg(batuta.state_json('waiting')), batuta.batuta_now())
    FROM moved m) AS recorded;

-- register --
-- Make a worker live for one lease.
INSERT INTO batuta.workers AS w (
    namespace, worker_id, queues, code, host, pid, registered_at, beat_at, lease_until, locked, process)
SELECT $1, $2, $3, $4, $5, $6, c.now, c.now, c.now + $7, $8, $9 FROM (SELECT batuta.batuta_now() AS now) c
ON CONFLICT (namespace, worker_id) DO UPDATE
SET queues = excluded.queues, code = excluded.code, host = excluded.host, pid = excluded.pid, locked = excluded.locked,
    process = excluded.process, registered_at = excluded.registered_at, beat_at = excluded.beat_at, lease_until = excluded.lease_until
RETURNING w.beat_at AS now;

-- workers --
SELECT w.worker_id, w.host, w.pid, w.queues, w.code, w.lease_until, w.registered_at, w.beat_at,
       w.lease_until > batuta.batuta_now() AS live,
       (SELECT count(*) FROM batuta.runs r WHERE r.namespace = $1 AND r.owner = w.worker_id)::integer AS runs
FROM batuta.workers w WHERE w.namespace = $1 ORDER BY w.worker_id;

-- retire --
SELECT batuta.retire($1, $2) AS freed;

-- give_up --
-- Set these runs of a worker free as if it had died with them. Each death makes a run due later.
WITH mine AS MATERIALIZED (
    SELECT r.run_id, CASE WHEN r.head = r.claimed_head THEN r.deaths + 1 ELSE 1 END AS deaths
    FROM batuta.runs r
    WHERE r.run_id = ANY ($3) AND r.namespace || '' = $1 AND r.owner || '' = $2
    ORDER BY r.run_id FOR NO KEY UPDATE
), moved AS (
    UPDATE batuta.runs r
    SET epoch = r.epoch + 1, owner = NULL, deaths = m.deaths, reason = $4,
        state = CASE WHEN m.deaths >= $5 THEN 'poisoned' WHEN r.head < 0 THEN 'pending' ELSE 'waiting' END,
        wake_at = CASE WHEN m.deaths < $5 THEN batuta.batuta_now() + ((1 << (m.deaths - 1)) - 1) * 1000000::bigint END
    FROM mine m WHERE r.run_id = m.run_id
    RETURNING 1
)
SELECT count(*)::integer AS freed FROM moved;

-- claim --
SELECT * FROM batuta.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10);

-- hand_over --
SELECT * FROM batuta.hand_over($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16);

-- hasten --
-- After the clock was set back: runs that were due before and are not now. For begun runs the journal says what is
-- really due; the others must be from before, or their time is still to come.
WITH clock AS MATERIALIZED (
    SELECT batuta.batuta_now() AS now
), overdue AS MATERIALIZED (
    SELECT r.run_id FROM batuta.runs r, clock c
    WHERE r.namespace = $1 AND r.wake_at > c.now
      AND CASE WHEN r.head < 0 THEN r.created_at > c.now AND r.wake_at <= $2 ELSE r.wake_at <= $4 END
    ORDER BY r.wake_at LIMIT $3 FOR NO KEY UPDATE OF r SKIP LOCKED
), moved AS (
    UPDATE batuta.runs r SET wake_at = c.now FROM overdue o, clock c WHERE r.run_id = o.run_id RETURNING r.run_id
)
SELECT count(*)::integer AS hastened FROM moved;

-- due_at --
SELECT batuta.next_due($1, $2, $3, $4, $5) AS due_at;

-- last_entries --
-- Of open runs: the head, time and crc of the entry there, and whose child it is.
SELECT r.*, j.at, j.crc
FROM unnest($2::uuid[]) AS a(run_id)
CROSS JOIN LATERAL (
    SELECT r.run_id, r.head, r.id, r.kind, r.owner, r.parent_run_id, r.parent_seq, r.deadline, r.expires_at
    FROM batuta.runs r
    WHERE r.run_id = a.run_id AND r.namespace || '' = $1 AND r.closed_at IS NULL
) r
LEFT JOIN LATERAL (
    SELECT j.at, j.crc FROM batuta.journal j WHERE j.run_id = r.run_id AND j.ord = r.head
) j ON true
ORDER BY r.run_id;

-- beat --
-- With the history that this server is on, asked each time: behind a pooler the next session may be another server's.
-- The timeline changes when a standby is promoted, or a backup is restored to a point in time. The position in the log
-- only rises, unless files were restored. Where commits are not synced, a crash may have lost some: the statistics of a
-- server begin again with its recovery from a crash, and not with a plain restart.
SELECT b.*, (
    SELECT min(s.next_at) FROM batuta.schedules s WHERE s.namespace = $1 AND s.next_at IS NOT NULL AND NOT s.paused
) AS schedule_at, substr(pg_walfile_name(l.lsn), 1, 8) AS timeline, (l.lsn - '0/0')::bigint AS position,
CASE WHEN current_setting('synchronous_commit') = 'off' THEN (SELECT s.stats_reset::text FROM pg_stat_bgwriter s) END AS crashed_at
FROM batuta.beat($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) b, (SELECT pg_current_wal_insert_lsn() AS lsn) l;

-- bury --
SELECT * FROM batuta.bury($1, $2, $3, $4, $5, $6);

-- hold_lock --
-- The worker's lock, for as long as this session lives. False when a session before still has it.
SELECT pg_try_advisory_lock(batuta.worker_lock($1, $2)) AS held;

-- free_lock --
SELECT pg_advisory_unlock(batuta.worker_lock($1, $2));

-- durability --
-- What decides whether an acknowledged commit survives a crash.
SELECT current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('full_page_writes') AS full_page_writes;

-- system_identifier --
SELECT system_identifier::text AS cluster FROM pg_control_system();

-- current_run --
SELECT * FROM batuta.runs r WHERE r.run_id = batuta.current_run($1, $2);

-- run --
SELECT * FROM batuta.runs r WHERE r.run_id = $2 AND r.namespace || '' = $1;

-- journal --
SELECT ord, kind, at, crc, body FROM batuta.journal j
WHERE j.run_id = $2 AND j.ord > $3 AND j.namespace = $1
ORDER BY j.ord LIMIT $4;

-- epochs --
SELECT epoch FROM batuta.journal j WHERE j.run_id = $2 AND j.namespace = $1 ORDER BY j.ord;

-- journals --
-- Whole journals of many runs, each up to the head it was claimed with; `n` is the run's index among those asked for.
-- And for the few that have attempts, or whose chains have unread messages, a row with ord -1 that says so. Ids and
-- heads come as texts: see texts.py.
SELECT a.n, j.ord, j.kind, j.at, j.crc, j.body
FROM unnest(string_to_array($2, ',')::uuid[], string_to_array($3, ',')::integer[]) WITH ORDINALITY AS a(run_id, head, n)
CROSS JOIN LATERAL (
    SELECT * FROM batuta.journal j
    WHERE j.run_id = a.run_id AND j.ord <= a.head AND j.namespace = $1
    ORDER BY j.ord
) j
UNION ALL
SELECT m.n, -1, NULL, m.tried::integer, m.told::integer, NULL
FROM (
    SELECT a.n,
           EXISTS (SELECT FROM batuta.attempts t WHERE t.run_id = a.run_id AND t.namespace = $1) AS tried,
           EXISTS (SELECT FROM batuta.inbox i
                   WHERE i.chain_id = a.chain_id AND i.consumed_at IS NULL AND i.namespace = $1) AS told
    FROM unnest(string_to_array($2, ',')::uuid[], string_to_array($4, ',')::uuid[]) WITH ORDINALITY
         AS a(run_id, chain_id, n)
) m
WHERE m.tried OR m.told;

-- messages --
-- Unread messages of many chains: a page of each. For 2097152 see PAGE_BYTES, for the kinds is_urgent.
SELECT i.chain_id, i.message_id, i.kind, i.name, i.body, i.at, i.number
FROM unnest($2::uuid[], $3::boolean[]) AS a(chain_id, begun)
CROSS JOIN LATERAL (
    SELECT i.*, coalesce(sum(octet_length(i.body)) FILTER (WHERE i.kind IN ('signal', 'update', 'child')) OVER (
               ORDER BY i.number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
    FROM batuta.inbox i
    WHERE i.chain_id = a.chain_id AND i.consumed_at IS NULL AND i.namespace = $1
) i
WHERE i.before < 2097152 OR i.kind NOT IN ('signal', 'update', 'child', 'cancel') OR (i.kind = 'cancel' AND NOT a.begun)
ORDER BY i.chain_id, i.number;

-- attempts --
-- Attempts of many runs.
SELECT t.run_id, t.seq, t.number, t.started_at, t.ended_at, t.next_at, t.error, t.details, t.outside, t.tokens
FROM unnest($2::uuid[]) AS a(run_id)
CROSS JOIN LATERAL (
    SELECT * FROM batuta.attempts t WHERE t.run_id = a.run_id AND t.namespace = $1 ORDER BY t.seq, t.number
) t;

-- attempts_of_call --
SELECT seq, number, started_at, ended_at, next_at, error, details, outside, tokens FROM batuta.attempts
WHERE run_id = $2 AND seq = $3 AND namespace = $1 ORDER BY number;

-- unread --
-- For many runs: epoch (-1 when closed) and a page of the chain's unread messages, as in `messages`, besides the start in
-- the row. Without those of the kinds of IN_PAGES up to number $3.
SELECT r.run_id, r.epoch, r.name AS run_name, r.created_at, r.start, i.message_id, i.kind, i.name, i.body, i.at, i.number
FROM unnest($2::uuid[]) AS a(run_id)
CROSS JOIN LATERAL (
    SELECT r.run_id, r.chain_id, r.name, r.created_at, r.start, r.head,
           CASE WHEN r.closed_at IS NULL THEN r.epoch ELSE -1 END AS epoch
    FROM batuta.runs r WHERE r.run_id = a.run_id AND r.namespace || '' = $1
) r
LEFT JOIN LATERAL (
    SELECT * FROM (
        SELECT i.*, coalesce(sum(octet_length(i.body)) FILTER (WHERE i.kind IN ('signal', 'update', 'child')) OVER (
                   ORDER BY i.number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
        FROM batuta.inbox i
        WHERE i.chain_id = r.chain_id AND i.consumed_at IS NULL AND i.namespace = $1
          AND (i.number > $3 OR i.kind NOT IN ('signal', 'update', 'child'))
    ) i
    WHERE i.before < 2097152 OR i.kind NOT IN ('signal', 'update', 'child', 'cancel') OR (i.kind = 'cancel' AND r.head < 0)
    ORDER BY i.number
) i ON true;

-- received --
SELECT * FROM (
    (SELECT i.message_id, i.kind, i.consumed_at IS NOT NULL AS read FROM batuta.inbox i
     WHERE i.chain_id = $2 AND i.message_id > $3 AND i.namespace = $1 ORDER BY i.message_id LIMIT $4)
    UNION ALL
    SELECT 'start:' || r.run_id, 'start', false FROM batuta.runs r
    WHERE r.run_id = $2 AND r.start IS NOT NULL AND ('start:' || r.run_id) COLLATE "C" > $3 AND r.namespace || '' = $1
) m
ORDER BY m.message_id LIMIT $4;

-- closed_among --
-- Those of the runs that are closed, or not there.
SELECT a.run_id FROM unnest($2::uuid[]) AS a(run_id)
WHERE NOT EXISTS (
    SELECT FROM batuta.runs r
    WHERE r.run_id = a.run_id AND r.namespace || '' = $1 AND r.closed_at IS NULL OFFSET 0);

-- outcome --
-- A run and its last entry.
SELECT r.*, j.ord AS last_ord, j.kind AS last_kind, j.at AS last_at, j.crc AS last_crc, j.body AS last_body
FROM batuta.runs r
LEFT JOIN batuta.journal j ON j.run_id = r.run_id AND j.ord = r.head
WHERE r.run_id = $2 AND r.namespace || '' = $1;

-- list_runs --
-- Newest first, after a cursor. Filters that are not used are null.
SELECT * FROM batuta.runs r
WHERE r.namespace = $1
  AND ($2::text[] IS NULL OR r.state = ANY ($2))
  AND ($3::text IS NULL OR r.name = $3)
  AND ($4::text IS NULL OR r.kind = $4)
  AND ($5::text IS NULL OR r.queue = $5)
  AND ($6::text IS NULL OR starts_with(r.id, $6))
  AND ($7::text IS NULL OR batuta.readable(r.tags)::jsonb @> batuta.readable($7)::jsonb)
  AND ($8::bigint IS NULL OR r.created_at > $8)
  AND ($9::bigint IS NULL OR r.created_at < $9)
  AND ($10::text IS NULL OR r.flow_key = $10)
  AND ($11::uuid IS NULL OR r.parent_run_id = $11)
  AND r.run_id < coalesce($12, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
ORDER BY r.run_id DESC LIMIT $13;

-- list_notable_runs --
-- The same for states with their own index: failed runs are found among millions of completed ones.
SELECT * FROM batuta.runs r
WHERE r.namespace || ':' = $1 || ':'
  AND r.state = ANY ($2::text[])
  AND r.state IN ('failed', 'timed_out', 'cancelled', 'terminated', 'paused', 'needs_code', 'poisoned')
  AND ($3::text IS NULL OR r.name = $3)
  AND ($4::text IS NULL OR r.kind = $4)
  AND ($5::text IS NULL OR r.queue = $5)
  AND ($6::text IS NULL OR starts_with(r.id, $6))
  AND ($7::text IS NULL OR batuta.readable(r.tags)::jsonb @> batuta.readable($7)::jsonb)
  AND ($8::bigint IS NULL OR r.created_at > $8)
  AND ($9::bigint IS NULL OR r.created_at < $9)
  AND ($10::text IS NULL OR r.flow_key = $10)
  AND ($11::uuid IS NULL OR r.parent_run_id = $11)
  AND r.run_id < coalesce($12, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
ORDER BY r.run_id DESC LIMIT $13;

-- list_children --
-- The same for the children of one run, which have their own index.
SELECT * FROM batuta.runs r
WHERE r.namespace || '' = $1
  AND ($2::text[] IS NULL OR r.state = ANY ($2))
  AND ($3::text IS NULL OR r.name = $3)
  AND ($4::text IS NULL OR r.kind = $4)
  AND ($5::text IS NULL OR r.queue = $5)
  AND ($6::text IS NULL OR starts_with(r.id, $6))
  AND ($7::text IS NULL OR batuta.readable(r.tags)::jsonb @> batuta.readable($7)::jsonb)
  AND ($8::bigint IS NULL OR r.created_at > $8)
  AND ($9::bigint IS NULL OR r.created_at < $9)
  AND ($10::text IS NULL OR r.flow_key = $10)
  AND r.parent_run_id = $11::uuid
  AND r.run_id < coalesce($12, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
ORDER BY r.run_id DESC LIMIT $13;

-- list_retrying --
-- The same for runs that retry something. They are owned, or due at some time: ended runs are not looked at.
SELECT * FROM (
    SELECT * FROM batuta.runs r WHERE r.namespace = $1 AND r.owner IS NOT NULL
    UNION ALL
    SELECT * FROM batuta.runs r WHERE r.namespace = $1 AND r.wake_at IS NOT NULL AND r.owner IS NULL
) r
WHERE r.closed_at IS NULL
  AND ($2::text[] IS NULL OR r.state = ANY ($2))
  AND ($3::text IS NULL OR r.name = $3)
  AND ($4::text IS NULL OR r.kind = $4)
  AND ($5::text IS NULL OR r.queue = $5)
  AND ($6::text IS NULL OR starts_with(r.id, $6))
  AND ($7::text IS NULL OR batuta.readable(r.tags)::jsonb @> batuta.readable($7)::jsonb)
  AND ($8::bigint IS NULL OR r.created_at > $8)
  AND ($9::bigint IS NULL OR r.created_at < $9)
  AND ($10::text IS NULL OR r.flow_key = $10)
  AND ($11::uuid IS NULL OR r.parent_run_id = $11)
  AND EXISTS (
      SELECT FROM batuta.attempts f
      WHERE f.run_id = r.run_id AND f.namespace = $1 AND f.error IS NOT NULL AND f.next_at IS NOT NULL
        AND f.number >= $12::integer
        AND NOT EXISTS (
            SELECT FROM batuta.journal j WHERE j.run_id = r.run_id AND j.ord = r.head AND j.at > f.next_at))
  AND r.run_id < coalesce($13, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
ORDER BY r.run_id DESC LIMIT $14;

-- count_retrying --
SELECT r.state, count(*) AS runs FROM (
    SELECT * FROM batuta.runs r WHERE r.namespace = $1 AND r.owner IS NOT NULL
    UNION ALL
    SELECT * FROM batuta.runs r WHERE r.namespace = $1 AND r.wake_at IS NOT NULL AND r.owner IS NULL
) r
WHERE r.closed_at IS NULL
  AND ($2::text[] IS NULL OR r.state = ANY ($2))
  AND ($3::text IS NULL OR r.name = $3)
  AND ($4::text IS NULL OR r.kind = $4)
  AND ($5::text IS NULL OR r.queue = $5)
  AND ($6::text IS NULL OR starts_with(r.id, $6))
  AND ($7::text IS NULL OR batuta.readable(r.tags)::jsonb @> batuta.readable($7)::jsonb)
  AND ($8::bigint IS NULL OR r.created_at > $8)
  AND ($9::bigint IS NULL OR r.created_at < $9)
  AND ($10::text IS NULL OR r.flow_key = $10)
  AND ($11::uuid IS NULL OR r.parent_run_id = $11)
  AND EXISTS (
      SELECT FROM batuta.attempts f
      WHERE f.run_id = r.run_id AND f.namespace = $1 AND f.error IS NOT NULL AND f.next_at IS NOT NULL
        AND f.number >= $12::integer
        AND NOT EXISTS (
            SELECT FROM batuta.journal j WHERE j.run_id = r.run_id AND j.ord = r.head AND j.at > f.next_at))
GROUP BY r.state;

-- count_runs --
SELECT r.state, count(*) AS runs FROM batuta.runs r
WHERE r.namespace = $1
  AND ($2::text[] IS NULL OR r.state = ANY ($2))
  AND ($3::text IS NULL OR r.name = $3)
  AND ($4::text IS NULL OR r.kind = $4)
  AND ($5::text IS NULL OR r.queue = $5)
  AND ($6::text IS NULL OR starts_with(r.id, $6))
  AND ($7::text IS NULL OR batuta.readable(r.tags)::jsonb @> batuta.readable($7)::jsonb)
  AND ($8::bigint IS NULL OR r.created_at > $8)
  AND ($9::bigint IS NULL OR r.created_at < $9)
  AND ($10::text IS NULL OR r.flow_key = $10)
  AND ($11::uuid IS NULL OR r.parent_run_id = $11)
GROUP BY r.state;

-- count_open --
-- The same for open runs: each is in one of three indexes, which hold no others, so that this does not grow with ended
-- runs.
SELECT r.state, count(*) AS runs
FROM (
    SELECT * FROM batuta.runs r WHERE r.namespace = $1 AND r.owner IS NOT NULL
    UNION ALL
    SELECT * FROM batuta.runs r WHERE r.namespace = $1 AND r.wake_at IS NOT NULL AND r.owner IS NULL
    UNION ALL
    SELECT * FROM batuta.runs r
    WHERE r.namespace = $1 AND r.closed_at IS NULL AND r.owner IS NULL AND r.wake_at IS NULL
) r
WHERE r.closed_at IS NULL
  AND r.state = ANY ($2::text[])
  AND ($3::text IS NULL OR r.name = $3)
  AND ($4::text IS NULL OR r.kind = $4)
  AND ($5::text IS NULL OR r.queue = $5)
  AND ($6::text IS NULL OR starts_with(r.id, $6))
  AND ($7::text IS NULL OR batuta.readable(r.tags)::jsonb @> batuta.readable($7)::jsonb)
  AND ($8::bigint IS NULL OR r.created_at > $8)
  AND ($9::bigint IS NULL OR r.created_at < $9)
  AND ($10::text IS NULL OR r.flow_key = $10)
  AND ($11::uuid IS NULL OR r.parent_run_id = $11)
GROUP BY r.state;

-- count_children --
-- The same for the children of one run.
SELECT r.state, count(*) AS runs FROM batuta.runs r
WHERE r.namespace || '' = $1
  AND ($2::text[] IS NULL OR r.state = ANY ($2))
  AND ($3::text IS NULL OR r.name = $3)
  AND ($4::text IS NULL OR r.kind = $4)
  AND ($5::text IS NULL OR r.queue = $5)
  AND ($6::text IS NULL OR starts_with(r.id, $6))
  AND ($7::text IS NULL OR batuta.readable(r.tags)::jsonb @> batuta.readable($7)::jsonb)
  AND ($8::bigint IS NULL OR r.created_at > $8)
  AND ($9::bigint IS NULL OR r.created_at < $9)
  AND ($10::text IS NULL OR r.flow_key = $10)
  AND r.parent_run_id = $11::uuid
GROUP BY r.state;

-- limit_queue --
-- Those that are named in $9; the others stay.
WITH written AS (
    INSERT INTO batuta.queues AS q (
        namespace, name, concurrency, key_concurrency, rate_count, rate_period, key_rate_count, key_rate_period)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
    ON CONFLICT (namespace, name) DO UPDATE
    SET concurrency = CASE WHEN 'concurrency' = ANY ($9::text[]) THEN excluded.concurrency ELSE q.concurrency END,
        key_concurrency =
            CASE WHEN 'key_concurrency' = ANY ($9::text[]) THEN excluded.key_concurrency ELSE q.key_concurrency END,
        rate_count = CASE WHEN 'rate' = ANY ($9::text[]) THEN excluded.rate_count ELSE q.rate_count END,
        rate_period = CASE WHEN 'rate' = ANY ($9::text[]) THEN excluded.rate_period ELSE q.rate_period END,
        key_rate_count = CASE WHEN 'key_rate' = ANY ($9::text[]) THEN excluded.key_rate_count ELSE q.key_rate_count END,
        key_rate_period = CASE WHEN 'key_rate' = ANY ($9::text[]) THEN excluded.key_rate_period ELSE q.key_rate_period END
    RETURNING q.name
)
SELECT batuta.record_acts($1, $10, $11, $12, $13, $14, $15, ARRAY[w.name], '{}', '{}', '{}', batuta.batuta_now())
FROM written w;

-- pause_queue --
WITH written AS (
    INSERT INTO batuta.queues AS q (namespace, name, paused, note) VALUES ($1, $2, $3, $4)
    ON CONFLICT (namespace, name) DO UPDATE SET paused = excluded.paused, note = excluded.note
    RETURNING q.name
)
SELECT batuta.record_acts($1, $5, $6, $7, $8, $9, $10, ARRAY[w.name], '{}', '{}', '{}', batuta.batuta_now())
FROM written w;

-- queues --
SELECT * FROM batuta.view_queues($1, batuta.batuta_now());

-- notify --
-- Hints, outside every write transaction: NOTIFY takes a lock that all commits would queue for. Not synced: a hint may
-- get lost, and its own sync would delay those of the commits.
SELECT pg_notify($1, p.payload)
FROM (SELECT set_config('synchronous_commit', 'off', true)) AS hint, unnest($2::text[]) AS p(payload);
