"""Open runs are counted in indexes, and nobody pays for one that is not needed."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from batuta.journal.quotas import EVERYBODY, OPEN_RUNS, STARTS, Quota
from batuta.stores.sqlite.database.connection import Q
from batuta.testing.conformance import MakeStore

INDEXES = ("runs_owned", "runs_due", "runs_turns", "runs_idle")


def plan(path: Path) -> list[str]:
    with sqlite3.connect(path) as connection:
        rows = connection.execute(f"EXPLAIN QUERY PLAN {Q['count_open']}", {"namespace": "default", "limit": 5})
        return [step.partition(" (")[0] for *_, step in rows.fetchall() if "SEARCH" in step or "SCAN runs" in step]


def has_index(path: Path) -> bool:
    with sqlite3.connect(path) as connection:
        return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'runs_idle'").fetchall())


async def test_open_runs_are_counted_in_indexes(make_store: MakeStore, path: Path) -> None:
    await (await make_store()).set_quota(Quota(name=OPEN_RUNS, limit=5))
    assert plan(path) == [f"SEARCH runs USING COVERING INDEX {index}" for index in INDEXES]


async def test_the_index_is_there_while_some_namespace_needs_it(make_store: MakeStore, path: Path) -> None:
    one, everybody = await make_store("one"), await make_store(EVERYBODY)
    assert not has_index(path)
    await one.set_quota(Quota(name=STARTS, limit=5))
    assert not has_index(path)
    for store in (one, everybody):
        await store.set_quota(Quota(name=OPEN_RUNS, limit=5))
        assert has_index(path)
    await one.set_quota(Quota(name=OPEN_RUNS))
    assert has_index(path)
    await everybody.clear_quota(OPEN_RUNS)
    assert not has_index(path)
