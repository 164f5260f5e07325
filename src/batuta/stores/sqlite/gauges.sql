-- gauges --
-- How much is open, from indexes that hold nothing else where there are some. See `journal.queues` for the columns.
WITH RECURSIVE waiting(queue) AS (
    SELECT min(queue) FROM runs WHERE namespace = :namespace AND wake_at IS NOT NULL AND flow_key = ''
    UNION ALL
    SELECT (SELECT min(queue) FROM runs
            WHERE namespace = :namespace AND queue > w.queue AND wake_at IS NOT NULL AND flow_key = '')
    FROM waiting w WHERE w.queue IS NOT NULL LIMIT :queues
), keyed(queue) AS (
    SELECT min(queue) FROM runs WHERE namespace = :namespace AND wake_at IS NOT NULL AND flow_key <> ''
    UNION ALL
    SELECT (SELECT min(queue) FROM runs
            WHERE namespace = :namespace AND queue > k.queue AND wake_at IS NOT NULL AND flow_key <> '')
    FROM keyed k WHERE k.queue IS NOT NULL LIMIT :queues
), owners(owner) AS (
    SELECT min(owner) FROM runs WHERE namespace = :namespace AND owner IS NOT NULL
    UNION ALL
    SELECT (SELECT min(owner) FROM runs WHERE namespace = :namespace AND owner > o.owner)
    FROM owners o WHERE o.owner IS NOT NULL
)
SELECT iif(r.wake_at <= :now, 'due', 'delayed') AS part, r.queue AS queue, r.state AS state, count(*), min(r.wake_at)
FROM waiting w CROSS JOIN runs r
WHERE w.queue IS NOT NULL AND r.rowid IN (
    SELECT i.rowid FROM runs i
    WHERE i.namespace = :namespace AND i.queue = w.queue AND i.wake_at IS NOT NULL AND i.flow_key = '' LIMIT :most)
GROUP BY 1, 2, 3
UNION ALL
SELECT iif(r.wake_at <= :now, 'due', 'delayed'), r.queue, r.state, count(*), min(r.wake_at)
FROM keyed k CROSS JOIN runs r
WHERE k.queue IS NOT NULL AND r.rowid IN (
    SELECT i.rowid FROM runs i
    WHERE i.namespace = :namespace AND i.queue = k.queue AND i.wake_at IS NOT NULL AND i.flow_key <> '' LIMIT :most)
GROUP BY 1, 2, 3
UNION ALL
SELECT 'running', owned.queue, 'running', count(*), NULL FROM (
    SELECT i.queue AS queue FROM owners o CROSS JOIN runs i
    WHERE o.owner IS NOT NULL AND i.namespace = :namespace AND i.owner = o.owner LIMIT :most) AS owned
GROUP BY owned.queue
UNION ALL
-- No index holds these alone: they are looked for among the newest runs.
SELECT 'idle', '', newest.state, count(*), NULL FROM (
    SELECT i.state, i.owner, i.wake_at, i.closed_at FROM runs i
    WHERE i.namespace = :namespace ORDER BY i.run_id DESC LIMIT :most) AS newest
WHERE newest.owner IS NULL AND newest.wake_at IS NULL AND newest.closed_at IS NULL GROUP BY newest.state
UNION ALL
SELECT 'worker', q.value, '', count(DISTINCT w.worker_id), NULL FROM workers w, json_each(w.queues) AS q
WHERE w.namespace = :namespace AND w.lease_until > :now GROUP BY q.value
UNION ALL
SELECT 'workers', '', '', count(*), NULL FROM workers WHERE namespace = :namespace AND lease_until > :now
UNION ALL
SELECT 'paused', name, '', 1, NULL FROM queues WHERE namespace = :namespace AND paused
UNION ALL
SELECT 'letters', '', '', coalesce(sum(g.count), 0), NULL FROM (
    SELECT count FROM letter_groups WHERE namespace = :namespace AND state = 'open' LIMIT :most) AS g
UNION ALL
SELECT 'schedule', '', '', 1, min(next_at) FROM schedules
WHERE namespace = :namespace AND paused = 0 AND next_at IS NOT NULL AND next_at <= :now
UNION ALL
SELECT 'retrying', CAST(tries.number AS TEXT), '', count(*), NULL FROM (
    SELECT max(f.number) AS number FROM (
        SELECT i.run_id, i.number, i.next_at FROM attempts AS i INDEXED BY attempts_failed
        WHERE i.namespace = :namespace AND i.error IS NOT NULL AND i.next_at IS NOT NULL
        ORDER BY i.run_id DESC LIMIT :most) AS f
    CROSS JOIN runs AS r
    WHERE r.namespace = :namespace AND r.run_id = f.run_id
        AND r.closed_at IS NULL AND (r.owner IS NOT NULL OR r.wake_at IS NOT NULL)
        AND NOT EXISTS (
            SELECT 1 FROM journal AS last WHERE last.run_id = r.run_id AND last.ord = r.head AND last.at > f.next_at)
    GROUP BY f.run_id) AS tries
GROUP BY tries.number
UNION ALL
SELECT 'now', '', '', 0, :now;
