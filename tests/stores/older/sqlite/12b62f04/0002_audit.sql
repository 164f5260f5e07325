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
    salt      TEXT    NOT NULL DEFAULT '',
    PRIMARY KEY (namespace, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX audit_target ON audit (namespace, target, number);

-- Where the log of a namespace ends: without it, nobody could tell that its last rows are gone.
CREATE TABLE audit_heads (
    namespace TEXT    NOT NULL PRIMARY KEY,
    number    INTEGER NOT NULL,
    hash      TEXT    NOT NULL,
    salt      TEXT    NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID;

CREATE TRIGGER audit_stays BEFORE UPDATE ON audit
BEGIN
    SELECT raise(ABORT, 'the audit log is only added to');
END;
CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit
BEGIN
    SELECT raise(ABORT, 'the audit log is only added to');
END;
-- Where a log ends moves on by updates alone, and no row is put in behind it. Nor in place of another: INSERT OR REPLACE
-- deletes without asking the triggers for that.
CREATE TRIGGER audit_ends BEFORE INSERT ON audit
WHEN NEW.number > coalesce((SELECT number FROM audit_heads WHERE namespace = NEW.namespace), 0)
  OR EXISTS (SELECT 1 FROM audit WHERE namespace = NEW.namespace AND number = NEW.number)
BEGIN
    SELECT raise(ABORT, 'the audit log is only added to');
END;
CREATE TRIGGER audit_heads_begin BEFORE INSERT ON audit_heads
WHEN NEW.number <> 0 OR NEW.hash <> '' OR EXISTS (SELECT 1 FROM audit_heads WHERE namespace = NEW.namespace)
BEGIN
    SELECT raise(ABORT, 'the audit log begins with nothing');
END;
CREATE TRIGGER audit_heads_move BEFORE UPDATE ON audit_heads
WHEN NEW.namespace <> OLD.namespace OR NEW.number <= OLD.number
BEGIN
    SELECT raise(ABORT, 'the audit log is only added to');
END;
CREATE TRIGGER audit_heads_stay BEFORE DELETE ON audit_heads
BEGIN
    SELECT raise(ABORT, 'the audit log is only added to');
END;

-- For people.
CREATE VIEW batuta_audit AS
SELECT
    namespace, number, strftime('%Y-%m-%d %H:%M:%f', at / 1e6, 'unixepoch') AS at, actor, verb, target,
    nullif(run_id, '') AS run_id, reason, detail, before, after, hash, salt
FROM audit;
