"""The tables of the monitor on SQLite and PostgreSQL."""

import asyncio
import shutil
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from pixdict.connect.database import open_database
from pixdict.connect.monitor import MonitorTables
from pixdict.connect.monitor.analysis import analyze, state_of
from pixdict.errors import ConstraintViolation, DatabaseTimeout, InvalidArgument
from tests.pixdict.monitor.kit import policy

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)


def states(*names, at=NOON):
    return [state_of(policy(name, -15, 100), at) for name in names]


@pytest.fixture(params=["sqlite", "postgres"])
async def database(request, tmp_path):
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/pixdict.db"
    else:
        url = request.getfixturevalue("empty_postgres_url")
    found = await open_database(url)
    yield found
    await found.close()


async def test_states_are_kept_as_they_are_and_a_repetition_changes_nothing(database):
    tables = MonitorTables(database)
    await tables.add_states(states("A", "B"), "run:1:store")
    await tables.add_states([replace(one, available_tokens=99) for one in states("A", "B")], "run:1:store")
    assert await tables.states(NOON) == states("A", "B")
    await MonitorTables(database).add_states(states("A"), "run:2:store")
    assert len(await tables.states(NOON)) == 3
    assert await tables.states(NOON + timedelta(seconds=1)) == []


async def test_alerts_are_kept_once_and_the_newest_come_first(database):
    tables = MonitorTables(database)
    for hours in (0, 1, 1):
        at = NOON + timedelta(hours=hours)
        [alert] = analyze(states("A", at=at), at).alerts
        await tables.add_alert(alert, f"A:{at.isoformat()}")
    assert [one.detected_at.hour for one in await tables.alerts()] == [13, 12]
    assert len(await tables.alerts(most=1)) == 1


async def test_what_is_too_old_is_dropped(database):
    old = MonitorTables(database, keep=timedelta(days=60))
    for month in (6, 7, 8, 9):
        at = NOON.replace(month=month)
        await old.add_states(states("A", at=at), "old")
        [alert] = analyze(states("A", at=at), at).alerts
        await old.add_alert(alert, f"A:{month}")
    await MonitorTables(database, keep=timedelta(days=60)).add_states(states("A"), "new")
    kept = [one.checked_at.month for one in await old.states(datetime(2020, 1, 1, tzinfo=UTC))]
    assert kept[-1] == 11
    assert set(kept) <= {9, 11}
    assert {one.detected_at.month for one in await old.alerts()} <= {9}


async def test_postgresql_has_a_partition_for_each_month_and_drops_it_whole(empty_postgres_url):
    database = await open_database(empty_postgres_url)
    tables = MonitorTables(database, keep=timedelta(days=40))
    for month in (8, 9, 10, 11):
        await tables.add_states(states("A", at=NOON.replace(month=month)), "a")
    rows = await database.run("SELECT inhrelid::regclass::text AS name FROM pg_inherits ORDER BY 1")
    names = [f"dict_rate_limit_states_2026_{month:02}" for month in (10, 11)]
    assert [row["name"] for row in rows if row["name"].startswith("dict") and "pkey" not in row["name"]] == names
    await database.close()


async def test_processes_that_begin_at_the_same_time_make_the_tables_once(database):
    await asyncio.gather(*(MonitorTables(database).add_states(states(f"P{n}"), "a") for n in range(8)))
    assert len(await MonitorTables(database).states(NOON)) == 8


async def test_processes_that_drop_what_is_too_old_at_the_same_time_all_store_their_check(database):
    for month in range(1, 9):
        await MonitorTables(database).add_states(states("A", at=NOON.replace(month=month)), "old")
    tables = [MonitorTables(database, keep=timedelta(days=40)) for _ in range(8)]
    await asyncio.gather(*(one.add_states(states(f"P{n}"), "new") for n, one in enumerate(tables)))
    assert {one.policy_name for one in await tables[0].states(NOON.replace(year=2020))} == {f"P{n}" for n in range(8)}


async def test_bad_rows_are_refused_and_nothing_is_stored(database):
    tables = MonitorTables(database)
    with pytest.raises(InvalidArgument, match="1001 policies"):
        await tables.add_states(states(*(f"P{n}" for n in range(1001))), "a")
    with pytest.raises(InvalidArgument, match="twice"):
        await tables.add_states(states("A", "A"), "a")
    with pytest.raises(ConstraintViolation):
        await tables.add_states([*states("A"), replace(states("B")[0], status="GOOD")], "a")
    with pytest.raises(InvalidArgument):
        await tables.add_states([*states("A"), replace(states("B")[0], available_tokens=2**70)], "a")
    assert await tables.states(NOON) == []


async def test_a_database_that_is_away_is_a_timeout(tmp_path):
    with pytest.raises(InvalidArgument, match="give sqlite"):
        await open_database("mysql://here")
    away = await open_database("postgresql://127.0.0.1:1/none")
    with pytest.raises(DatabaseTimeout, match="PostgreSQL"):
        await MonitorTables(away).add_states(states("A"), "a")
    await away.close()
    (tmp_path / "gone").mkdir()
    gone = await open_database(f"sqlite:///{tmp_path}/gone/pixdict.db")
    shutil.rmtree(tmp_path / "gone")
    with pytest.raises(DatabaseTimeout, match="SQLite"):
        await MonitorTables(gone).add_states(states("A"), "a")
    await gone.close()
