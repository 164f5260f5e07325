-- Attempts that failed and are tried again: few among many, and counted for operators.
CREATE INDEX attempts_failed ON attempts (namespace, run_id, number, next_at)
    WHERE error IS NOT NULL AND next_at IS NOT NULL;
