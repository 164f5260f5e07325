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
    salt      text   NOT NULL DEFAULT '',
    PRIMARY KEY (namespace, number)
);

COMMENT ON TABLE batuta.audit IS 'What operators did. Only added to; `hash` is of the row and the hash before it';

CREATE INDEX audit_target ON batuta.audit (target, number) INCLUDE (namespace);

CREATE TABLE batuta.audit_heads (
    namespace text COLLATE "C" NOT NULL PRIMARY KEY,
    number    bigint NOT NULL,
    hash      text   NOT NULL,
    salt      text   NOT NULL DEFAULT ''
) WITH (fillfactor = 50);

COMMENT ON TABLE batuta.audit_heads IS 'Where the log of a namespace ends. Who adds to it holds the row locked';

CREATE FUNCTION batuta.keep_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit log is only added to';
END
$$;

CREATE TRIGGER audit_stays BEFORE UPDATE OR DELETE ON batuta.audit FOR EACH ROW EXECUTE FUNCTION batuta.keep_audit();
CREATE TRIGGER audit_is_kept BEFORE TRUNCATE ON batuta.audit EXECUTE FUNCTION batuta.keep_audit();
CREATE TRIGGER audit_heads_are_kept BEFORE TRUNCATE ON batuta.audit_heads EXECUTE FUNCTION batuta.keep_audit();
CREATE TRIGGER audit_heads_stay BEFORE DELETE ON batuta.audit_heads FOR EACH ROW EXECUTE FUNCTION batuta.keep_audit();

-- Where a log ends moves on by updates alone, and no row is put in behind it: not with the right to insert alone.
CREATE FUNCTION batuta.extend_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF NEW.namespace <> OLD.namespace OR NEW.number <= OLD.number THEN
            RAISE EXCEPTION 'the audit log is only added to';
        END IF;
    ELSIF TG_TABLE_NAME = 'audit_heads' THEN
        IF NEW.number <> 0 OR NEW.hash <> '' THEN
            RAISE EXCEPTION 'the audit log begins with nothing';
        END IF;
    ELSIF NEW.number > coalesce((SELECT h.number FROM batuta.audit_heads h WHERE h.namespace = NEW.namespace), 0) THEN
        RAISE EXCEPTION 'row % is behind the end of the audit log', NEW.number;
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER audit_ends BEFORE INSERT ON batuta.audit FOR EACH ROW EXECUTE FUNCTION batuta.extend_audit();
CREATE TRIGGER audit_heads_move BEFORE INSERT OR UPDATE ON batuta.audit_heads
FOR EACH ROW EXECUTE FUNCTION batuta.extend_audit();

-- Write what an act has changed. Nothing when there is no act (`actor` is null) or nothing changed. Last in a verb's
-- transaction: from here on, all others that act in the namespace wait for its end. A before or after that is null is
-- the one of the act. The hash is that of `batuta.journal.acts.chained`. Behind its name, the verb of an act with a key
-- has `|salt|inner|outer`, in hex the two blocks of HMAC-SHA256 with a key that is good for this act alone. A number
-- that is taken was put in by hand: it is passed over, for `verify` to find.
CREATE FUNCTION batuta.record_acts(
    ns text, actor text, verb text, reason text, detail text, act_before text, act_after text,
    targets text[], run_ids text[], befores text[], afters text[], moment bigint
) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    several integer := coalesce(cardinality(targets), 0);
    last bigint;
    previous text;
    sealed text;
    key_salt text := split_part(verb, '|', 2);
    inner_key bytea := decode(split_part(verb, '|', 3), 'hex');
    outer_key bytea := decode(split_part(verb, '|', 4), 'hex');
    said bytea;
    numbers bigint[] := '{}';
    hashes text[] := '{}';
BEGIN
    IF actor IS NULL OR several = 0 THEN
        RETURN 0;
    END IF;
    INSERT INTO batuta.audit_heads (namespace, number, hash) VALUES (ns, 0, '') ON CONFLICT DO NOTHING;
    SELECT h.number, h.hash, h.salt INTO last, previous, sealed FROM batuta.audit_heads h WHERE h.namespace = ns FOR UPDATE;
    IF sealed <> '' AND key_salt = '' THEN
        RAISE EXCEPTION 'the audit log of namespace % has a key', ns USING ERRCODE = 'BT003';
    END IF;
    verb := split_part(verb, '|', 1);
    FOR i IN 1..several LOOP
        last := last + 1;
        WHILE EXISTS (SELECT FROM batuta.audit a WHERE a.namespace = ns AND a.number = last) LOOP
            last := last + 1;
        END LOOP;
        said := convert_to(array_to_json(ARRAY[
            previous, ns, last::text, moment::text, actor, verb, targets[i], coalesce(run_ids[i], ''), reason, detail,
            coalesce(befores[i], act_before), coalesce(afters[i], act_after)])::text, 'UTF8');
        previous := encode(CASE WHEN key_salt = '' THEN sha256(said) ELSE sha256(outer_key || sha256(inner_key || said)) END, 'hex');
        numbers := numbers || last;
        hashes := hashes || previous;
    END LOOP;
    UPDATE batuta.audit_heads h SET number = last, hash = previous, salt = key_salt WHERE h.namespace = ns;
    INSERT INTO batuta.audit (namespace, number, at, actor, verb, target, run_id, reason, detail, before, after, hash, salt)
    SELECT ns, numbers[t.i], moment, record_acts.actor, record_acts.verb, t.target, coalesce(run_ids[t.i], ''),
           record_acts.reason, record_acts.detail, coalesce(befores[t.i], act_before), coalesce(afters[t.i], act_after),
           hashes[t.i], key_salt
    FROM unnest(targets) WITH ORDINALITY AS t(target, i);
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
       before, after, hash, salt
FROM batuta.audit;

COMMENT ON VIEW batuta.batuta_audit IS 'What operators did, with times that people can read';
