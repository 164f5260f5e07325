-- Statements about payloads that are written otherwise. `batuta` stands for the schema in use.

-- inbox --
-- By one order, that of the column: a page that begins elsewhere by the database's own would miss the start, or have it
-- again and again.
-- For 2097152 see PAGE_BYTES.
SELECT m.message_id, m.kind, m.name, m.body, m.at, m.number FROM (
    SELECT m.*, coalesce(sum(octet_length(m.body)) OVER (
               ORDER BY m.message_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
    FROM (
        (SELECT i.message_id, i.kind, i.name, i.body, i.at, i.number FROM batuta.inbox i
         WHERE i.chain_id = $2 AND i.message_id > $3 AND i.namespace = $1 ORDER BY i.message_id LIMIT $4)
        UNION ALL
        SELECT 'start:' || r.run_id, 'start', r.name, r.start, r.created_at, 0 FROM batuta.runs r
        WHERE r.run_id = $2 AND r.start IS NOT NULL AND ('start:' || r.run_id) COLLATE "C" > $3
          AND r.namespace || '' = $1
    ) m
) m
WHERE m.before < 2097152
ORDER BY m.message_id LIMIT $4;

-- answers_of --
SELECT o.kind, o.name, o.ord, o.at, o.value, o.error FROM batuta.outputs o
WHERE o.run_id = $2 AND o.kind = 'answer' AND o.name > $3 AND o.namespace = $1 ORDER BY o.name LIMIT $4;

-- rewrite --
-- One row when the run is there and closed, none otherwise: then nothing is written.
WITH r AS (
    SELECT r.run_id, r.chain_id FROM batuta.runs r
    WHERE r.run_id = $2 AND r.namespace || '' = $1 AND r.closed_at IS NOT NULL
), entries AS (
    UPDATE batuta.journal j SET body = e.body, crc = e.crc
    FROM r, unnest($3::integer[], $4::bigint[], $5::text[]) AS e(ord, crc, body)
    WHERE j.run_id = r.run_id AND j.ord = e.ord
), tries AS (
    UPDATE batuta.attempts t SET error = a.error, details = a.details, tokens = a.tokens
    FROM r, unnest($6::integer[], $7::integer[], $8::text[], $9::text[], $10::text[])
         AS a(seq, number, error, details, tokens)
    WHERE t.run_id = r.run_id AND t.seq = a.seq AND t.number = a.number
), shown AS (
    UPDATE batuta.outputs o SET value = n.value, error = n.error
    FROM r, unnest($11::text[], $12::text[], $13::text[], $14::text[]) AS n(kind, name, value, error)
    WHERE o.run_id = CASE WHEN n.kind = 'answer' THEN r.chain_id ELSE r.run_id END AND o.kind = n.kind AND o.name = n.name
), letters AS (
    UPDATE batuta.inbox i SET body = m.body
    FROM r, unnest($15::text[], $16::text[]) AS m(message_id, body)
    WHERE i.chain_id = r.chain_id AND i.message_id = m.message_id
), rows AS (
    UPDATE batuta.runs t
    SET memo = coalesce($17, t.memo), reason = coalesce($18, t.reason),
        start = CASE WHEN t.start IS NOT NULL THEN coalesce((
            SELECT m.body FROM unnest($15::text[], $16::text[]) AS m(message_id, body)
            WHERE m.message_id = 'start:' || t.run_id), t.start) END
    FROM r WHERE t.run_id = r.run_id AND ($17::text IS NOT NULL OR $18::text IS NOT NULL OR t.start IS NOT NULL)
), dead AS (
    UPDATE batuta.dead_letters l SET message = $19 FROM r WHERE l.run_id = r.run_id AND $19::text IS NOT NULL
)
SELECT r.run_id FROM r;
