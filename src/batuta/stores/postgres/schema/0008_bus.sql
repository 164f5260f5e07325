-- Messages of the bus, who gets them, and what is still to be delivered.
CREATE TABLE batuta.bus_messages (
    namespace    text COLLATE "C" NOT NULL,
    number       bigint GENERATED ALWAYS AS IDENTITY,
    topic        text COLLATE "C" NOT NULL,
    subscription text COLLATE "C" NOT NULL,
    via          text COLLATE "C" NOT NULL,
    id           text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    body         text    NOT NULL,
    at           bigint  NOT NULL,
    taken        boolean NOT NULL DEFAULT false,
    PRIMARY KEY (namespace, number)
);
CREATE UNIQUE INDEX bus_messages_once ON batuta.bus_messages (namespace, topic, subscription, id);
CREATE INDEX bus_messages_new ON batuta.bus_messages (namespace, via, number) WHERE NOT taken;
CREATE INDEX bus_messages_topic ON batuta.bus_messages (namespace, topic, number);
COMMENT ON TABLE batuta.bus_messages IS 'Messages of the bus: published, and kept for a time';

CREATE TABLE batuta.bus_subscriptions (
    namespace  text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    topic      text COLLATE "C" NOT NULL,
    via        text COLLATE "C" NOT NULL,
    ordered    boolean NOT NULL,
    created_at bigint  NOT NULL,
    PRIMARY KEY (namespace, name)
);
CREATE INDEX bus_subscriptions_topic ON batuta.bus_subscriptions (namespace, topic);
COMMENT ON TABLE batuta.bus_subscriptions IS 'Who gets the messages of a topic';

-- state: 0 waits for one of the same key, 1 is to become a run, 2 is a run.
CREATE TABLE batuta.bus_deliveries (
    namespace    text COLLATE "C" NOT NULL,
    subscription text COLLATE "C" NOT NULL,
    number       bigint   NOT NULL,
    key          text COLLATE "C" NOT NULL,
    state        smallint NOT NULL,
    run_id       uuid,
    at           bigint   NOT NULL,
    PRIMARY KEY (namespace, subscription, number)
) WITH (fillfactor = 70);
CREATE INDEX bus_deliveries_key ON batuta.bus_deliveries (namespace, subscription, key, number) WHERE key <> '';
CREATE INDEX bus_deliveries_ready ON batuta.bus_deliveries (namespace, subscription, number) WHERE state = 1;
CREATE INDEX bus_deliveries_begun ON batuta.bus_deliveries (namespace, subscription, number) WHERE state = 2;
COMMENT ON TABLE batuta.bus_deliveries IS 'What subscriptions have yet to get: one row until its run has ended';
