"""Schedules are found by their keys and times, however many there are."""

from __future__ import annotations

from typing import Any

import pytest

from batuta.journal.schedules import ScheduleRow
from batuta.stores.postgres import PostgresStore
from batuta.testing.conformance.kit import new_run
from batuta.testing.conformance.limits.schedules import firing
from tests.stores.postgres.raw import flush_statistics, plan_of, scans_of

pytestmark = pytest.mark.usefixtures("new_postgres_url")

FILL = """
    INSERT INTO batuta.schedules (namespace, id, revision, created_at, updated_at, next_at, paused, spec)
    SELECT 'default', 'other-' || n, 1, 1, 1, CASE WHEN n % 3 > 0 THEN 9000000000000000 + n END, n % 3 = 2, '{}'
    FROM generate_series(1, 20000) n
"""
FILLED = "batuta.schedules"


async def test_due_schedules_are_found_by_their_time(store: PostgresStore, filled: str) -> None:
    session = await store._commit_session.connect()
    for name in ("due_schedules", "schedule_at", "beat"):
        scans = scans_of(await plan_of(session, store._sql[name]), "schedules")
        assert {scan["Index Name"] for scan in scans} == {"schedules_due"}, name
    for name in ("schedule", "schedules", "replace_schedule", "delete_schedule"):
        scans = scans_of(await plan_of(session, store._sql[name]), "schedules")
        assert {scan["Index Name"] for scan in scans} == {"schedules_pkey"}, name


async def test_idle_schedules_cost_polls_and_firings_nothing(store: PostgresStore, filled: str) -> None:
    for n in range(20):
        await store.put_schedule(ScheduleRow(id=f"s{n}", spec="{}", next_at=1))
    session = await store._commit_session.connect()
    read = await _blocks_read(session)
    found = await store.due_schedules(100)
    fired = await store.fire([firing(each.schedule, new_run(f"{each.schedule.id}:1")) for each in found])
    assert fired == [True] * 20
    await flush_statistics(store)
    assert await _blocks_read(session) - read < 1_000


async def _blocks_read(session: Any) -> int:
    await session.fetch("SELECT pg_stat_force_next_flush()")
    await session.fetch("SELECT pg_stat_clear_snapshot()")
    found: int = await session.fetchval(
        """SELECT heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit
           FROM pg_statio_user_tables WHERE schemaname = 'batuta' AND relname = 'schedules'"""
    )
    return found
