-- How long runs are kept once they are closed: empty names and states stand for any, no `keep` (microseconds from the
-- close) for ever.
CREATE TABLE retention (
    namespace TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    state     TEXT    NOT NULL,
    keep      INTEGER,
    PRIMARY KEY (namespace, name, state)
) STRICT, WITHOUT ROWID;
