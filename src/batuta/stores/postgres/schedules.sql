-- Statements about schedules. `batuta` stands for the schema in use.

-- insert_schedule --
-- A new row's revision is the time: one of that id that was deleted had another.
WITH written AS (
    INSERT INTO batuta.schedules (
        namespace, id, spec, state, paused, note, next_at, last_at, last_id, revision, created_at, updated_at)
    SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, c.now, c.now, c.now FROM (SELECT batuta.batuta_now() AS now) c
    ON CONFLICT DO NOTHING
    RETURNING revision
)
SELECT w.revision, batuta.record_acts($1, $10, $11, $12, $13, $14, $15, ARRAY[$2::text], '{}', '{}', '{}', batuta.batuta_now())
FROM written w;

-- replace_schedule --
WITH written AS (
    UPDATE batuta.schedules s
    SET spec = $3, state = $4, paused = $5, note = $6, next_at = $7, last_at = $8, last_id = $9,
        revision = s.revision + 1, updated_at = batuta.batuta_now()
    WHERE s.namespace = $1 AND s.id = $2 AND s.revision = $16
    RETURNING s.revision
)
SELECT w.revision, batuta.record_acts($1, $10, $11, $12, $13, $14, $15, ARRAY[$2::text], '{}', '{}', '{}', batuta.batuta_now())
FROM written w;

-- delete_schedule --
WITH gone AS (
    DELETE FROM batuta.schedules s WHERE s.namespace = $1 AND s.id = $2 RETURNING s.id
)
SELECT g.id, batuta.record_acts($1, $3, $4, $5, $6, $7, $8, ARRAY[$2::text], '{}', '{}', '{}', batuta.batuta_now()) FROM gone g;

-- schedule --
SELECT s.*, EXISTS (
    SELECT FROM batuta.runs r
    WHERE r.run_id = batuta.current_run($1, s.last_id) AND r.closed_at IS NULL) AS busy
FROM batuta.schedules s WHERE s.namespace = $1 AND s.id = $2;

-- schedules --
SELECT s.*, EXISTS (
    SELECT FROM batuta.runs r
    WHERE r.run_id = batuta.current_run($1, s.last_id) AND r.closed_at IS NULL) AS busy
FROM batuta.schedules s WHERE s.namespace = $1 AND s.id > $2 ORDER BY s.id LIMIT $3;

-- due_schedules --
SELECT s.*, EXISTS (
    SELECT FROM batuta.runs r
    WHERE r.run_id = batuta.current_run($1, s.last_id) AND r.closed_at IS NULL) AS busy
FROM batuta.schedules s
WHERE s.namespace = $1 AND s.next_at <= (SELECT batuta.batuta_now()) AND NOT s.paused
  AND (s.next_at, s.id) > ($3, $4)
ORDER BY s.next_at, s.id LIMIT $2;

-- schedule_at --
SELECT min(s.next_at) AS next_at FROM batuta.schedules s
WHERE s.namespace = $1 AND s.next_at > $2 AND NOT s.paused;

-- fire --
-- Schedules move on, and what those begin that did is inserted, each run with its start message. A run whose id is taken
-- is left out.
WITH fired AS MATERIALIZED (
    SELECT batuta.fire_schedules($1, $2, $3, $4, $5, $6, $7, $8) AS won
), fresh AS MATERIALIZED (
    SELECT n.*
    FROM fired f
    CROSS JOIN LATERAL batuta.insert_runs(
        $1, NULL, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30,
        $31, $32, $33, $34, $35, makers => $9, allowed => f.won) n
), posted AS (
    INSERT INTO batuta.inbox (namespace, chain_id, message_id, kind, name, body, at)
    SELECT $1, m.run_id, m.message_id, m.kind, m.name, m.body, (SELECT max(started_at) FROM fresh)
    FROM unnest($10::uuid[], $36::text[], $37::text[], $38::text[], $39::text[])
         AS m(run_id, message_id, kind, name, body)
    WHERE (m.run_id IN (SELECT f.started FROM fresh f)) IS TRUE
)
SELECT (SELECT f.won FROM fired f) AS won, (SELECT count(*) FROM fresh) AS begun;
