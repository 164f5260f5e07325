-- Statements about deleting and pruning; see the functions. `batuta` stands for the schema in use.

-- set_retention --
INSERT INTO batuta.retention AS r (namespace, name, state, keep) VALUES ($1, $2, $3, $4)
ON CONFLICT (namespace, name, state) DO UPDATE SET keep = excluded.keep WHERE r.keep IS DISTINCT FROM excluded.keep
RETURNING r.name;

-- drop_retention --
DELETE FROM batuta.retention r WHERE r.namespace = $1 AND r.name = $2 AND r.state = $3 RETURNING r.name;

-- retention --
SELECT r.name, r.state, r.keep FROM batuta.retention r WHERE r.namespace = $1 ORDER BY r.name, r.state;

-- delete_runs --
SELECT run_id FROM batuta.delete_runs($1, $2);

-- prune --
SELECT deleted, last FROM batuta.prune($1, $2, $3, $4, $5);
