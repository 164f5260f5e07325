-- Breakers and limits towards partners: a document for each, and one for each key that a limit counts.
CREATE TABLE batuta.partners (
    namespace  text COLLATE "C" NOT NULL,
    kind       text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    doc        text NOT NULL,
    expires_at bigint,
    PRIMARY KEY (namespace, kind, name, key)
) WITH (fillfactor = 50);
CREATE INDEX partners_own ON batuta.partners (namespace, kind, name) WHERE key = '';
CREATE INDEX partners_expiry ON batuta.partners (namespace, kind, name, expires_at) WHERE expires_at IS NOT NULL;
COMMENT ON TABLE batuta.partners IS 'Breakers and limits towards partners, and what limits count by key';
-- Runs that wait for a gate.
CREATE INDEX runs_gated ON batuta.runs (namespace, reason, wake_at) WHERE wake_at IS NOT NULL AND reason <> '';
