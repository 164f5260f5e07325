-- A batch as one statement: whoever runs it has the whole batch, its fences, its commit and its sync in one step of
-- SQLite, during which Python does something else. It does what batch.py does with the statements of queries.sql;
-- where a fence holds all of it is undone, and batch.py looks where.

-- make_parcels --
-- What a batch comes in: lists of rows as JSON, and the run ids of each list's rows in a row. Nothing is kept here.
CREATE TEMP VIEW IF NOT EXISTS parcels AS
SELECT NULL AS namespace, NULL AS worker_id, NULL AS now, NULL AS queues, NULL AS starts, NULL AS consumed,
    NULL AS advances, NULL AS finishes, NULL AS evictions, NULL AS entries, NULL AS attempts, NULL AS start_ids,
    NULL AS consumed_ids, NULL AS advance_ids, NULL AS finish_ids, NULL AS eviction_ids, NULL AS entry_ids,
    NULL AS attempt_ids;

-- send_parcel --
INSERT INTO parcels VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- unpack_parcels --
-- `LIMIT -1` keeps a list apart from what it is joined with: it is gone through once, and each run found by its key.
CREATE TEMP TRIGGER IF NOT EXISTS unpack_parcels INSTEAD OF INSERT ON parcels
BEGIN
    -- Where a text has one its JSON would end.
    SELECT raise(ABORT, 'a text has a NUL') WHERE instr(NEW.entries, '\u0000') OR instr(NEW.starts, '\u0000')
        OR instr(NEW.queues, '\u0000') OR instr(NEW.consumed, '\u0000') OR instr(NEW.finishes, '\u0000')
        OR instr(NEW.evictions, '\u0000') OR instr(NEW.attempts, '\u0000');
    SELECT raise(ABORT, 'the lease is over') WHERE NEW.starts <> '[]' AND NOT EXISTS (
        SELECT 1 FROM workers
        WHERE namespace = NEW.namespace AND worker_id = NEW.worker_id AND lease_until > NEW.now);
    SELECT raise(ABORT, 'a queue is paused or limited') WHERE EXISTS (
        SELECT 1 FROM json_each(NEW.queues) AS given JOIN queues ON namespace = NEW.namespace AND name = given.value
        WHERE paused OR concurrency IS NOT NULL OR key_concurrency IS NOT NULL OR rate_count IS NOT NULL
            OR key_rate_count IS NOT NULL);
    INSERT INTO runs (
        run_id, namespace, id, chain_id, kind, name, queue, priority, state, epoch, head, owner, created_at, deadline,
        version, tags, memo, parent_seq, parent_policy, flow_key, claimed_head, code, current
    )
    SELECT
        substr(NEW.start_ids, key * 16 + 1, 16), NEW.namespace, json_extract(value, '$[4]'),
        substr(NEW.start_ids, key * 16 + 1, 16), json_extract(value, '$[5]'), json_extract(value, '$[6]'),
        json_extract(value, '$[7]'), json_extract(value, '$[8]'), 'running', json_extract(value, '$[0]'),
        json_extract(value, '$[1]'), NEW.worker_id, NEW.now, json_extract(value, '$[2]'),
        json_extract(value, '$[9]'), json_extract(value, '$[10]'), json_extract(value, '$[11]'),
        json_extract(value, '$[12]'), json_extract(value, '$[13]'), '', -1, json_extract(value, '$[3]'), 1
    FROM json_each(NEW.starts) WHERE true ON CONFLICT DO NOTHING;
    SELECT raise(ABORT, 'a run or an id is taken') WHERE changes() <> json_array_length(NEW.starts);
    UPDATE inbox SET consumed_at = NEW.now
    FROM (
        SELECT json_extract(value, '$[0]') AS message_id, (
            SELECT chain_id FROM runs
            WHERE namespace = NEW.namespace AND run_id = substr(NEW.consumed_ids, key * 16 + 1, 16)) AS chain_id
        FROM json_each(NEW.consumed) LIMIT -1) AS given
    WHERE inbox.chain_id = given.chain_id AND inbox.message_id = given.message_id AND consumed_at IS NULL;
    UPDATE runs SET head = given.new_head
    FROM (
        SELECT substr(NEW.advance_ids, key * 16 + 1, 16) AS run_id, json_extract(value, '$[0]') AS epoch,
            json_extract(value, '$[1]') AS head, json_extract(value, '$[2]') AS new_head
        FROM json_each(NEW.advances) LIMIT -1) AS given
    WHERE runs.namespace = NEW.namespace AND runs.run_id = given.run_id AND runs.epoch = given.epoch
        AND runs.head = given.head AND closed_at IS NULL;
    SELECT raise(ABORT, 'a fence holds') WHERE changes() <> json_array_length(NEW.advances);
    UPDATE runs SET head = given.new_head, state = given.state, closed_at = NEW.now, reason = given.reason,
        owner = NULL, wake_at = NULL
    FROM (
        SELECT substr(NEW.finish_ids, key * 16 + 1, 16) AS run_id, json_extract(value, '$[0]') AS epoch,
            json_extract(value, '$[1]') AS head, json_extract(value, '$[2]') AS new_head,
            json_extract(value, '$[3]') AS state, json_extract(value, '$[4]') AS reason
        FROM json_each(NEW.finishes) LIMIT -1) AS given
    WHERE runs.namespace = NEW.namespace AND runs.run_id = given.run_id AND runs.epoch = given.epoch
        AND runs.head = given.head AND closed_at IS NULL
        AND NOT EXISTS (SELECT 1 FROM inbox
            WHERE inbox.chain_id = runs.chain_id AND consumed_at IS NULL AND inbox.kind IN ('signal', 'update'));
    SELECT raise(ABORT, 'a fence holds') WHERE changes() <> json_array_length(NEW.finishes);
    UPDATE runs SET head = given.new_head, state = 'waiting', wake_at = given.wake_at, reason = given.reason,
        owner = NULL
    FROM (
        SELECT substr(NEW.eviction_ids, key * 16 + 1, 16) AS run_id, json_extract(value, '$[0]') AS epoch,
            json_extract(value, '$[1]') AS head, json_extract(value, '$[2]') AS new_head,
            json_extract(value, '$[3]') AS wake_at, json_extract(value, '$[4]') AS reason
        FROM json_each(NEW.evictions) LIMIT -1) AS given
    WHERE runs.namespace = NEW.namespace AND runs.run_id = given.run_id AND runs.epoch = given.epoch
        AND runs.head = given.head AND closed_at IS NULL
        AND NOT EXISTS (SELECT 1 FROM inbox WHERE inbox.chain_id = runs.chain_id AND consumed_at IS NULL);
    SELECT raise(ABORT, 'a fence holds') WHERE changes() <> json_array_length(NEW.evictions);
    INSERT INTO journal (run_id, ord, namespace, kind, at, crc, epoch, body)
    SELECT
        substr(NEW.entry_ids, key * 16 + 1, 16), json_extract(value, '$[1]'), NEW.namespace,
        json_extract(value, '$[2]'), json_extract(value, '$[3]'), json_extract(value, '$[4]'),
        json_extract(value, '$[0]'), json_extract(value, '$[5]')
    FROM json_each(NEW.entries);
    INSERT INTO attempts (run_id, seq, number, namespace, started_at, ended_at, next_at, error, details, outside)
    SELECT
        substr(NEW.attempt_ids, key * 16 + 1, 16), json_extract(value, '$[0]'), json_extract(value, '$[1]'),
        NEW.namespace, json_extract(value, '$[2]'), json_extract(value, '$[3]'), json_extract(value, '$[4]'),
        json_extract(value, '$[5]'), json_extract(value, '$[6]'), json_extract(value, '$[7]')
    FROM json_each(NEW.attempts) WHERE true
    ON CONFLICT (run_id, seq, number) DO UPDATE SET started_at = excluded.started_at, ended_at = excluded.ended_at,
        next_at = excluded.next_at, error = excluded.error, details = excluded.details, outside = excluded.outside;
END;
