-- Statements about queues: settings, what waits and runs in them, and what began under their rates.

-- queue --
SELECT * FROM queues WHERE namespace = ? AND name = ?;

-- queue_rows --
SELECT * FROM queues WHERE namespace = ? ORDER BY name;

-- note_keyed --
-- A run with a flow key is started into it.
INSERT INTO queues (namespace, name, keyed) VALUES (?, ?, 1)
ON CONFLICT (namespace, name) DO UPDATE SET keyed = 1 WHERE keyed = 0;

-- limit_queue --
-- `:set_` and the name of a limit: whether it is set; the others stay.
INSERT INTO queues (
    namespace, name, concurrency, key_concurrency, rate_count, rate_period, key_rate_count, key_rate_period
) VALUES (
    :namespace, :name, :concurrency, :key_concurrency, :rate_count, :rate_period, :key_rate_count, :key_rate_period
)
ON CONFLICT (namespace, name) DO UPDATE SET concurrency = iif(:set_concurrency, excluded.concurrency, concurrency),
    key_concurrency = iif(:set_key_concurrency, excluded.key_concurrency, key_concurrency),
    rate_count = iif(:set_rate, excluded.rate_count, rate_count),
    rate_period = iif(:set_rate, excluded.rate_period, rate_period),
    key_rate_count = iif(:set_key_rate, excluded.key_rate_count, key_rate_count),
    key_rate_period = iif(:set_key_rate, excluded.key_rate_period, key_rate_period);

-- pause_queue --
INSERT INTO queues (namespace, name, paused, note) VALUES (?, ?, ?, ?)
ON CONFLICT (namespace, name) DO UPDATE SET paused = excluded.paused, note = excluded.note;

-- must_wait --
-- Whether a run must have waited in the queue before it begins.
SELECT 1 FROM queues WHERE namespace = ? AND name = ? AND (paused OR concurrency IS NOT NULL
    OR key_concurrency IS NOT NULL OR rate_count IS NOT NULL OR key_rate_count IS NOT NULL);

-- waiting_in_queues --
SELECT queue, sum(wake_at <= :now), sum(wake_at > :now), min(iif(wake_at <= :now, wake_at, NULL)) FROM runs
WHERE namespace = :namespace AND wake_at IS NOT NULL AND flow_key = '' GROUP BY queue;

-- keyed_in_queues --
SELECT queue, sum(wake_at <= :now), sum(wake_at > :now), min(iif(wake_at <= :now, wake_at, NULL)) FROM runs
WHERE namespace = :namespace AND wake_at IS NOT NULL AND flow_key <> '' GROUP BY queue;

-- owned_in_queues --
SELECT queue, count(*) FROM runs WHERE namespace = ? AND owner = ? GROUP BY queue;

-- owned_by_key --
SELECT flow_key, count(*) FROM runs WHERE namespace = ? AND owner = ? AND queue = ? GROUP BY flow_key;

-- begun --
SELECT slot, count FROM begun WHERE namespace = ? AND queue = ? AND flow_key = ? AND slot > ? ORDER BY slot;

-- note_begun --
INSERT INTO begun (namespace, queue, flow_key, slot, count) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (namespace, queue, flow_key, slot) DO UPDATE SET count = count + excluded.count;

-- forget_begun --
DELETE FROM begun WHERE namespace = ? AND queue = ? AND flow_key = ? AND slot <= ?;

-- forget_all_begun --
-- What no claim came by to forget, up to a number.
DELETE FROM begun WHERE (namespace, queue, flow_key, slot) IN (
    SELECT namespace, queue, flow_key, slot FROM begun WHERE namespace = ? AND queue = ? AND slot <= ? LIMIT ?);
