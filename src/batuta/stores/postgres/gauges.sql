-- gauges --
-- How much is open, from indexes that hold nothing else. See `journal.queues` for the columns.
WITH RECURSIVE moment AS MATERIALIZED (
    SELECT batuta.batuta_now() AS at
), waiting AS (
    (SELECT r.queue FROM batuta.runs r
     WHERE r.namespace = $1 AND r.wake_at IS NOT NULL ORDER BY r.queue LIMIT 1)
    UNION ALL
    SELECT (SELECT r.queue FROM batuta.runs r
            WHERE r.namespace = $1 AND r.queue > w.queue AND r.wake_at IS NOT NULL ORDER BY r.queue LIMIT 1)
    FROM waiting w WHERE w.queue IS NOT NULL
)
SELECT CASE WHEN r.wake_at <= m.at THEN 'due' ELSE 'delayed' END AS part, w.queue AS queue, r.state AS state,
       count(*) AS count, min(r.wake_at) AS at
FROM (SELECT w.queue FROM waiting w WHERE w.queue IS NOT NULL LIMIT $3) w
CROSS JOIN moment m
CROSS JOIN LATERAL (
    SELECT r.state, r.wake_at FROM batuta.runs r
    WHERE r.namespace = $1 AND r.queue = w.queue AND r.wake_at IS NOT NULL LIMIT $2
) r
GROUP BY 1, 2, 3
UNION ALL
SELECT 'running', r.queue, 'running', count(*), NULL FROM (
    SELECT r.queue FROM batuta.runs r WHERE r.namespace = $1 AND r.owner IS NOT NULL LIMIT $2
) r
GROUP BY r.queue
UNION ALL
SELECT 'idle', '', r.state, count(*), NULL FROM (
    SELECT r.state FROM batuta.runs r
    WHERE r.namespace = $1 AND r.closed_at IS NULL AND r.owner IS NULL AND r.wake_at IS NULL LIMIT $2
) r
GROUP BY r.state
UNION ALL
SELECT 'worker', q.queue, '', count(DISTINCT w.worker_id), NULL
FROM batuta.workers w CROSS JOIN moment m CROSS JOIN LATERAL unnest(w.queues) AS q(queue)
WHERE w.namespace = $1 AND w.lease_until > m.at GROUP BY q.queue
UNION ALL
SELECT 'workers', '', '', count(*), NULL FROM batuta.workers w CROSS JOIN moment m
WHERE w.namespace = $1 AND w.lease_until > m.at
UNION ALL
SELECT 'paused', q.name, '', 1, NULL FROM batuta.queues q WHERE q.namespace = $1 AND q.paused
UNION ALL
SELECT 'letters', '', '', coalesce(sum(g.count), 0)::bigint, NULL FROM (
    SELECT g.count FROM batuta.letter_groups g
    WHERE g.namespace || ':' = $1 || ':' AND g.state = 'open' LIMIT $2
) g
UNION ALL
SELECT 'schedule', '', '', 1, min(s.next_at) FROM batuta.schedules s CROSS JOIN moment m
WHERE s.namespace = $1 AND s.next_at <= m.at AND NOT s.paused
UNION ALL
SELECT 'retrying', t.number::text, '', count(*), NULL FROM (
    SELECT max(f.number) AS number FROM (
        SELECT a.run_id, a.number, a.next_at FROM batuta.attempts a
        WHERE a.namespace = $1 AND a.error IS NOT NULL AND a.next_at IS NOT NULL
        ORDER BY a.run_id DESC LIMIT $2
    ) f
    JOIN batuta.runs r ON r.run_id = f.run_id AND r.namespace = $1
    WHERE r.closed_at IS NULL AND (r.owner IS NOT NULL OR r.wake_at IS NOT NULL)
      AND NOT EXISTS (
          SELECT FROM batuta.journal j WHERE j.run_id = r.run_id AND j.ord = r.head AND j.at > f.next_at)
    GROUP BY f.run_id
) t
GROUP BY t.number
UNION ALL
SELECT 'now', '', '', 0, m.at FROM moment m;
