-- Versions of flows. `document` is JSON.
CREATE TABLE flows (
    namespace    TEXT    NOT NULL,
    workflow_id  BLOB    NOT NULL,
    name         TEXT    NOT NULL,
    version      INTEGER NOT NULL,
    description  TEXT    NOT NULL,
    trigger_type TEXT    NOT NULL,
    document     TEXT    NOT NULL,
    is_active    INTEGER NOT NULL,
    published_at INTEGER,
    revision     INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    PRIMARY KEY (namespace, workflow_id),
    UNIQUE (namespace, name, version)
) STRICT;
-- What an event starts: looked up by its type, however many flows there are.
CREATE INDEX flows_active ON flows (namespace, trigger_type, workflow_id) WHERE is_active = 1;

CREATE TABLE events (
    namespace   TEXT    NOT NULL,
    event_id    BLOB    NOT NULL,
    type        TEXT    NOT NULL,
    source      TEXT    NOT NULL,
    external_id TEXT,
    payload     TEXT    NOT NULL,
    replay_of   BLOB,
    created_at  INTEGER NOT NULL,
    PRIMARY KEY (namespace, event_id)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX events_named ON events (namespace, source, external_id) WHERE external_id IS NOT NULL;
CREATE INDEX events_by_type ON events (namespace, type, event_id);

-- Which run an event has begun of a flow.
CREATE TABLE flow_runs (
    namespace   TEXT NOT NULL,
    workflow_id BLOB NOT NULL,
    event_id    BLOB NOT NULL,
    chain_id    BLOB NOT NULL,
    PRIMARY KEY (namespace, event_id, workflow_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX flow_runs_newest ON flow_runs (namespace, workflow_id, chain_id);
