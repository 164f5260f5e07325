-- The audit log: what operators did, one row for each thing that an act was done to.

CREATE TABLE batuta.audit (
    namespace text COLLATE "C" NOT NULL,
    number    bigint NOT NULL,
    at        bigint NOT NULL,
    actor     text   NOT NULL,
    verb      text   NOT NULL,
    target    text COLLATE "C" NOT NULL,
    run_id    text   NOT NULL,
    reason    text   NOT NULL,
    detail    text   NOT NULL,
    before    text   NOT NULL,
    after     text   NOT NULL,
    hash      text   NOT NULL,
    PRIMARY KEY (namespace, number)
);

COMMENT ON TABLE batuta.audit IS 'What operators did. Only added to; `hash` is of the row and the hash before it';

CREATE INDEX audit_target ON batuta.audit (target, number) INCLUDE (namespace);

CREATE TABLE batuta.audit_heads (
    namespace text COLLATE "C" NOT NULL PRIMARY KEY,
    number    bigint NOT NULL,
    hash      text   NOT NULL
) WITH (fillfactor = 50);

COMMENT ON TABLE batuta.audit_heads IS 'Where the log of a namespace ends. Who adds to it holds the row locked';

CREATE FUNCTION batuta.keep_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit log is only added to';
END
$$;

CREATE TRIGGER audit_stays BEFORE UPDATE OR DELETE ON batuta.audit FOR EACH ROW EXECUTE FUNCTION batuta.keep_audit();

-- Write what an act has changed. Nothing when there is no act (`actor` is null) or nothing changed. Last in a verb's
-- transaction: from here on, all others that act in the namespace wait for its end. A before or after that is null is
-- the one of the act. The hash is that of `batuta.journal.acts.chained`.
CREATE FUNCTION batuta.record_acts(
    ns text, actor text, verb text, reason text, detail text, act_before text, act_after text,
    targets text[], run_ids text[], befores text[], afters text[], moment bigint
) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    several integer := coalesce(cardinality(targets), 0);
    last bigint;
    previous text;
    hashes text[] := '{}';
BEGIN
    IF actor IS NULL OR several = 0 THEN
        RETURN 0;
    END IF;
    INSERT INTO batuta.audit_heads (namespace, number, hash) VALUES (ns, 0, '') ON CONFLICT DO NOTHING;
    SELECT h.number, h.hash INTO last, previous FROM batuta.audit_heads h WHERE h.namespace = ns FOR UPDATE;
    FOR i IN 1..several LOOP
        previous := encode(sha256(convert_to(array_to_json(ARRAY[
            previous, ns, (last + i)::text, moment::text, actor, verb, targets[i], coalesce(run_ids[i], ''), reason, detail,
            coalesce(befores[i], act_before), coalesce(afters[i], act_after)])::text, 'UTF8')), 'hex');
        hashes := hashes || previous;
    END LOOP;
    INSERT INTO batuta.audit (namespace, number, at, actor, verb, target, run_id, reason, detail, before, after, hash)
    SELECT ns, last + t.i, moment, record_acts.actor, record_acts.verb, t.target, coalesce(run_ids[t.i], ''),
           record_acts.reason, record_acts.detail, coalesce(befores[t.i], act_before), coalesce(afters[t.i], act_after),
           hashes[t.i]
    FROM unnest(targets) WITH ORDINALITY AS t(target, i);
    UPDATE batuta.audit_heads h SET number = last + several, hash = previous WHERE h.namespace = ns;
    RETURN several;
END
$$;

COMMENT ON FUNCTION batuta.record_acts IS 'Adds to the audit log of a namespace, one row for each target';

-- What the log says of a run before and after an act.
CREATE FUNCTION batuta.state_json(state text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT '{"state":"' || state || '"}'
$$;

CREATE VIEW batuta.batuta_audit AS
SELECT namespace, number, to_timestamp(at / 1e6) AS at, actor, verb, target, nullif(run_id, '') AS run_id, reason, detail,
       before, after, hash
FROM batuta.audit;

COMMENT ON VIEW batuta.batuta_audit IS 'What operators did, with times that people can read';
