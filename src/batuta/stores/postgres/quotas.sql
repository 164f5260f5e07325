-- Statements about quotas. `batuta` stands for the schema in use.

-- set_quota --
WITH written AS (
    INSERT INTO batuta.quotas AS q (namespace, name, at_most, burst) VALUES ($1, $2, $3, $4)
    ON CONFLICT (namespace, name) DO UPDATE SET at_most = excluded.at_most, burst = excluded.burst
    WHERE (q.at_most, q.burst) IS DISTINCT FROM (excluded.at_most, excluded.burst)
    RETURNING q.name
)
SELECT batuta.record_acts($1, $5, $6, $7, $8, $9, $10, ARRAY[w.name], '{}', '{}', '{}', batuta.batuta_now())
FROM written w;

-- clear_quota --
WITH cleared AS (
    DELETE FROM batuta.quotas q WHERE q.namespace = $1 AND q.name = $2 RETURNING q.name
)
SELECT batuta.record_acts($1, $3, $4, $5, $6, $7, $8, ARRAY[c.name], '{}', '{}', '{}', batuta.batuta_now())
FROM cleared c;

-- quotas --
-- Those that hold: its own, and those of everybody where it has none. Each open run is in one of three indexes, which hold
-- no others; one more than the quota is enough to know.
SELECT q.name, q.own, q.at_most, q.burst, CASE
    WHEN q.name = $3 AND q.at_most IS NOT NULL THEN (
        SELECT count(*) FROM (
            SELECT FROM batuta.runs r WHERE r.namespace = $1 AND r.owner IS NOT NULL
            UNION ALL
            SELECT FROM batuta.runs r WHERE r.namespace = $1 AND r.wake_at IS NOT NULL
            UNION ALL
            SELECT FROM batuta.runs r
            WHERE r.namespace = $1 AND r.closed_at IS NULL AND r.owner IS NULL AND r.wake_at IS NULL
            LIMIT q.at_most::bigint + 1
        ) r)
    ELSE 0 END AS open, a.starts, batuta.batuta_now() - a.at AS ago
FROM (
    SELECT DISTINCT ON (q.name) q.name, q.namespace = $1 AS own, q.at_most, q.burst FROM batuta.quotas q
    WHERE q.namespace IN ($1, $2) ORDER BY q.name, q.namespace = $1 DESC
) q
LEFT JOIN batuta.allowances a ON a.namespace = $1 AND q.name = $4
ORDER BY q.name;

-- spend_starts --
-- See journal.quotas.spent: so many ($2), the first of them so long ago ($3), at a rate ($4) with a burst ($5).
INSERT INTO batuta.allowances AS a (namespace, starts, at)
VALUES ($1, least($5::bigint, $5 - $2::bigint + $4::double precision * $3::bigint / 1e6), batuta.batuta_now())
ON CONFLICT (namespace) DO UPDATE
SET starts = least($5,
        least($5, a.starts + $4 * greatest(0, excluded.at - $3 - a.at) / 1e6) - $2
        + $4 * greatest(0, least($3, excluded.at - a.at)) / 1e6),
    at = excluded.at;
