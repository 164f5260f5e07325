-- How much a namespace may start. Clients read this about once a second and keep to it by themselves: no start asks here.

CREATE TABLE batuta.quotas (
    namespace text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    at_most   double precision,
    burst     bigint,
    PRIMARY KEY (namespace, name)
);

COMMENT ON TABLE batuta.quotas IS 'Quotas of a namespace; those of namespace * hold for whoever has none of that name';
COMMENT ON COLUMN batuta.quotas.at_most IS 'null: there is none';
COMMENT ON COLUMN batuta.quotas.burst IS 'How many starts may come at once; null: as many as in a second';

CREATE TABLE batuta.allowances (
    namespace text COLLATE "C" NOT NULL PRIMARY KEY,
    starts    double precision NOT NULL,
    at        bigint NOT NULL
) WITH (fillfactor = 50);

COMMENT ON TABLE batuta.allowances IS 'How many starts of its burst a namespace had left at a time. Below zero: clients have started more before they saw';
