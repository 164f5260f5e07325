-- Statements for the transactions of callers.

-- enqueue --
-- Sent through any driver, each of which takes texts; they are given once, in this order. Arrays are written out.
SELECT batuta.enqueue(
    CAST($1 AS text), CAST($2 AS text), CAST($3 AS text), CAST($4 AS text), CAST(CAST($5 AS text) AS uuid),
    CAST(CAST($6 AS text) AS text[]), CAST(CAST($7 AS text) AS bigint[]), CAST(CAST($8 AS text) AS uuid[]),
    CAST(CAST($9 AS text) AS uuid[]), CAST(CAST($10 AS text) AS text[]), CAST(CAST($11 AS text) AS bigint[]),
    CAST(CAST($12 AS text) AS uuid[]), CAST(CAST($13 AS text) AS text[]), CAST(CAST($14 AS text) AS text[]),
    CAST(CAST($15 AS text) AS text[]), CAST(CAST($16 AS text) AS text[]), CAST(CAST($17 AS text) AS integer[]),
    CAST(CAST($18 AS text) AS text[]), CAST(CAST($19 AS text) AS text[]), CAST(CAST($20 AS text) AS text[]),
    CAST(CAST($21 AS text) AS bigint[]), CAST(CAST($22 AS text) AS bigint[]), CAST(CAST($23 AS text) AS uuid[]),
    CAST(CAST($24 AS text) AS integer[]), CAST(CAST($25 AS text) AS text[]), CAST(CAST($26 AS text) AS text[]),
    CAST(CAST($27 AS text) AS bigint[]), CAST(CAST($28 AS text) AS integer[]), CAST(CAST($29 AS text) AS integer[]),
    CAST(CAST($30 AS text) AS text[]), CAST(CAST($31 AS text) AS bigint[]), CAST(CAST($32 AS text) AS bigint[]),
    CAST(CAST($33 AS text) AS text[]), CAST(CAST($34 AS text) AS text[]), CAST(CAST($35 AS text) AS text[]),
    CAST(CAST($36 AS text) AS text[]), CAST(CAST($37 AS text) AS text[]),
    CAST(CAST($38 AS text) AS text[])) AS enqueued;

-- send --
SELECT batuta.send_within(
    CAST($1 AS text), CAST($2 AS text), CAST($3 AS text), CAST($4 AS text), CAST(CAST($5 AS text) AS uuid),
    CAST($6 AS text), CAST($7 AS text), CAST($8 AS text), CAST($9 AS text)) AS sent;

-- start_of --
-- What a chain began with: its first entry, or the start message that waits, in the inbox or in the run's row.
SELECT CAST(coalesce(
    (SELECT json_build_object('kind', j.kind, 'at', j.at, 'crc', j.crc, 'body', j.body)
     FROM batuta.journal j WHERE j.run_id = f.run_id AND j.ord = 0),
    (SELECT json_build_object('message_id', i.message_id, 'name', i.name, 'body', i.body)
     FROM batuta.inbox i WHERE i.chain_id = f.run_id AND i.kind = 'start' ORDER BY i.number LIMIT 1),
    (SELECT json_build_object('message_id', 'start:' || r.run_id, 'name', r.name, 'body', r.start)
     FROM batuta.runs r WHERE r.run_id = f.run_id AND r.start IS NOT NULL)) AS text) AS began
FROM (SELECT CAST(CAST($1 AS text) AS uuid) AS run_id) f;

-- parent_of --
SELECT CAST(json_build_array(r.parent_run_id, r.parent_seq) AS text) AS parent
FROM batuta.runs r WHERE r.run_id = CAST(CAST($1 AS text) AS uuid);

-- place --
SELECT batuta.place() AS place;
