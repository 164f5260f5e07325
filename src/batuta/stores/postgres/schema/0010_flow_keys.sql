-- Runs of flows that are counted by a key: those that are open, and some that were.
CREATE TABLE batuta.flow_keys (
    namespace text COLLATE "C" NOT NULL,
    run_id    uuid NOT NULL,
    flow_key  text COLLATE "C" NOT NULL,
    id        text COLLATE "C" NOT NULL,
    PRIMARY KEY (namespace, run_id)
);
CREATE INDEX flow_keys_key ON batuta.flow_keys (namespace, flow_key, run_id);
COMMENT ON TABLE batuta.flow_keys IS 'Runs of flows that are counted by a key';
