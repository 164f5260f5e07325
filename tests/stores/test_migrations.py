"""What may be done to a database depends on what was done to it before."""

from __future__ import annotations

import pytest

from batuta.errors import SchemaMismatch
from batuta.stores.migrations import Migration, checksum, load_migrations, pending, require_current

KNOWN = [Migration(name, name, checksum(name)) for name in ("0001_a", "0002_b", "0003_c")]


def applied(*names: str) -> dict[str, str]:
    return {name: checksum(name) for name in names}


def test_what_is_missing_is_pending_in_order() -> None:
    assert pending(KNOWN, {}) == KNOWN
    assert pending(KNOWN, applied("0001_a")) == KNOWN[1:]
    assert pending(KNOWN, applied("0001_a", "0002_b", "0003_c")) == []


def test_an_unknown_migration_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match=r"'0004_d'.*upgrade"):
        pending(KNOWN, applied("0001_a", "0002_b", "0003_c", "0004_d"))


def test_another_text_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match=r"'0002_b'.*another text"):
        pending(KNOWN, applied("0001_a") | {"0002_b": "x"})


def test_a_hole_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="'0002_b' was left out"):
        pending(KNOWN, applied("0001_a", "0003_c"))


def test_only_the_current_schema_is_good_enough() -> None:
    require_current(KNOWN, applied("0001_a", "0002_b", "0003_c"))
    with pytest.raises(SchemaMismatch, match="no tables"):
        require_current(KNOWN, {})
    with pytest.raises(SchemaMismatch, match=r"older version.*0003_c.*batuta migrate"):
        require_current(KNOWN, applied("0001_a", "0002_b"))


def test_line_ends_do_not_count() -> None:
    assert checksum("a\r\nb") == checksum("a\nb") != checksum("a b")


@pytest.mark.parametrize("package", ["batuta.stores.sqlite"])
def test_migrations_are_numbered_without_gaps(package: str) -> None:
    numbers = [int(migration.name.partition("_")[0]) for migration in load_migrations(package)]
    assert numbers == list(range(1, len(numbers) + 1))
