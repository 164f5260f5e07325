-- Statements for the transactions of callers.

-- enqueue --
-- Sent through any driver, each of which takes texts; they are given once, in this order. Arrays are written out.
SELECT batuta.enqueue(
    CAST($1 AS text), CAST($2 AS text), CAST($3 AS text), CAST($4 AS text), CAST(CAST($5 AS text) AS uuid),
    CAST(CAST($6 AS text) AS text[]), CAST(CAST($7 AS text) AS bigint[]), CAST(CAST($8 AS text) AS uuid[]),
    CAST(CAST($9 AS text) AS text[]), CAST(CAST($10 AS text) AS bigint[]), CAST(CAST($11 AS text) AS uuid[]),
    CAST(CAST($12 AS text) AS text[]), CAST(CAST($13 AS text) AS text[]), CAST(CAST($14 AS text) AS text[]),
    CAST(CAST($15 AS text) AS text[]), CAST(CAST($16 AS text) AS integer[]), CAST(CAST($17 AS text) AS text[]),
    CAST(CAST($18 AS text) AS text[]), CAST(CAST($19 AS text) AS text[]), CAST(CAST($20 AS text) AS bigint[]),
    CAST(CAST($21 AS text) AS bigint[]), CAST(CAST($22 AS text) AS uuid[]), CAST(CAST($23 AS text) AS integer[]),
    CAST(CAST($24 AS text) AS text[]), CAST(CAST($25 AS text) AS text[]), CAST(CAST($26 AS text) AS bigint[]),
    CAST(CAST($27 AS text) AS integer[]), CAST(CAST($28 AS text) AS integer[]), CAST(CAST($29 AS text) AS text[]),
    CAST(CAST($30 AS text) AS bigint[]), CAST(CAST($31 AS text) AS bigint[]), CAST(CAST($32 AS text) AS text[]),
    CAST(CAST($33 AS text) AS text[]), CAST(CAST($34 AS text) AS text[]), CAST(CAST($35 AS text) AS text[]),
    CAST(CAST($36 AS text) AS text[]), CAST(CAST($37 AS text) AS text[])) AS enqueued;

-- place --
SELECT batuta.place() AS place;
