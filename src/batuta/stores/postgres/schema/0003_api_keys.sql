-- Keys of the server. The key itself is nowhere: `digest` is its SHA-256, and `id` the part that may be shown.
CREATE TABLE batuta.api_keys (
    id           text   NOT NULL PRIMARY KEY,
    namespace    text   NOT NULL,
    name         text   NOT NULL,
    scope        text   NOT NULL,
    digest       text   NOT NULL,
    created_by   text   NOT NULL,
    created_at   bigint NOT NULL,
    expires_at   bigint,
    last_used_at bigint,
    revoked_at   bigint
);
CREATE INDEX api_keys_of ON batuta.api_keys (namespace, id);
COMMENT ON TABLE batuta.api_keys IS 'Keys of the server: their hashes, scopes, namespaces and last use';
