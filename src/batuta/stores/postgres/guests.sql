-- Statements for the transactions of callers.

-- enqueue --
-- Also sent through other drivers, which are given each parameter once, in this order.
SELECT batuta.enqueue(
    CAST($1 AS text), CAST($2 AS text), CAST($3 AS text), CAST($4 AS text), CAST($5 AS text)) AS enqueued;

-- place --
SELECT batuta.place() AS place;
