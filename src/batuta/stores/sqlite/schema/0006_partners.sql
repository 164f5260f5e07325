-- Breakers and limits towards partners: a document for each, and one for each key that a limit counts.
CREATE TABLE partners (
    namespace  TEXT NOT NULL,
    kind       TEXT NOT NULL,
    name       TEXT NOT NULL,
    key        TEXT NOT NULL,
    doc        TEXT NOT NULL,
    expires_at INTEGER,
    PRIMARY KEY (namespace, kind, name, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX partners_own ON partners (namespace, kind, name) WHERE key = '';
CREATE INDEX partners_expiry ON partners (namespace, kind, name, expires_at) WHERE expires_at IS NOT NULL;
-- Runs that wait for a gate.
CREATE INDEX runs_gated ON runs (namespace, reason, wake_at) WHERE wake_at IS NOT NULL AND reason <> '';
