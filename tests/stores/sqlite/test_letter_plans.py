"""Pages of dead letters and of their groups are read from an index."""

from __future__ import annotations

import re
import sqlite3

from batuta.stores.sqlite.database import schema
from batuta.stores.sqlite.database.connection import Q


def plan_of(name: str) -> list[str]:
    file = sqlite3.connect(":memory:")
    schema.migrate(file.cursor(), 0)
    words = set(re.findall(r":(\w+)", Q[name]))
    return [row[3] for row in file.execute(f"EXPLAIN QUERY PLAN {Q[name]}", dict.fromkeys(words))]


def test_a_page_is_read_from_its_index() -> None:
    for name, index in (("list_letters", "dead_letters_newest"), ("list_alike", "dead_letters_alike")):
        (step,) = plan_of(name)
        assert step.startswith(f"SEARCH dead_letters USING INDEX {index} (")
        assert step.endswith("AND (at,run_id)<(?,?))")


def test_a_page_of_groups_begins_at_its_place_and_looks_others_up_by_key() -> None:
    steps = plan_of("newest_groups")
    assert not [step for step in steps if "TEMP B-TREE" in step]
    assert steps[0].startswith("SEARCH g USING INDEX letter_groups_newest (")
    assert "SEARCH o USING PRIMARY KEY (namespace=? AND fingerprint=? AND state=?)" in steps
