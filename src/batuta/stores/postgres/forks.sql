-- Runs made from others.

-- fork_runs --
SELECT f.outcome, f.said, f.state, f.told FROM batuta.fork_runs($1, $2, $3, $4, $5, $6, $7, $8, $9) f;

-- forked_runs --
SELECT r.* FROM unnest($2::uuid[]) WITH ORDINALITY AS a(run_id, n)
CROSS JOIN LATERAL (SELECT * FROM batuta.runs r WHERE r.run_id = a.run_id AND r.namespace || '' = $1 LIMIT 1) r
ORDER BY a.n;
