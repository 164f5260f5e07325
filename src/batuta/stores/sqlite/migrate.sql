-- Schema versions: see schema.py.

-- schema_tables --
SELECT name FROM sqlite_master WHERE type = 'table' AND name IN ('migrations', 'schema_version');

-- create_migrations --
CREATE TABLE IF NOT EXISTS migrations (
    name TEXT PRIMARY KEY, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- create_version --
-- One row: the schema version, and the oldest version of code that works with it.
CREATE TABLE IF NOT EXISTS schema_version (
    version INTEGER PRIMARY KEY, oldest_code INTEGER NOT NULL, migrated_at INTEGER NOT NULL
) STRICT;

-- applied_migrations --
SELECT name, checksum FROM migrations;

-- record_migration --
INSERT INTO migrations (name, checksum, applied_at) VALUES (?, ?, ?);

-- forget_migrations --
DELETE FROM migrations;

-- schema_version --
SELECT version, oldest_code FROM schema_version;

-- forget_version --
DELETE FROM schema_version;

-- record_version --
INSERT INTO schema_version (version, oldest_code, migrated_at) VALUES (?, ?, ?);

-- schema_objects --
-- Without those that SQLite makes by itself. Tables before what is made for them.
SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type <> 'table', rowid;

-- table_columns --
SELECT name, type, "notnull", dflt_value FROM pragma_table_info(?);
