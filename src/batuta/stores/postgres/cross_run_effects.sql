-- What reaches beyond a run; see the functions. `batuta` stands for the schema in use.

-- commit_beyond --
-- Changes that concern more than their own runs.
SELECT *
FROM batuta.commit_beyond(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25,
    $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39, $40, $41, $42, $43, $44, $45, $46, $47,
    $48, $49, $50, $51, $52, $53, $54, $55, $56, $57, $58, $59, $60, $61, $62, $63, $64, $65, $66, $67, $68, $69,
    $70, $71, $72, $73, $74, $75, $76, $77, $78, $79, $80, $81, $82, $83, $84, $85, $86);

-- close_runs --
-- Close open runs from outside, each with its last entry, and tell their kin.
SELECT * FROM batuta.close_runs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- close_as_act --
-- The same, recorded in the audit log.
WITH done AS MATERIALIZED (
    SELECT * FROM batuta.close_runs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
)
SELECT d.*, (
    SELECT batuta.record_acts(
        $1, $13, $14, $15, $16, $17, $18, array_agg(r.id ORDER BY c.n), array_agg(c.run_id::text ORDER BY c.n),
        array_agg(batuta.state_json(c.before) ORDER BY c.n), array_agg(batuta.state_json($2) ORDER BY c.n),
        batuta.batuta_now())
    FROM unnest(d.closed, d.befores) WITH ORDINALITY AS c(run_id, before, n)
    CROSS JOIN LATERAL (SELECT r.id FROM batuta.runs r WHERE r.run_id = c.run_id LIMIT 1) r) AS recorded
FROM done d;

-- start_and_send --
-- An unowned run with its start message, and a message for it or for the run that has its id.
SELECT *
FROM batuta.start_and_send(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25,
    $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36);

-- outputs --
-- What a run has published.
SELECT kind, name, ord, at, value, error FROM batuta.outputs o
WHERE o.run_id = $2 AND o.kind = 'published' AND o.namespace = $1
ORDER BY o.name;

-- answers --
-- Answers to updates, each asked for by chain and message id.
SELECT a.n, o.kind, o.name, o.ord, o.at, o.value, o.error
FROM unnest($2::uuid[], $3::text[]) WITH ORDINALITY AS a(chain_id, name, n)
CROSS JOIN LATERAL (
    SELECT * FROM batuta.outputs o
    WHERE o.run_id = a.chain_id AND o.kind = 'answer' AND o.name = a.name AND o.namespace = $1
) o;
