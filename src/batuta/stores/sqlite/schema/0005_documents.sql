-- Small documents that are kept for a time: schemas of code, progress of operations.
CREATE TABLE documents (
    namespace  TEXT    NOT NULL,
    kind       TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    body       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    written_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, kind, key)
) STRICT;
CREATE INDEX documents_newest ON documents (namespace, kind, created_at DESC, key);
CREATE INDEX documents_expiry ON documents (namespace, expires_at);
