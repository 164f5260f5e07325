-- Dead letters: runs that were given up, and wait for a person.
CREATE TABLE dead_letters (
    run_id      BLOB    NOT NULL,
    namespace   TEXT    NOT NULL,
    id          TEXT    NOT NULL,
    kind        TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    queue       TEXT    NOT NULL,
    flow_key    TEXT    NOT NULL,
    state       TEXT    NOT NULL CHECK (state IN ('open', 'reprocessed', 'discarded')),
    at          INTEGER NOT NULL,
    reason      TEXT    NOT NULL,
    error       TEXT    NOT NULL,
    message     TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    activity    TEXT    NOT NULL,
    seq         INTEGER NOT NULL,
    attempts    INTEGER NOT NULL,
    keep        INTEGER NOT NULL,
    trace       TEXT    NOT NULL,
    resolved_at INTEGER,
    note        TEXT    NOT NULL DEFAULT '',
    successor   BLOB,
    PRIMARY KEY (namespace, run_id)
) STRICT;
CREATE INDEX dead_letters_newest ON dead_letters (namespace, state, at, run_id);
CREATE INDEX dead_letters_alike ON dead_letters (namespace, fingerprint, state, at, run_id);

-- How many there are of each kind, kept as letters come and go: groups are listed without looking at their letters.
-- `error` and `activity` are the same wherever the fingerprint is.
CREATE TABLE letter_groups (
    namespace   TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    state       TEXT    NOT NULL,
    name        TEXT    NOT NULL,
    reason      TEXT    NOT NULL,
    error       TEXT    NOT NULL,
    activity    TEXT    NOT NULL,
    count       INTEGER NOT NULL,
    first_at    INTEGER NOT NULL,
    last_at     INTEGER NOT NULL,
    PRIMARY KEY (namespace, fingerprint, state, name, reason)
) STRICT, WITHOUT ROWID;
CREATE INDEX letter_groups_newest ON letter_groups (namespace, state, last_at, fingerprint);

CREATE VIEW batuta_dead_letters AS
SELECT
    l.namespace, l.id,
    lower(printf('%s-%s-%s-%s-%s', substr(l.run, 1, 8), substr(l.run, 9, 4), substr(l.run, 13, 4),
        substr(l.run, 17, 4), substr(l.run, 21))) AS run_id,
    l.kind, l.name, l.queue, l.flow_key, l.state,
    strftime('%Y-%m-%d %H:%M:%f', l.at / 1e6, 'unixepoch') AS at,
    l.reason, l.error, l.message, l.fingerprint, l.activity, l.seq, l.attempts, l.trace,
    strftime('%Y-%m-%d %H:%M:%f', l.resolved_at / 1e6, 'unixepoch') AS resolved_at,
    l.note,
    nullif(lower(printf('%s-%s-%s-%s-%s', substr(l.next, 1, 8), substr(l.next, 9, 4), substr(l.next, 13, 4),
        substr(l.next, 17, 4), substr(l.next, 21))), '----') AS successor
FROM (SELECT *, hex(run_id) AS run, hex(successor) AS next FROM dead_letters) AS l;
