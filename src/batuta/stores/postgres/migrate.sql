-- Schema versions: see schema.py and repeatable.py.

-- migrate_lock --
-- One migration at a time, until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended($1, 11));

-- create_migrations --
CREATE SCHEMA IF NOT EXISTS batuta;
CREATE TABLE IF NOT EXISTS batuta.migrations (
    name       text COLLATE "C" NOT NULL PRIMARY KEY,
    checksum   text   NOT NULL,
    applied_at bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS batuta.schema_version (
    version     integer NOT NULL PRIMARY KEY,
    oldest_code integer NOT NULL,
    functions   text    NOT NULL,
    installed   text    NOT NULL,
    migrated_at bigint  NOT NULL
);
COMMENT ON TABLE batuta.migrations IS 'Numbered files of tables that were applied';
COMMENT ON TABLE batuta.schema_version IS 'One row: the schema version, and the oldest version of code that works with it';
COMMENT ON COLUMN batuta.schema_version.functions IS 'Digest of the files of functions, triggers and views';
COMMENT ON COLUMN batuta.schema_version.installed IS 'JSON: digests of functions, triggers and views as migrate left them';

-- migrations_exist --
SELECT to_regclass(format('%I.migrations', $1::text)) IS NOT NULL AS migrations,
       to_regclass(format('%I.schema_version', $1::text)) IS NOT NULL AS version;

-- applied_migrations --
SELECT name, checksum FROM batuta.migrations;

-- schema_version --
SELECT version, oldest_code, functions, installed FROM batuta.schema_version;

-- oldest_code --
SELECT version, oldest_code FROM batuta.schema_version;

-- record_migration --
INSERT INTO batuta.migrations (name, checksum, applied_at)
VALUES ($1, $2, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);

-- forget_migrations --
DELETE FROM batuta.migrations;

-- forget_version --
DELETE FROM batuta.schema_version;

-- record_version --
INSERT INTO batuta.schema_version (version, oldest_code, functions, installed, migrated_at)
VALUES ($1, $2, $3, $4, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);

-- installed --
-- Digests of functions, triggers and views. They do not depend on the search path, and survive a dump and restore.
SELECT 'function ' || p.proname AS name,
       encode(sha256(convert_to(string_agg(
           concat_ws('|', l.lanname, p.provolatile, p.proisstrict, p.prosecdef, p.proargnames, p.proconfig, p.prosrc),
           '' ORDER BY p.proargnames, p.prosrc), 'UTF8')), 'hex') AS digest
FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
WHERE p.pronamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = $1)
GROUP BY p.proname
UNION ALL
SELECT 'view ' || c.relname,
       encode(sha256(convert_to(replace(pg_get_viewdef(c.oid), format('%I.', $1::text), ''), 'UTF8')), 'hex')
FROM pg_class c
WHERE c.relnamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = $1) AND c.relkind = 'v'
UNION ALL
SELECT 'trigger ' || t.tgname,
       encode(sha256(convert_to(
           t.tgenabled::text || replace(pg_get_triggerdef(t.oid), format('%I.', $1::text), ''), 'UTF8')), 'hex')
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = $1) AND NOT t.tgisinternal;

-- identities --
-- The same, as DROP names them.
SELECT 'function ' || p.proname AS name, array_agg('FUNCTION ' || p.oid::regprocedure) AS identities
FROM pg_proc p
WHERE p.pronamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = $1) AND p.prokind = 'f'
GROUP BY p.proname
UNION ALL
SELECT 'view ' || c.relname, ARRAY['VIEW ' || c.oid::regclass]
FROM pg_class c
WHERE c.relnamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = $1) AND c.relkind = 'v'
UNION ALL
SELECT 'trigger ' || t.tgname, array_agg(format('TRIGGER %I ON %s', t.tgname, t.tgrelid::regclass))
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = $1) AND NOT t.tgisinternal
GROUP BY t.tgname;

-- foreign_objects --
-- Tables, views, types and functions of the schema, and the schema itself, that the role does not own.
SELECT o.name, pg_get_userbyid(o.owner) AS owner
FROM (
    SELECT c.relname::text AS name, c.relowner AS owner FROM pg_class c
    WHERE c.relnamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = $1)
      AND c.relkind IN ('r', 'v', 'c')
    UNION ALL
    SELECT p.proname::text, p.proowner FROM pg_proc p
    WHERE p.pronamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = $1)
) o
WHERE NOT pg_has_role(o.owner, 'USAGE')
ORDER BY o.name;
