-- Small documents that are kept for a time: schemas of code, progress of operations.
CREATE TABLE batuta.documents (
    namespace  text COLLATE "C" NOT NULL,
    kind       text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    body       text   NOT NULL,
    created_at bigint NOT NULL,
    written_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (namespace, kind, key)
);
CREATE INDEX documents_newest ON batuta.documents (namespace, kind, created_at DESC, key);
CREATE INDEX documents_expiry ON batuta.documents (namespace, expires_at);
COMMENT ON TABLE batuta.documents IS 'Small documents that are kept for a time: schemas of code, progress of operations';
