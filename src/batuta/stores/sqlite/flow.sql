-- Statements about queues: limits, turns and what began.

-- queue --
SELECT * FROM queues WHERE namespace = ? AND name = ?;

-- queue_rows --
SELECT * FROM queues WHERE namespace = ? ORDER BY name;

-- note_keyed --
-- A run with a flow key is started into it.
INSERT INTO queues (namespace, name, keyed) VALUES (?, ?, 1)
ON CONFLICT (namespace, name) DO UPDATE SET keyed = 1 WHERE keyed = 0;

-- limit_queue --
-- The parameters named like a limit say whether it is set; the others stay.
INSERT INTO queues (
    namespace, name, concurrency, key_concurrency, rate_count, rate_period, key_rate_count, key_rate_period
) VALUES (:namespace, :name, :at_once, :of_key_at_once, :count, :period, :key_count, :key_period)
ON CONFLICT (namespace, name) DO UPDATE SET concurrency = iif(:concurrency, excluded.concurrency, concurrency),
    key_concurrency = iif(:key_concurrency, excluded.key_concurrency, key_concurrency),
    rate_count = iif(:rate, excluded.rate_count, rate_count),
    rate_period = iif(:rate, excluded.rate_period, rate_period),
    key_rate_count = iif(:key_rate, excluded.key_rate_count, key_rate_count),
    key_rate_period = iif(:key_rate, excluded.key_rate_period, key_rate_period);

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

-- due_in_order --
-- Read step by step: the caller knows when it has enough.
SELECT rowid, run_id, wake_at, flow_key, epoch = 0 FROM runs INDEXED BY runs_due
WHERE namespace = :namespace AND queue = :queue AND priority = :priority AND wake_at <= :until
    AND wake_at IS NOT NULL AND flow_key = ''
    AND (deaths < 2 OR head <> claimed_head)
    AND code IN (SELECT key FROM json_each(:code))
    AND (failed_code = '[]' OR NOT EXISTS (
        SELECT 1 FROM json_each(:code) AS mine JOIN json_each(runs.failed_code) AS failed ON failed.value = mine.value
        WHERE mine.key = runs.code))
ORDER BY wake_at;

-- keyed_in_order --
SELECT rowid, run_id, wake_at, flow_key, epoch = 0 FROM runs INDEXED BY runs_keyed
WHERE namespace = :namespace AND queue = :queue AND priority = :priority AND wake_at <= :until
    AND wake_at IS NOT NULL AND flow_key <> ''
    AND (deaths < 2 OR head <> claimed_head)
    AND code IN (SELECT key FROM json_each(:code))
    AND (failed_code = '[]' OR NOT EXISTS (
        SELECT 1 FROM json_each(:code) AS mine JOIN json_each(runs.failed_code) AS failed ON failed.value = mine.value
        WHERE mine.key = runs.code))
ORDER BY wake_at;

-- begun_in_order --
SELECT rowid, run_id, wake_at, flow_key, 0 FROM runs INDEXED BY runs_begun
WHERE namespace = :namespace AND queue = :queue AND priority = :priority AND wake_at <= :until
    AND wake_at IS NOT NULL AND epoch > 0
    AND (deaths < 2 OR head <> claimed_head)
    AND code IN (SELECT key FROM json_each(:code))
    AND (failed_code = '[]' OR NOT EXISTS (
        SELECT 1 FROM json_each(:code) AS mine JOIN json_each(runs.failed_code) AS failed ON failed.value = mine.value
        WHERE mine.key = runs.code))
ORDER BY wake_at;

-- suspects_in_order --
SELECT rowid, run_id, wake_at, flow_key, 0 FROM runs INDEXED BY runs_suspect_due
WHERE namespace = :namespace AND queue = :queue AND priority = :priority AND wake_at <= :until
    AND wake_at IS NOT NULL AND deaths >= 2 AND head = claimed_head
    AND code IN (SELECT key FROM json_each(:code))
    AND (failed_code = '[]' OR NOT EXISTS (
        SELECT 1 FROM json_each(:code) AS mine JOIN json_each(runs.failed_code) AS failed ON failed.value = mine.value
        WHERE mine.key = runs.code))
ORDER BY wake_at;

-- keys_in_turn --
-- Steps from one flow key to the next through the index, not through their runs. With each when it is due first.
WITH RECURSIVE keys (flow_key) AS (
    SELECT min(flow_key) FROM runs INDEXED BY runs_turns
    WHERE namespace = :namespace AND queue = :queue AND priority = :priority AND wake_at IS NOT NULL
        AND flow_key <> '' AND flow_key > :after
    UNION ALL
    SELECT (SELECT min(flow_key) FROM runs INDEXED BY runs_turns
        WHERE namespace = :namespace AND queue = :queue AND priority = :priority AND wake_at IS NOT NULL
            AND flow_key <> '' AND flow_key > keys.flow_key)
    FROM keys WHERE keys.flow_key IS NOT NULL
)
SELECT flow_key, (SELECT min(wake_at) FROM runs INDEXED BY runs_turns
    WHERE namespace = :namespace AND queue = :queue AND priority = :priority AND flow_key = keys.flow_key
        AND wake_at IS NOT NULL AND flow_key <> '')
FROM keys WHERE flow_key IS NOT NULL LIMIT :limit;

-- due_of_key --
SELECT rowid, run_id, wake_at, flow_key, epoch = 0 FROM runs INDEXED BY runs_turns
WHERE namespace = :namespace AND queue = :queue AND priority = :priority AND flow_key = :flow_key
    AND wake_at <= :until AND wake_at IS NOT NULL AND flow_key <> ''
    AND (deaths < 2 OR head <> claimed_head)
    AND code IN (SELECT key FROM json_each(:code))
    AND (failed_code = '[]' OR NOT EXISTS (
        SELECT 1 FROM json_each(:code) AS mine JOIN json_each(runs.failed_code) AS failed ON failed.value = mine.value
        WHERE mine.key = runs.code))
ORDER BY wake_at LIMIT :limit OFFSET :offset;

-- runs_by_rowid --
SELECT * FROM runs WHERE runs.rowid IN (SELECT value FROM json_each(?));

-- debounced --
SELECT * FROM runs WHERE namespace = ? AND debounce = ?;

-- replace_debounced --
UPDATE runs SET tags = ?, memo = ?, priority = ?, expires_at = ?, wake_at = ?, deadline = ?
WHERE namespace = ? AND run_id = ?;

-- replace_start --
UPDATE inbox SET body = ?, at = ? WHERE chain_id = ? AND message_id = ?;

-- await_members --
-- What comes after a batch waits for those of it that are new.
UPDATE runs SET awaits = (SELECT count(*) FROM runs AS r INDEXED BY runs_children
        WHERE r.namespace = :namespace AND r.parent_run_id = :run_id AND r.parent_run_id IS NOT NULL)
WHERE namespace = :namespace AND run_id = :run_id;

-- hold_back --
UPDATE runs SET wake_at = NULL WHERE namespace = ? AND run_id = ? AND awaits > 0;
