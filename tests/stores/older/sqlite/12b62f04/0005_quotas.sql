-- How much a namespace may start, by the name of the quota; those of namespace '*' hold for whoever has none of that name.
-- No `at_most`: there is none. `burst`: how many starts may come at once; null: as many as in a second.
CREATE TABLE quotas (
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    at_most   REAL,
    burst     INTEGER,
    PRIMARY KEY (namespace, name)
) STRICT, WITHOUT ROWID;

-- How many starts of its burst a namespace had left, and when. Below zero: clients have started more before they saw.
CREATE TABLE allowances (
    namespace TEXT    NOT NULL PRIMARY KEY,
    starts    REAL    NOT NULL,
    at        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
