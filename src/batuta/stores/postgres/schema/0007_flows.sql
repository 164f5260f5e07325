-- Versions of flows. `document` is JSON.
CREATE TABLE batuta.flows (
    namespace    text COLLATE "C" NOT NULL,
    workflow_id  uuid    NOT NULL,
    name         text COLLATE "C" NOT NULL,
    version      integer NOT NULL,
    description  text    NOT NULL,
    trigger_type text COLLATE "C" NOT NULL,
    document     text    NOT NULL,
    is_active    boolean NOT NULL,
    published_at bigint,
    revision     bigint  NOT NULL,
    created_at   bigint  NOT NULL,
    updated_at   bigint  NOT NULL,
    PRIMARY KEY (namespace, workflow_id),
    UNIQUE (namespace, name, version)
);
-- What an event starts: looked up by its type, however many flows there are.
CREATE INDEX flows_active ON batuta.flows (namespace, trigger_type, workflow_id) WHERE is_active;
COMMENT ON TABLE batuta.flows IS 'Versions of flows: JSON documents that one workflow interprets';

CREATE TABLE batuta.events (
    namespace   text COLLATE "C" NOT NULL,
    event_id    uuid   NOT NULL,
    type        text COLLATE "C" NOT NULL,
    source      text COLLATE "C" NOT NULL,
    external_id text COLLATE "C",
    payload     text   NOT NULL,
    replay_of   uuid,
    created_at  bigint NOT NULL,
    PRIMARY KEY (namespace, event_id)
);
CREATE UNIQUE INDEX events_named ON batuta.events (namespace, source, external_id) WHERE external_id IS NOT NULL;
CREATE INDEX events_by_type ON batuta.events (namespace, type, event_id);
COMMENT ON TABLE batuta.events IS 'Events that came in';

-- Which run an event has begun of a flow.
CREATE TABLE batuta.flow_runs (
    namespace   text COLLATE "C" NOT NULL,
    workflow_id uuid NOT NULL,
    event_id    uuid NOT NULL,
    chain_id    uuid NOT NULL,
    PRIMARY KEY (namespace, event_id, workflow_id)
);
CREATE INDEX flow_runs_newest ON batuta.flow_runs (namespace, workflow_id, chain_id);
COMMENT ON TABLE batuta.flow_runs IS 'Which run an event has begun of a flow: one at most';
