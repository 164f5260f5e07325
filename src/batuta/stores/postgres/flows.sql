-- Statements about flows, events and what they begin. `batuta` stands for the schema in use.

-- put_flow --
SELECT batuta.put_flow($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20) AS written;

-- flow --
SELECT * FROM batuta.flows WHERE namespace = $1 AND workflow_id = $2;

-- flows --
SELECT * FROM batuta.flows f
WHERE f.namespace = $1 AND (f.name > $2::text COLLATE "C" OR (f.name = $2 AND f.version < $3::integer))
  AND ($4::text IS NULL OR f.name = $4)
  AND ($5::text IS NULL OR f.trigger_type = $5)
  AND ($6::boolean IS NULL OR f.is_active = $6)
  AND ($7::boolean IS NULL OR (f.published_at IS NOT NULL) = $7)
ORDER BY f.name, f.version DESC LIMIT $8;

-- changed_flows --
SELECT * FROM batuta.flows f
WHERE f.namespace = $1 AND f.updated_at >= $2 ORDER BY f.updated_at, f.workflow_id LIMIT $3;

-- active_flows --
SELECT * FROM batuta.flows f
WHERE f.namespace = $1 AND f.trigger_type = $2 AND f.is_active ORDER BY f.workflow_id;

-- accept_events --
-- Events come in, and what those start that are new is inserted, each run with its start message.
WITH accepted AS MATERIALIZED (
    SELECT * FROM batuta.insert_events($1, $2, $3, $4, $5, $6, $7, $8)
), room AS MATERIALIZED (
    SELECT batuta.flow_runs_let_in($1, a.won, $9, $11, $41, $42, $43, $44, $45) AS admitted FROM accepted a
), fresh AS MATERIALIZED (
    SELECT n.*
    FROM room a
    CROSS JOIN LATERAL batuta.insert_runs(
        $1, NULL, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30,
        $31, $32, $33, $34, $35, $36, makers => $11, allowed => a.admitted) n
), posted AS (
    INSERT INTO batuta.inbox (namespace, chain_id, message_id, kind, name, body, at)
    SELECT $1, m.run_id, m.message_id, m.kind, m.name, m.body, (SELECT max(started_at) FROM fresh)
    FROM unnest($11::uuid[], $37::text[], $38::text[], $39::text[], $40::text[])
         AS m(run_id, message_id, kind, name, body)
    WHERE (m.run_id IN (SELECT f.started FROM fresh f)) IS TRUE
), noted AS (
    INSERT INTO batuta.flow_runs (namespace, workflow_id, event_id, chain_id)
    SELECT $1, s.workflow_id, s.event_id, s.run_id
    FROM unnest($10::uuid[], $9::uuid[], $11::uuid[]) AS s(workflow_id, event_id, run_id)
    WHERE (s.run_id IN (SELECT f.started FROM fresh f)) IS TRUE
)
SELECT a.won, a.moment, (SELECT count(*) FROM fresh) AS begun FROM accepted a;

-- accept_event_together --
-- The same for one event that starts debounced runs. Nothing is written when a start is for another run than the one that
-- waits, or finds no room.
WITH elsewhere AS MATERIALIZED (
    SELECT * FROM batuta.waits_elsewhere($1, $11, $13, $14)
), room AS MATERIALIZED (
    SELECT batuta.flow_runs_let_in($1, $2, $9, $14, $44, $45, $46, $47, $48) AS admitted
    FROM elsewhere e WHERE cardinality(e.asked) = 0
), accepted AS MATERIALIZED (
    SELECT a.*
    FROM (SELECT FROM room r WHERE cardinality(r.admitted) = cardinality($14::uuid[])) r
    CROSS JOIN LATERAL batuta.insert_events($1, $2, $3, $4, $5, $6, $7, $8) a
), fresh AS MATERIALIZED (
    SELECT n.*
    FROM (SELECT FROM accepted a WHERE cardinality(a.won) > 0) a
    CROSS JOIN LATERAL batuta.start_together(
        $1, NULL, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30,
        $31, $32, $33, $34, $35, $36, $37, $38, $39, $40, $41, $42, $43) n
), noted AS (
    INSERT INTO batuta.flow_runs (namespace, workflow_id, event_id, chain_id)
    SELECT $1, s.workflow_id, s.event_id, f.started
    FROM unnest($10::uuid[], $9::uuid[], $14::uuid[]) AS s(workflow_id, event_id, run_id)
    JOIN fresh f ON f.asked = s.run_id
)
SELECT coalesce(a.won, '{}') AS won, coalesce(a.moment, 0) AS moment, (SELECT count(*) FROM fresh) AS begun,
       e.asked, e.waiting, coalesce((SELECT r.admitted FROM room r), '{}') AS admitted
FROM elsewhere e LEFT JOIN accepted a ON true;

-- start_flow_run --
WITH noted AS MATERIALIZED (
    SELECT batuta.note_flow_run($1, $2, $3, $4) AS won
), fresh AS MATERIALIZED (
    SELECT n.*
    FROM noted o
    CROSS JOIN LATERAL batuta.insert_runs(
        $1, NULL, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25,
        $26, $27, $28, $29, $30, makers => ARRAY[$2::uuid], allowed => o.won) n
), posted AS (
    INSERT INTO batuta.inbox (namespace, chain_id, message_id, kind, name, body, at)
    SELECT $1, m.run_id, m.message_id, m.kind, m.name, m.body, (SELECT max(started_at) FROM fresh)
    FROM unnest($5::uuid[], $31::text[], $32::text[], $33::text[], $34::text[])
         AS m(run_id, message_id, kind, name, body)
    WHERE (m.run_id IN (SELECT f.started FROM fresh f)) IS TRUE
)
SELECT count(*) AS begun FROM fresh;

-- flow_run --
SELECT * FROM batuta.flow_runs WHERE namespace = $1 AND workflow_id = $2 AND event_id = $3;

-- event --
SELECT * FROM batuta.events WHERE namespace = $1 AND event_id = $2;

-- rewrite_events --
UPDATE batuta.events e SET payload = n.payload
FROM unnest($2::uuid[], $3::text[]) AS n(event_id, payload)
WHERE e.namespace = $1 AND e.event_id = n.event_id;

-- events_among --
-- Events by their ids, or by what their senders call them.
SELECT e.* FROM batuta.events e WHERE e.namespace = $1 AND e.event_id = ANY ($2::uuid[])
UNION
SELECT e.* FROM unnest($3::text[], $4::text[]) AS n(source, external_id)
CROSS JOIN LATERAL (
    SELECT * FROM batuta.events e
    WHERE e.namespace = $1 AND e.source = n.source AND e.external_id = n.external_id LIMIT 1) e;

-- events --
SELECT * FROM batuta.events e
WHERE e.namespace = $1 AND ($2::uuid IS NULL OR e.event_id < $2)
  AND ($3::text IS NULL OR e.type = $3)
  AND ($4::text IS NULL OR e.source = $4)
  AND ($5::text IS NULL OR e.external_id = $5)
ORDER BY e.event_id DESC LIMIT $6;

-- flow_runs_of_flow --
SELECT * FROM batuta.flow_runs f
WHERE f.namespace = $1 AND f.workflow_id = $2 AND ($3::uuid IS NULL OR f.chain_id < $3)
ORDER BY f.chain_id DESC LIMIT $4;

-- flow_runs_of_events --
SELECT * FROM batuta.flow_runs f
WHERE f.namespace = $1 AND f.event_id = ANY ($2::uuid[]) AND ($3::uuid IS NULL OR f.chain_id < $3)
  AND ($5::uuid IS NULL OR f.workflow_id = $5)
ORDER BY f.chain_id DESC LIMIT $4;

-- prune_events --
-- Events are in order of their time. One whose run is there is passed over.
WITH old AS (
    SELECT e.event_id FROM batuta.events e
    WHERE e.namespace = $1 AND e.created_at <= batuta.batuta_now() - $2::bigint
      AND NOT EXISTS (
          SELECT FROM batuta.flow_runs f JOIN batuta.runs r ON r.run_id = f.chain_id
          WHERE f.namespace = e.namespace AND f.event_id = e.event_id)
    ORDER BY e.event_id LIMIT $3 FOR UPDATE SKIP LOCKED
), unlinked AS (
    DELETE FROM batuta.flow_runs f USING old o WHERE f.namespace = $1 AND f.event_id = o.event_id RETURNING f.chain_id
), uncounted AS (
    DELETE FROM batuta.flow_keys k USING unlinked u WHERE k.namespace = $1 AND k.run_id = u.chain_id
), gone AS (
    DELETE FROM batuta.events e USING old o WHERE e.namespace = $1 AND e.event_id = o.event_id RETURNING e.event_id
)
SELECT count(*) AS gone FROM gone;

-- open_runs --
SELECT r.run_id FROM batuta.runs r
WHERE r.namespace = $1 AND r.current AND r.id <> r.run_id::text AND r.id >= $2 AND r.id < $3 AND r.closed_at IS NULL ORDER BY r.id LIMIT $4;

-- counted_runs --
-- In the order in which they found room: their time is taken while the key is locked.
SELECT r.run_id FROM batuta.flow_keys k
CROSS JOIN LATERAL (SELECT batuta.current_run(k.namespace, k.id) AS run_id OFFSET 0) c
JOIN batuta.runs r ON r.run_id = c.run_id AND r.closed_at IS NULL
LEFT JOIN batuta.runs f ON f.run_id = k.run_id
WHERE k.namespace = $1 AND k.flow_key = $2 ORDER BY coalesce(f.created_at, 0), k.run_id;
