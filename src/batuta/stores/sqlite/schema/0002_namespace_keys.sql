-- The namespace in the key of every table that is found by run id: two namespaces may have runs of the same run id, and
-- neither meets the other's rows. SQLite changes no key in place: the tables are copied, which takes a while in a large file.
DROP VIEW batuta_activities;

ALTER TABLE journal RENAME TO journal_before;
CREATE TABLE journal (
    run_id    BLOB    NOT NULL,
    ord       INTEGER NOT NULL,
    namespace TEXT    NOT NULL,
    kind      TEXT    NOT NULL,
    at        INTEGER NOT NULL,
    crc       INTEGER NOT NULL,
    epoch     INTEGER NOT NULL,
    body      TEXT    NOT NULL,
    PRIMARY KEY (run_id, namespace, ord)
) STRICT;
INSERT INTO journal (run_id, ord, namespace, kind, at, crc, epoch, body)
SELECT run_id, ord, namespace, kind, at, crc, epoch, body FROM journal_before ORDER BY rowid;
DROP TABLE journal_before;

ALTER TABLE inbox RENAME TO inbox_before;
CREATE TABLE inbox (
    number      INTEGER PRIMARY KEY,
    namespace   TEXT    NOT NULL,
    chain_id    BLOB    NOT NULL,
    message_id  TEXT    NOT NULL,
    kind        TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    body        TEXT    NOT NULL,
    at          INTEGER NOT NULL,
    consumed_at INTEGER,
    UNIQUE (chain_id, namespace, message_id)
) STRICT;
INSERT INTO inbox (number, namespace, chain_id, message_id, kind, name, body, at, consumed_at)
SELECT number, namespace, chain_id, message_id, kind, name, body, at, consumed_at FROM inbox_before ORDER BY number;
DROP TABLE inbox_before;
CREATE INDEX inbox_unread ON inbox (chain_id, namespace, number) WHERE consumed_at IS NULL;

ALTER TABLE outputs RENAME TO outputs_before;
CREATE TABLE outputs (
    run_id    BLOB    NOT NULL,
    kind      TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    namespace TEXT    NOT NULL,
    ord       INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    value     TEXT,
    error     TEXT,
    PRIMARY KEY (run_id, namespace, kind, name)
) STRICT, WITHOUT ROWID;
INSERT INTO outputs (run_id, kind, name, namespace, ord, at, value, error)
SELECT run_id, kind, name, namespace, ord, at, value, error FROM outputs_before ORDER BY run_id, kind, name;
DROP TABLE outputs_before;

ALTER TABLE attempts RENAME TO attempts_before;
CREATE TABLE attempts (
    run_id     BLOB    NOT NULL,
    seq        INTEGER NOT NULL,
    number     INTEGER NOT NULL,
    namespace  TEXT    NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at   INTEGER,
    next_at    INTEGER,
    error      TEXT,
    details    TEXT,
    outside    INTEGER NOT NULL DEFAULT 0,
    tokens     TEXT,
    PRIMARY KEY (run_id, namespace, seq, number)
) STRICT, WITHOUT ROWID;
INSERT INTO attempts (run_id, seq, number, namespace, started_at, ended_at, next_at, error, details, outside, tokens)
SELECT run_id, seq, number, namespace, started_at, ended_at, next_at, error, details, outside, tokens
FROM attempts_before ORDER BY run_id, seq, number;
DROP TABLE attempts_before;

-- What is left of deleted runs: their rows say which namespace they were in.
ALTER TABLE leftovers RENAME TO leftovers_before;
CREATE TABLE leftovers (
    namespace TEXT NOT NULL,
    run_id    BLOB NOT NULL,
    PRIMARY KEY (namespace, run_id)
) STRICT, WITHOUT ROWID;
INSERT OR IGNORE INTO leftovers (namespace, run_id)
SELECT j.namespace, l.run_id FROM leftovers_before AS l JOIN journal AS j ON j.run_id = l.run_id
UNION
SELECT i.namespace, l.run_id FROM leftovers_before AS l JOIN inbox AS i ON i.chain_id = l.run_id;
DROP TABLE leftovers_before;

CREATE VIEW batuta_activities AS
SELECT
    j.namespace, r.id,
    lower(printf('%s-%s-%s-%s-%s', substr(hex(j.run_id), 1, 8), substr(hex(j.run_id), 9, 4),
        substr(hex(j.run_id), 13, 4), substr(hex(j.run_id), 17, 4), substr(hex(j.run_id), 21))) AS run_id,
    json_extract(c.value, '$.seq') AS seq,
    json_extract(c.value, '$.name') AS name,
    CASE d.kind WHEN 'activity_done' THEN 'completed' WHEN 'activity_failed' THEN 'failed' ELSE 'pending' END AS state,
    json_extract(c.value, '$.value') AS input,
    iif(json_type(d.body, '$.value') IS NULL, NULL, substr(json_extract(d.body, '$.value', '$.none'), 2,
        length(json_extract(d.body, '$.value', '$.none')) - length('[,null]'))) AS output,
    iif(d.kind IS NULL, a.error, json_extract(d.body, '$.error')) AS error,
    coalesce(json_extract(d.body, '$.attempts'), a.number, 0) AS attempts,
    strftime('%Y-%m-%d %H:%M:%f', j.at / 1e6, 'unixepoch') AS scheduled_at,
    strftime('%Y-%m-%d %H:%M:%f', coalesce(json_extract(d.body, '$.started_at'), a.started_at) / 1e6,
        'unixepoch') AS started_at,
    strftime('%Y-%m-%d %H:%M:%f', d.at / 1e6, 'unixepoch') AS ended_at
FROM journal AS j
JOIN json_each(j.body, '$.commands') AS c ON json_extract(c.value, '$.kind') = 'activity'
JOIN runs AS r ON r.namespace = j.namespace AND r.run_id = j.run_id
LEFT JOIN journal AS d
    ON d.run_id = j.run_id AND d.namespace = j.namespace AND d.ord > j.ord AND d.kind IN ('activity_done', 'activity_failed')
    AND json_extract(d.body, '$.seq') = json_extract(c.value, '$.seq')
LEFT JOIN attempts AS a
    ON a.run_id = j.run_id AND a.namespace = j.namespace AND a.seq = json_extract(c.value, '$.seq')
    AND a.number = (SELECT max(t.number) FROM attempts AS t
        WHERE t.run_id = a.run_id AND t.namespace = a.namespace AND t.seq = a.seq);
