"""What may be done to a database depends on what was done to it before."""

from __future__ import annotations

import pytest

from batuta.errors import SchemaMismatch
from batuta.stores.contract.migrations import (
    BASELINE,
    Database,
    Migration,
    Versions,
    checksum,
    digest_of,
    load_migrations,
    pending,
    require_compatible,
    require_current,
)

NAMES = (BASELINE, "0002_b", "0003_c")
KNOWN = [Migration(name, name, checksum(name)) for name in NAMES]
OLDER = frozenset({digest_of({"0001_old": checksum("0001_old")})})
OURS = Versions(schema=2, oldest_code=1, oldest_schema=1)


def applied(*names: str) -> dict[str, str]:
    return {name: checksum(name) for name in names}


def database(*names: str, schema: int = 2, oldest_code: int = 1) -> Database:
    return Database(applied(*names), schema, oldest_code)


def test_missing_migrations_are_pending_in_order() -> None:
    assert pending(KNOWN, OLDER, Database({})) == KNOWN
    assert pending(KNOWN, OLDER, database(BASELINE)) == KNOWN[1:]
    assert pending(KNOWN, OLDER, database(*NAMES)) == []


def test_an_unknown_migration_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match=r"'0004_d'.*upgrade"):
        pending(KNOWN, OLDER, database(*NAMES, "0004_d"))


def test_a_file_that_differs_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match=r"'0002_b'.*differs from the shipped file"):
        pending(KNOWN, OLDER, Database(applied(BASELINE) | {"0002_b": "x"}))


def test_a_hole_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="'0002_b' was left out"):
        pending(KNOWN, OLDER, database(BASELINE, "0003_c"))


def test_a_known_database_older_than_the_baseline_lacks_what_came_after_it() -> None:
    assert pending(KNOWN, OLDER, database("0001_old", schema=0)) == KNOWN[1:]
    with pytest.raises(SchemaMismatch, match=r"'0001_old' to '0002_other'.*cannot adopt"):
        pending(KNOWN, OLDER, database("0001_old", "0002_other", schema=0))


def test_only_the_current_schema_is_good_enough() -> None:
    require_current(KNOWN, OLDER, OURS, database(*NAMES))
    with pytest.raises(SchemaMismatch, match="no tables"):
        require_current(KNOWN, OLDER, OURS, Database({}))
    with pytest.raises(SchemaMismatch, match=r"older version.*0003_c.*batuta migrate"):
        require_current(KNOWN, OLDER, OURS, database(BASELINE, "0002_b"))


@pytest.mark.parametrize(("schema", "oldest_code"), [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (9, 2)])
def test_code_works_with_schemas_in_its_range(schema: int, oldest_code: int) -> None:
    require_compatible(OURS, database(BASELINE, schema=schema, oldest_code=oldest_code))


def test_other_schemas_are_refused_with_both_versions() -> None:
    newer = Versions(schema=5, oldest_code=4, oldest_schema=4)
    with pytest.raises(SchemaMismatch, match=r"version 3; this Batuta has version 5 and works with 4.*batuta migrate"):
        require_compatible(newer, database(BASELINE, schema=3))
    with pytest.raises(SchemaMismatch, match=r"version 4, .* code of version 3 or later; this Batuta has version 2"):
        require_compatible(OURS, database(BASELINE, schema=4, oldest_code=3))


def test_line_ends_do_not_count() -> None:
    assert checksum("a\r\nb") == checksum("a\nb") != checksum("a b")


@pytest.mark.parametrize("package", ["batuta.stores.sqlite", "batuta.stores.postgres"])
def test_migrations_are_numbered_without_gaps(package: str) -> None:
    numbers = [int(migration.name.partition("_")[0]) for migration in load_migrations(package)]
    assert numbers == list(range(1, len(numbers) + 1))
