-- Requests with an idempotency key, with their answers once they are there.
CREATE TABLE batuta.requests (
    namespace    text   NOT NULL,
    key          text   NOT NULL,
    digest       text   NOT NULL,
    owner        text   NOT NULL,
    locked_until bigint NOT NULL,
    expires_at   bigint NOT NULL,
    answer       text,
    PRIMARY KEY (namespace, key)
);
CREATE INDEX requests_expiry ON batuta.requests (namespace, expires_at);
COMMENT ON TABLE batuta.requests IS 'Requests with an idempotency key, with their answers once they are there';
