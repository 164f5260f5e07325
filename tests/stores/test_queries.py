"""SQL files are split into named statements."""

from __future__ import annotations

import pytest

from batuta.stores.contract.named_queries import load_queries, merge, parse_queries

TEXT = """
-- A word about the file.

-- one --
-- What it does.
SELECT 1
    -- a warning
FROM t;

-- two --
SELECT '--';
"""


def test_statements_have_names_and_lose_their_comments() -> None:
    assert parse_queries(TEXT) == {"one": "SELECT 1\nFROM t", "two": "SELECT '--'"}


def test_a_name_stands_once() -> None:
    with pytest.raises(ValueError, match="'one' stands twice"):
        parse_queries("-- one --\nSELECT 1;\n-- one --\nSELECT 2;\n")


def test_a_packages_files_are_read() -> None:
    queries = load_queries("batuta.stores.sqlite")
    assert "claimed_head" in queries["own"]
    with pytest.raises(ValueError, match="stands twice"):
        merge([queries, {"own": "SELECT 1"}])
