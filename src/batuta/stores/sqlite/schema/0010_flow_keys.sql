-- Runs of flows that are counted by a key: those that are open, and some that were.
CREATE TABLE flow_keys (
    namespace TEXT NOT NULL,
    run_id    BLOB NOT NULL,
    flow_key  TEXT NOT NULL,
    id        TEXT NOT NULL,
    PRIMARY KEY (namespace, run_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX flow_keys_key ON flow_keys (namespace, flow_key, run_id);
