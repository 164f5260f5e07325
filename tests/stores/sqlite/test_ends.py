"""Many runs that end at once."""

from __future__ import annotations

import sqlite3

from batuta.stores.sqlite.database import schema
from batuta.stores.sqlite.database.connection import Q


def test_each_of_many_that_end_is_found_by_its_key() -> None:
    file = sqlite3.connect(":memory:")
    schema.migrate(file.cursor(), 0)
    values = dict.fromkeys(("namespace", "run_ids", "fences", "now", "owner"))
    steps = [row[3] for row in file.execute(f"EXPLAIN QUERY PLAN {Q['finish_all']}", values)]
    assert [step for step in steps if " runs " in step] == [
        "SEARCH runs USING INDEX sqlite_autoindex_runs_1 (namespace=? AND run_id=?)"
    ]
