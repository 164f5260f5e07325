-- `batuta` stands for the schema in use; it is replaced when another one is set.

-- now --
SELECT batuta.batuta_now() AS now;

-- shift --
-- Testing only: move this session's clock.
SELECT set_config('testing.batuta_shift', $1, false);

-- commit_entry --
-- One entry of one run: the whole cost of a step. The update is the fence: a key look-up that waits for the row's
-- lock and tests again what it then finds. `namespace` is kept away from indexes, here and below: a table that was
-- never analysed tempts the planner to read a whole namespace.
WITH moved AS (
    UPDATE batuta.runs r SET head = $5
    WHERE r.run_id = $2 AND r.epoch = $3 AND r.head = $4 AND r.closed_at IS NULL AND r.namespace || '' = $1
    RETURNING r.run_id
)
INSERT INTO batuta.journal (namespace, run_id, ord, epoch, kind, at, crc, body)
SELECT $1, m.run_id, $5, $3, $6, $7, $8, $9 FROM moved m
RETURNING ord;

-- commit_last_entry --
-- The same, and the run is closed, unless it comes to its own end with signals or updates unread. due: a run that
-- awaited it may be claimed now.
WITH moved AS (
    UPDATE batuta.runs r
    SET head = $5, state = $10, reason = $11, owner = NULL, wake_at = NULL, closed_at = batuta.batuta_now()
    WHERE r.run_id = $2 AND r.epoch = $3 AND r.head = $4 AND r.closed_at IS NULL AND r.namespace || '' = $1
      AND (NOT r.signalled OR $10 NOT IN ('completed', 'failed', 'cancelled') OR NOT batuta.has_unread(r.chain_id))
    RETURNING r.run_id, CASE WHEN $10 <> 'continued' THEN r.parent_run_id END AS parent
), written AS (
    INSERT INTO batuta.journal (namespace, run_id, ord, epoch, kind, at, crc, body)
    SELECT $1, m.run_id, $5, $3, $6, $7, $8, $9 FROM moved m
)
SELECT CASE WHEN m.parent IS NOT NULL THEN batuta.await_fewer(ARRAY[m.parent]) END AS due FROM moved m;

-- commit_plain_start --
-- A new run with its first entry, owned by its starter, that nothing is said of but its name, its code and its queue, which
-- must let it begin at once. Its id is its own run_id, or cannot be anybody's: see is_free.
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
-- The same for one of which more is said, but which follows no other and replaces none. The length is what is_free asks
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
-- start message has been read. Epoch and head only rise and a closed run stays closed, so that a fence which is false on an old version of the
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
      AND r.namespace || '' = $1
      AND (NOT r.signalled OR e.state IS NULL OR e.state NOT IN ('completed', 'failed', 'cancelled')
           OR NOT batuta.has_unread(r.chain_id))
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
       batuta.await_fewer(array_agg(parent) FILTER (WHERE parent IS NOT NULL)) AS also_due
FROM winner;

-- commit_jobs --
-- The same for jobs that have ended well and of which nothing was written before.
SELECT winners, won, due FROM batuta.end_jobs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10);

-- commit_changes --
-- Whatever a change may hold: see the function.
SELECT won, due
FROM batuta.commit_changes(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25,
    $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39, $40, $41, $42, $43, $44, $45, $46, $47, $48,
    $49, $50, $51, $52, $53, $54);

-- standing --
-- Where these runs stand, whether a run has their id, whether the worker is live and whether their queue lets nobody begin
-- at once: what became of changes whose fence did not hold. A worker that was not live then may be so now, and that must not be taken for an id that is taken.
SELECT a.run_id, r.epoch, r.head, r.closed_at,
       EXISTS (SELECT FROM batuta.runs c WHERE c.run_id = batuta.current_run($1, a.id)
                 AND (c.closed_at IS NULL OR a.renewal IS NULL OR c.created_at + a.renewal > batuta.batuta_now())
               OFFSET 0) AS taken,
       EXISTS (SELECT FROM batuta.workers w
               WHERE w.namespace = $1 AND w.worker_id = $2 AND w.lease_until > batuta.batuta_now()) AS live,
       EXISTS (SELECT FROM batuta.queues q
               WHERE q.namespace = $1 AND q.name = a.queue AND (q.paused OR q.limited) OFFSET 0) AS shut
FROM unnest($3::uuid[], $4::text[], $5::bigint[], $6::text[]) AS a(run_id, id, renewal, queue)
LEFT JOIN LATERAL (
    SELECT r.epoch, r.head, r.closed_at FROM batuta.runs r WHERE r.run_id = a.run_id AND r.namespace || '' = $1
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
    $26, $27, $28, $29, $30, $31, $32, $33, $34);

-- start_debounced_and_send --
-- The same for one that is debounced, and a message for whatever run it is then.
SELECT s.asked, s.started, m.outcome, m.receiver_state
FROM batuta.start_together(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25,
    $26, $27, $28, $29, $30, $31, $32, $33, $34) s
CROSS JOIN LATERAL batuta.send_message($1, s.started, $35, $36, $37, $38) m;

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

-- send_message --
SELECT * FROM batuta.send_message($1, $2, $3, $4, $5, $6);

-- send_as_act --
-- The same, recorded in the audit log.
WITH sent AS MATERIALIZED (
    SELECT * FROM batuta.send_message($1, $2, $3, $4, $5, $6)
)
SELECT s.*, CASE WHEN s.outcome = 'sent' THEN batuta.record_acts(
    $1, $7, $8, $9, $10, $11, $12, ARRAY[(SELECT r.id FROM batuta.runs r WHERE r.run_id = s.receiver LIMIT 1)],
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
    namespace, worker_id, queues, code, host, pid, registered_at, beat_at, lease_until, locked)
SELECT $1, $2, $3, $4, $5, $6, c.now, c.now, c.now + $7, $8 FROM (SELECT batuta.batuta_now() AS now) c
ON CONFLICT (namespace, worker_id) DO UPDATE
SET queues = excluded.queues, code = excluded.code, host = excluded.host, pid = excluded.pid, locked = excluded.locked,
    registered_at = excluded.registered_at, beat_at = excluded.beat_at, lease_until = excluded.lease_until
RETURNING w.beat_at AS now;

-- workers --
SELECT w.worker_id, w.host, w.pid, w.queues, w.code, w.lease_until, w.lease_until > batuta.batuta_now() AS live
FROM batuta.workers w WHERE w.namespace = $1 ORDER BY w.worker_id;

-- retire --
SELECT batuta.retire($1, $2) AS freed;

-- claim --
SELECT * FROM batuta.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10);

-- hand_over --
SELECT * FROM batuta.hand_over($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16);

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
SELECT b.*, (
    SELECT min(s.next_at) FROM batuta.schedules s WHERE s.namespace = $1 AND s.next_at IS NOT NULL AND NOT s.paused
) AS schedule_at
FROM batuta.beat($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) b;

-- bury --
SELECT * FROM batuta.bury($1, $2, $3, $4, $5, $6);

-- hold_lock --
-- The worker's lock, for as long as this session lives. False when a session before still has it.
SELECT pg_try_advisory_lock(batuta.worker_lock($1, $2)) AS held;

-- free_lock --
SELECT pg_advisory_unlock(batuta.worker_lock($1, $2));

-- timeline --
-- Names the history that this server is on. Changes when it was promoted, or restored to a point in time.
SELECT substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) AS timeline;

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
-- Whole journals of many runs, each up to the head it was claimed with; `n` is the run's place among those asked for.
-- And of those few that have attempts, or whose chains have unread messages, a row with ord -1 that says so. Ids and heads
-- come as texts: see texts.py.
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
-- Unread messages of many chains.
SELECT i.chain_id, i.message_id, i.kind, i.name, i.body, i.at, i.number
FROM unnest($2::uuid[]) AS a(chain_id)
CROSS JOIN LATERAL (
    SELECT * FROM batuta.inbox i
    WHERE i.chain_id = a.chain_id AND i.consumed_at IS NULL AND i.namespace = $1
    ORDER BY i.number
) i;

-- attempts --
-- Attempts of many runs.
SELECT t.run_id, t.seq, t.number, t.started_at, t.ended_at, t.next_at, t.error, t.details, t.outside
FROM unnest($2::uuid[]) AS a(run_id)
CROSS JOIN LATERAL (
    SELECT * FROM batuta.attempts t WHERE t.run_id = a.run_id AND t.namespace = $1 ORDER BY t.seq, t.number
) t;

-- attempts_of_call --
SELECT seq, number, started_at, ended_at, next_at, error, details, outside FROM batuta.attempts
WHERE run_id = $2 AND seq = $3 AND namespace = $1 ORDER BY number;

-- unread --
-- Of many runs: epoch (-1 when closed) and unread messages of the chain, besides the start that lies in the row.
SELECT r.run_id, r.epoch, r.name AS run_name, r.created_at, r.start, i.message_id, i.kind, i.name, i.body, i.at, i.number
FROM unnest($2::uuid[]) AS a(run_id)
CROSS JOIN LATERAL (
    SELECT r.run_id, r.chain_id, r.name, r.created_at, r.start,
           CASE WHEN r.closed_at IS NULL THEN r.epoch ELSE -1 END AS epoch
    FROM batuta.runs r WHERE r.run_id = a.run_id AND r.namespace || '' = $1
) r
LEFT JOIN LATERAL (
    SELECT * FROM batuta.inbox i WHERE i.chain_id = r.chain_id AND i.consumed_at IS NULL ORDER BY i.number
) i ON true;

-- closed_among --
-- Those of the runs that are closed.
SELECT r.run_id FROM batuta.runs r
WHERE r.run_id = ANY ($2::uuid[]) AND r.namespace || '' = $1 AND r.closed_at IS NOT NULL;

-- outcome --
-- A run and its last entry.
SELECT r.*, j.ord AS last_ord, j.kind AS last_kind, j.at AS last_at, j.crc AS last_crc, j.body AS last_body
FROM batuta.runs r
LEFT JOIN batuta.journal j ON j.run_id = r.run_id AND j.ord = r.head
WHERE r.run_id = $2 AND r.namespace || '' = $1;

-- list_runs --
-- Newest first, after a cursor. What does not restrict is null.
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
-- The same for states that have an index of their own: failed ones are found among millions that completed.
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
-- The same for the children of one run, which have an index of their own.
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

-- count_runs --
SELECT count(*) AS runs FROM batuta.runs r
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
  AND ($11::uuid IS NULL OR r.parent_run_id = $11);

-- count_open --
-- The same of runs that are open: each is in one of three indexes, which hold no others, so that this does not grow with
-- what has ended.
SELECT count(*) AS runs
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
  AND ($11::uuid IS NULL OR r.parent_run_id = $11);

-- count_children --
-- The same for the children of one run.
SELECT count(*) AS runs FROM batuta.runs r
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
  AND r.parent_run_id = $11::uuid;

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
-- Hints, outside of every write transaction: NOTIFY takes a lock that all commits would queue for. Not synced: a hint may
-- get lost, and a sync of its own would hold up those of the commits.
SELECT pg_notify($1, p.payload)
FROM (SELECT set_config('synchronous_commit', 'off', true)) AS hint, unnest($2::text[]) AS p(payload);

-- create_migrations --
CREATE SCHEMA IF NOT EXISTS batuta;
CREATE TABLE IF NOT EXISTS batuta.migrations (
    name       text COLLATE "C" NOT NULL PRIMARY KEY,
    checksum   text   NOT NULL,
    applied_at bigint NOT NULL
);

-- migrations_lock --
-- One migration at a time, until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended($1, 11));

-- migrations_exist --
SELECT to_regclass($1) IS NOT NULL AS there;

-- applied_migrations --
SELECT name, checksum FROM batuta.migrations;

-- record_migration --
INSERT INTO batuta.migrations (name, checksum, applied_at)
VALUES ($1, $2, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
