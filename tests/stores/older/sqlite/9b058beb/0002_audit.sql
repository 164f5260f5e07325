-- What operators did: one row for each thing that an act was done to, each with the hash of itself and the one before.
CREATE TABLE audit (
    namespace TEXT    NOT NULL,
    number    INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    actor     TEXT    NOT NULL,
    verb      TEXT    NOT NULL,
    target    TEXT    NOT NULL,
    run_id    TEXT    NOT NULL,
    reason    TEXT    NOT NULL,
    detail    TEXT    NOT NULL,
    before    TEXT    NOT NULL,
    after     TEXT    NOT NULL,
    hash      TEXT    NOT NULL,
    PRIMARY KEY (namespace, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX audit_target ON audit (namespace, target, number);

-- Where the log of a namespace ends: without it, nobody could tell that its last rows are gone.
CREATE TABLE audit_heads (
    namespace TEXT    NOT NULL PRIMARY KEY,
    number    INTEGER NOT NULL,
    hash      TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER audit_stays BEFORE UPDATE ON audit
BEGIN
    SELECT raise(ABORT, 'the audit log is only added to');
END;
CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit
BEGIN
    SELECT raise(ABORT, 'the audit log is only added to');
END;

-- For people.
CREATE VIEW batuta_audit AS
SELECT
    namespace, number, strftime('%Y-%m-%d %H:%M:%f', at / 1e6, 'unixepoch') AS at, actor, verb, target,
    nullif(run_id, '') AS run_id, reason, detail, before, after, hash
FROM audit;
