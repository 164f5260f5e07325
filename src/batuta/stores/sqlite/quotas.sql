-- Statements about quotas.

-- set_quota --
INSERT INTO quotas (namespace, name, at_most, burst) VALUES (?, ?, ?, ?)
ON CONFLICT (namespace, name) DO UPDATE SET at_most = excluded.at_most, burst = excluded.burst
WHERE at_most IS NOT excluded.at_most OR burst IS NOT excluded.burst;

-- clear_quota --
DELETE FROM quotas WHERE namespace = ? AND name = ?;

-- quotas --
SELECT name, at_most, burst FROM quotas WHERE namespace = ?;

-- count_open --
-- Each open run is in one of four indexes, which hold no others.
SELECT count(*) FROM (
    SELECT 1 FROM runs INDEXED BY runs_owned WHERE namespace = :namespace AND owner IS NOT NULL
    UNION ALL
    SELECT 1 FROM runs INDEXED BY runs_due WHERE namespace = :namespace AND wake_at IS NOT NULL AND flow_key = ''
    UNION ALL
    SELECT 1 FROM runs INDEXED BY runs_turns WHERE namespace = :namespace AND wake_at IS NOT NULL AND flow_key <> ''
    UNION ALL
    SELECT 1 FROM runs WHERE namespace = :namespace AND owner IS NULL AND wake_at IS NULL AND closed_at IS NULL
    LIMIT :limit
);

-- counts_open --
SELECT 1 FROM quotas WHERE name = ? AND at_most IS NOT NULL;

-- index_idle --
-- Only while there is a quota that needs it: every claim and every end would pay for it.
CREATE INDEX IF NOT EXISTS runs_idle ON runs (namespace, owner, wake_at, closed_at)
    WHERE owner IS NULL AND wake_at IS NULL AND closed_at IS NULL;

-- drop_idle --
DROP INDEX IF EXISTS runs_idle;

-- allowance --
SELECT starts, at FROM allowances WHERE namespace = ?;

-- set_allowance --
INSERT INTO allowances (namespace, starts, at) VALUES (?, ?, ?)
ON CONFLICT (namespace) DO UPDATE SET starts = excluded.starts, at = excluded.at;
