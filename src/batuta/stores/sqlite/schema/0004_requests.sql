-- Requests with an idempotency key, with their answers once they are there.
CREATE TABLE requests (
    namespace    TEXT    NOT NULL,
    key          TEXT    NOT NULL,
    digest       TEXT    NOT NULL,
    owner        TEXT    NOT NULL,
    locked_until INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL,
    answer       TEXT,
    PRIMARY KEY (namespace, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX requests_expiry ON requests (namespace, expires_at);
