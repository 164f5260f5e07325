-- Messages of the bus, who gets them, and what is still to be delivered.
CREATE TABLE bus_messages (
    number       INTEGER PRIMARY KEY AUTOINCREMENT,
    namespace    TEXT    NOT NULL,
    topic        TEXT    NOT NULL,
    subscription TEXT    NOT NULL,
    via          TEXT    NOT NULL,
    id           TEXT    NOT NULL,
    key          TEXT    NOT NULL,
    body         TEXT    NOT NULL,
    at           INTEGER NOT NULL,
    taken        INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE UNIQUE INDEX bus_messages_once ON bus_messages (namespace, topic, subscription, id);
CREATE INDEX bus_messages_new ON bus_messages (namespace, via, number) WHERE taken = 0;
CREATE INDEX bus_messages_topic ON bus_messages (namespace, topic, number);
CREATE INDEX bus_messages_old ON bus_messages (namespace, number);

CREATE TABLE bus_subscriptions (
    namespace  TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    topic      TEXT    NOT NULL,
    via        TEXT    NOT NULL,
    ordered    INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX bus_subscriptions_topic ON bus_subscriptions (namespace, topic);

-- state: 0 waits for one of the same key, 1 is to become a run, 2 is a run.
CREATE TABLE bus_deliveries (
    namespace    TEXT    NOT NULL,
    subscription TEXT    NOT NULL,
    number       INTEGER NOT NULL,
    key          TEXT    NOT NULL,
    state        INTEGER NOT NULL,
    run_id       BLOB,
    at           INTEGER NOT NULL,
    PRIMARY KEY (namespace, subscription, number)
) STRICT, WITHOUT ROWID;
CREATE INDEX bus_deliveries_key ON bus_deliveries (namespace, subscription, key, number) WHERE key <> '';
CREATE INDEX bus_deliveries_ready ON bus_deliveries (namespace, subscription, number) WHERE state = 1;
CREATE INDEX bus_deliveries_begun ON bus_deliveries (namespace, subscription, number) WHERE state = 2;
