-- Statements about deleting and pruning; see the functions. `batuta` stands for the schema in use.

-- set_retention --
WITH known AS MATERIALIZED (
    SELECT '{"keep":' || coalesce(r.keep::text, 'null') || '}' AS keep FROM batuta.retention r
    WHERE r.namespace = $1 AND r.name = $2 AND r.state = $3
), written AS (
    INSERT INTO batuta.retention AS r (namespace, name, state, keep) VALUES ($1, $2, $3, $4)
    ON CONFLICT (namespace, name, state) DO UPDATE SET keep = excluded.keep WHERE r.keep IS DISTINCT FROM excluded.keep
    RETURNING r.name
)
SELECT batuta.record_acts($1, $7, $8, $9, $10, coalesce(k.keep, 'null'), $6, ARRAY[$5], '{}', '{}', '{}', batuta.batuta_now())
FROM written w LEFT JOIN known k ON true;

-- drop_retention --
WITH dropped AS (
    DELETE FROM batuta.retention r WHERE r.namespace = $1 AND r.name = $2 AND r.state = $3
    RETURNING '{"keep":' || coalesce(r.keep::text, 'null') || '}' AS keep
)
SELECT batuta.record_acts($1, $5, $6, $7, $8, d.keep, 'null', ARRAY[$4], '{}', '{}', '{}', batuta.batuta_now()) FROM dropped d;

-- retention --
SELECT r.name, r.state, r.keep FROM batuta.retention r WHERE r.namespace = $1 ORDER BY r.name, r.state;

-- delete_runs --
SELECT batuta.delete_runs($1, $2, $3, $4, $5, $6, $7, $8) AS gone;

-- prune --
SELECT deleted, last, busy FROM batuta.prune($1, $2, $3, $4, $5);
