-- Keys of the server. The key itself is nowhere: `digest` is its SHA-256, and `id` the part that may be shown.
CREATE TABLE api_keys (
    id           TEXT    NOT NULL PRIMARY KEY,
    namespace    TEXT    NOT NULL,
    name         TEXT    NOT NULL,
    scope        TEXT    NOT NULL,
    digest       TEXT    NOT NULL,
    created_by   TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER,
    last_used_at INTEGER,
    revoked_at   INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX api_keys_of ON api_keys (namespace, id);
