-- Statements that find due runs in a fair order.

-- due_in_order --
-- Read step by step: the caller knows when it has enough.
SELECT rowid, run_id, wake_at, flow_key, epoch = 0 FROM runs INDEXED BY runs_due
WHERE namespace = :namespace AND queue = :queue AND priority = :priority AND wake_at <= :until
    AND wake_at IS NOT NULL AND flow_key = ''
    AND (deaths < 2 OR head <> claimed_head)
    AND code IN (SELECT key FROM json_each(:code))
    AND (failed_code = '[]' OR NOT EXISTS (
        SELECT 1 FROM json_each(:code) AS mine JOIN json_each(iif(json_valid(runs.failed_code), runs.failed_code, '[]')) AS failed ON failed.value = mine.value
        WHERE mine.key = runs.code))
ORDER BY wake_at;

-- keyed_in_order --
SELECT rowid, run_id, wake_at, flow_key, epoch = 0 FROM runs INDEXED BY runs_keyed
WHERE namespace = :namespace AND queue = :queue AND priority = :priority AND wake_at <= :until
    AND wake_at IS NOT NULL AND flow_key <> ''
    AND (deaths < 2 OR head <> claimed_head)
    AND code IN (SELECT key FROM json_each(:code))
    AND (failed_code = '[]' OR NOT EXISTS (
        SELECT 1 FROM json_each(:code) AS mine JOIN json_each(iif(json_valid(runs.failed_code), runs.failed_code, '[]')) AS failed ON failed.value = mine.value
        WHERE mine.key = runs.code))
ORDER BY wake_at;

-- begun_in_order --
SELECT rowid, run_id, wake_at, flow_key, 0 FROM runs INDEXED BY runs_begun
WHERE namespace = :namespace AND queue = :queue AND priority = :priority AND wake_at <= :until
    AND wake_at IS NOT NULL AND epoch > 0
    AND (deaths < 2 OR head <> claimed_head)
    AND code IN (SELECT key FROM json_each(:code))
    AND (failed_code = '[]' OR NOT EXISTS (
        SELECT 1 FROM json_each(:code) AS mine JOIN json_each(iif(json_valid(runs.failed_code), runs.failed_code, '[]')) AS failed ON failed.value = mine.value
        WHERE mine.key = runs.code))
ORDER BY wake_at;

-- suspects_in_order --
SELECT rowid, run_id, wake_at, flow_key, 0 FROM runs INDEXED BY runs_suspect_due
WHERE namespace = :namespace AND queue = :queue AND priority = :priority AND wake_at <= :until
    AND wake_at IS NOT NULL AND deaths >= 2 AND head = claimed_head
    AND code IN (SELECT key FROM json_each(:code))
    AND (failed_code = '[]' OR NOT EXISTS (
        SELECT 1 FROM json_each(:code) AS mine JOIN json_each(iif(json_valid(runs.failed_code), runs.failed_code, '[]')) AS failed ON failed.value = mine.value
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
        SELECT 1 FROM json_each(:code) AS mine JOIN json_each(iif(json_valid(runs.failed_code), runs.failed_code, '[]')) AS failed ON failed.value = mine.value
        WHERE mine.key = runs.code))
ORDER BY wake_at LIMIT :limit OFFSET :offset;

-- runs_by_rowid --
SELECT * FROM runs WHERE runs.rowid IN (SELECT value FROM json_each(?));
