-- How long runs are kept once they are closed: empty names and states stand for any, no `keep` (microseconds from the
-- close) for ever.
CREATE TABLE retention (
    namespace TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    state     TEXT    NOT NULL,
    keep      INTEGER,
    PRIMARY KEY (namespace, name, state)
) STRICT, WITHOUT ROWID;

-- Runs that are gone but for long journals and inboxes, which go in several transactions. Nobody finds those any more.
CREATE TABLE leftovers (run_id BLOB NOT NULL PRIMARY KEY) STRICT, WITHOUT ROWID;
