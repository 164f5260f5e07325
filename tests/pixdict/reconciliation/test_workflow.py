"""Reconciliation in virtual time against the rules of the directory: races, a Bridge that is away, crashes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from batuta import RunFailed
from batuta.clock import SECOND, ManualClock, SystemClock
from batuta.testing import Environment, crash_sweep, in_virtual_time
from pixdict.connect.keys import KeyTables
from pixdict.connect.reconciliation import QUEUE, SCHEDULE_ID, WORKFLOWS, Audit, HeldEntries, Options, reconcile_keys
from pixdict.connect.reconciliation import schedule as nightly
from pixdict.dict.keys import KeyType
from pixdict.directory.service import Service
from pixdict.directory.settings import DirectorySettings
from pixdict.directory.storage import Storage
from tests.long import LONG
from tests.pixdict.directory.kit import START, B, Bank, account
from tests.pixdict.keys.kit import FailingDatabase
from tests.pixdict.reconciliation.kit import AT_ONCE, Alerts, EventBridge, Sides, activities_of, entry


class OurClock:
    """The clock of our tables, some seconds ahead."""

    ahead = 0

    def now(self) -> int:
        return SystemClock().now() + self.ahead * SECOND

    def monotonic(self) -> float:
        return self.now() / 1e6


class World(Sides):
    """A directory whose clock stands, and our tables."""

    def __init__(self, file: Path) -> None:
        self.database = FailingDatabase(file)
        self.there_now = ManualClock(START)
        super().__init__(Service(DirectorySettings(), Storage(":memory:"), self.there_now), KeyTables(self.database))
        self.clock = OurClock()
        self.held = HeldEntries(self.tables, self.clock)
        self.bridge, self.alerts, self.audit = EventBridge(self.bank), Alerts(), Audit(self.database)
        self.activities = activities_of(self.bridge, self.held, self.database, self.alerts.publish)


@asynccontextmanager
async def world(path: Path, **options: Any) -> AsyncIterator[tuple[World, Environment]]:
    made = World(path / "pixdict.db")
    try:
        async with Environment(
            workflows=WORKFLOWS, activities=[made.activities], queues=["default", QUEUE], **options
        ) as env:
            yield made, env
    finally:
        await made.database.close()


async def differ(sides: Sides) -> None:
    """One of each kind."""
    await sides.both("same", entry(0))
    sides.there(entry(1))
    stored = sides.there(entry(2))
    await sides.here("pending", entry(2), stored.request_id, status="PENDING", cid="")
    await sides.here("gone", entry(3))
    stored = await sides.both("changed", entry(4))
    sides.there(replace(entry(4), account=account(number="99")), stored.request_id)
    await sides.here("anew", entry(5))
    sides.there(entry(5))


def phone(reports: Any) -> Any:
    return next(one for one in reports if one.key_type == "PHONE")


# Races with open requests


@in_virtual_time
async def test_a_request_that_ends_while_it_waits_is_not_repaired(tmp_path: Path) -> None:
    async with world(tmp_path) as (w, env):
        stored = w.there(entry(1))
        await w.here("e-1", entry(1), stored.request_id, status="PENDING", cid="")
        handle = await env.start(reconcile_keys, Options(settle=300.0, pause=300.0))
        await env.settle()
        assert (await w.row("e-1")).status == "PENDING"
        await w.tables.store_entry("e-1", entry(1), stored.cid)
        await env.advance(301)
        assert (phone(await handle.result()).outcome, phone(await handle.result()).repaired) == ("AGREES", 0)


@in_virtual_time
async def test_a_request_that_never_ends_is_repaired_when_it_is_old(tmp_path: Path) -> None:
    async with world(tmp_path) as (w, env):
        stored = w.there(entry(1))
        await w.here("e-1", entry(1), stored.request_id, status="PENDING", cid="")
        handle = await env.start(reconcile_keys, Options(settle=300.0, pause=300.0))
        await env.settle()
        w.clock.ahead = 301
        w.there_now.advance(301)
        await env.advance(301)
        assert phone(await handle.result()).outcome == "AGREES"
        assert (await w.row("e-1")).status == "ACTIVE"


@pytest.mark.parametrize("old", ["here", "there"])
@in_virtual_time
async def test_a_change_under_way_is_left_alone_whichever_side_it_has_reached(tmp_path: Path, old: str) -> None:
    """An update that only the directory has yet, a deletion that only we know of yet."""
    async with world(tmp_path) as (w, env):
        updated, deleted = await w.both("updated", entry(1)), await w.both("deleted", entry(2))
        w.clock.ahead = 1_000
        w.there_now.advance(1_000)
        if old == "here":
            w.there(replace(entry(1), account=account(number="9")), updated.request_id)
            w.storage.remove_entry(deleted, w.directory.now())
        else:
            await w.tables.set_entry_status("deleted", "DELETING")
            w.clock.ahead = 0
        report = phone(await env.run(reconcile_keys, Options(settle=300.0, pause=1.0)))
        assert (report.outcome, report.repaired, report.left_over) == ("BUSY", 0, 0)
        assert report.young == (3 if old == "here" else 1)
        assert (await w.row("updated")).entry == entry(1)
        assert w.alerts.sent == {}


@in_virtual_time
async def test_a_row_that_changes_between_the_look_and_the_repair_stays_as_it_is(tmp_path: Path) -> None:
    async with world(tmp_path) as (w, env):
        await w.here("e-1", entry(1))
        stored = w.there(entry(2))
        await w.here("e-2", entry(2), stored.request_id, status="PENDING", cid="")
        asked = w.bridge.get_entry_by_cid

        async def changed_meanwhile(cid: str) -> Any:
            await w.tables.set_entry_status("e-1", "DELETING")
            await w.tables.set_entry_status("e-2", "DELETING")
            w.bridge.get_entry_by_cid = asked  # type: ignore[method-assign]
            return await asked(cid)

        w.bridge.get_entry_by_cid = changed_meanwhile  # type: ignore[method-assign]
        report = phone(await env.run(reconcile_keys, replace(AT_ONCE, rounds=1)))
        assert {(await w.row(id)).status for id in ("e-1", "e-2")} == {"DELETING"}
        assert report.outcome == "DIFFERS"
        assert report.left_over == 1
        assert await w.audit.changes() == [], "what was left alone is no repair"


# A Bridge that is away, and empty buckets


@in_virtual_time
async def test_a_bridge_that_is_away_for_minutes_is_asked_again(tmp_path: Path) -> None:
    async with world(tmp_path) as (w, env):
        await differ(w)
        w.bridge.away = ["createSyncVerification"] * 4 + ["listCidSetEvents"] * 4 + ["getEntryByCid"] * 4
        w.bridge.limited = ["listCidSetEvents", "getEntryByCid", "getEntryByCid"]
        report = phone(await env.run(reconcile_keys, AT_ONCE))
        assert (report.outcome, report.repaired) == ("AGREES", 6)
        assert await w.agree()


@in_virtual_time
async def test_a_bridge_that_stays_away_ends_the_run_and_the_next_one_repairs(tmp_path: Path) -> None:
    async with world(tmp_path) as (w, env):
        await differ(w)
        w.bridge.away = ["createSyncVerification"] * 10
        with pytest.raises(RunFailed, match="no connection"):
            await env.run(reconcile_keys, AT_ONCE)
        reports = {one.key_type: one for one in await w.audit.reports()}
        first, *others = [reports[str(one)].outcome for one in KeyType]
        assert (first, set(others)) == ("FAILED", {"AGREES"}), "one type does not keep the others from it"
        assert list((await env.client.dead_letters.list()).letters) == []
        assert phone(await env.run(reconcile_keys, AT_ONCE)).outcome == "AGREES"
        assert await w.agree()


@in_virtual_time
async def test_a_bridge_of_another_institution_changes_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as (w, env):
        for number in range(3):
            await w.both(f"e-{number}", entry(number))
        w.bridge.bank = Bank(w.directory, B)
        with pytest.raises(RunFailed, match="Forbidden"):
            await env.run(reconcile_keys, AT_ONCE)
        assert {(await w.row(f"e-{number}")).status for number in range(3)} == {"ACTIVE"}
        assert await w.agree()
        assert not await w.audit.changes()
        w.bridge.bank = w.bank
        assert phone(await env.run(reconcile_keys, AT_ONCE)).outcome == "AGREES"


@in_virtual_time
async def test_a_database_that_is_away_for_a_while_is_asked_again(tmp_path: Path) -> None:
    async with world(tmp_path) as (w, env):
        await differ(w)
        w.database.fail("dict_", 5)
        assert phone(await env.run(reconcile_keys, AT_ONCE)).repaired == 6
        assert await w.agree()


# A directory that lacks many of our keys


async def many(w: World, count: int) -> set[str]:
    """The statuses of rows that only we have, after a run."""
    return {(await w.row(f"e-{number}")).status for number in range(count)}


@in_virtual_time
async def test_an_empty_directory_ends_no_row_until_a_person_allows_it(tmp_path: Path) -> None:
    async with world(tmp_path) as (w, env):
        for number in range(11):
            await w.here(f"e-{number}", entry(number))
        report = phone(await env.run(reconcile_keys, AT_ONCE))
        assert (report.outcome, report.repaired, report.left_over, report.rounds) == ("DIFFERS", 0, 11, 0)
        assert report.detail == "nothing was repaired, for the directory lacks more than 10 of our 11 keys"
        assert await many(w, 11) == {"ACTIVE"}
        assert await w.audit.changes() == []
        [alert] = w.alerts.sent.values()
        assert (alert["data"]["detail"], len(alert["data"]["differences"])) == (report.detail, 10)
        allowed = phone(await env.run(reconcile_keys, replace(AT_ONCE, retire_share=1.0)))
        assert (allowed.outcome, allowed.repaired) == ("AGREES", 11)
        assert await many(w, 11) == {"DELETED"}


@in_virtual_time
async def test_a_directory_with_other_keys_changes_nothing(tmp_path: Path) -> None:
    """Also the same keys, registered by other requests: each would end a row of ours."""
    async with world(tmp_path) as (w, env):
        for number in range(12):
            await w.here(f"e-{number}", entry(number))
            w.there(entry(number if number % 2 else 100 + number))
        w.bridge.limited = ["getEntryByCid"] * 3
        report = phone(await env.run(reconcile_keys, AT_ONCE))
        assert (report.outcome, report.repaired, report.left_over) == ("DIFFERS", 0, 24)
        assert await many(w, 12) == {"ACTIVE"}
        assert await w.audit.changes() == []


@in_virtual_time
async def test_as_many_rows_as_are_allowed_end(tmp_path: Path) -> None:
    async with world(tmp_path) as (w, env):
        for number in range(12):
            await w.here(f"e-{number}", entry(number))
        few = replace(AT_ONCE, retire_most=0, retire_share=11.9 / 12)
        assert phone(await env.run(reconcile_keys, few)).repaired == 0
        await w.both("same", entry(12))
        assert phone(await env.run(reconcile_keys, replace(few, retire_share=12 / 13))).outcome == "AGREES"
        assert await many(w, 12) == {"DELETED"}
        for number in range(20, 30):
            await w.here(f"f-{number}", entry(number))
        assert phone(await env.run(reconcile_keys, AT_ONCE)).repaired == 10, "ten are never too many"


@in_virtual_time
async def test_many_keys_that_only_changed_are_repaired(tmp_path: Path) -> None:
    async with world(tmp_path) as (w, env):
        for number in range(12):
            stored = await w.both(f"e-{number}", entry(number))
            w.there(replace(entry(number), account=account(number="99")), stored.request_id)
        report = phone(await env.run(reconcile_keys, AT_ONCE))
        assert (report.outcome, report.repaired) == ("AGREES", 12)
        assert await many(w, 12) == {"ACTIVE"}


@in_virtual_time
async def test_many_keys_that_the_events_forgot_do_not_brake_a_repair(tmp_path: Path) -> None:
    async with world(tmp_path) as (w, env):
        for number in range(12):
            await w.both(f"e-{number}", entry(number))
        w.storage._connection.execute("DELETE FROM cid_events WHERE seq < 12")
        w.there(entry(99))
        report = phone(await env.run(reconcile_keys, AT_ONCE))
        assert (report.outcome, report.repaired) == ("AGREES", 1)
        assert await many(w, 12) == {"ACTIVE"}


# Events


@in_virtual_time
async def test_events_that_do_not_add_up_are_read_again_from_the_first(tmp_path: Path) -> None:
    async with world(tmp_path) as (w, env):
        await differ(w)
        await env.run(reconcile_keys, AT_ONCE)
        await w.tables.run("DELETE FROM dict_cids WHERE is_there = 1")
        w.there(entry(7))
        report = phone(await env.run(reconcile_keys, AT_ONCE))
        assert (report.outcome, report.repaired, report.rounds) == ("AGREES", 1, 1)
        assert await w.agree()


@in_virtual_time
async def test_a_directory_without_its_old_events_takes_nothing_away(tmp_path: Path) -> None:
    """Whatever events say: the directory is asked for each entry before a row is changed."""
    async with world(tmp_path) as (w, env):
        for number in range(4):
            await w.both(f"e-{number}", entry(number))
        w.storage._connection.execute("DELETE FROM cid_events WHERE seq < 4")
        w.there(entry(9))
        report = phone(await env.run(reconcile_keys, AT_ONCE))
        assert (report.outcome, report.repaired) == ("AGREES", 1)
        assert [(await w.row(f"e-{number}")).status for number in range(4)] == ["ACTIVE"] * 4


@in_virtual_time
async def test_an_entry_that_goes_while_it_is_asked_for_is_not_added(tmp_path: Path) -> None:
    async with world(tmp_path) as (w, env):
        stored = w.there(entry(1))
        asked = w.bridge.get_entry_by_cid

        async def gone(cid: str) -> Any:
            w.bridge.get_entry_by_cid = asked  # type: ignore[method-assign]
            w.storage.remove_entry(stored, w.directory.now())
            return await asked(cid)

        w.bridge.get_entry_by_cid = gone  # type: ignore[method-assign]
        report = phone(await env.run(reconcile_keys, AT_ONCE))
        assert (report.outcome, report.repaired) == ("AGREES", 0)
        assert await w.tables.entry(str(stored.request_id)) is None


@in_virtual_time
async def test_a_directory_that_contradicts_itself_is_an_alert(tmp_path: Path) -> None:
    async with world(tmp_path) as (w, env):
        await w.both("e-1", entry(1))
        told = w.bridge.create_sync_verification

        async def never(key_type: str, verifier: str, *, request_id: Any) -> Any:
            found = await told(key_type, verifier, request_id=request_id)
            return replace(found, result="NOK") if key_type == "PHONE" else found

        w.bridge.create_sync_verification = never  # type: ignore[method-assign]
        report = phone(await env.run(reconcile_keys, AT_ONCE))
        assert (report.outcome, report.left_over) == ("DIFFERS", 0)
        [alert] = w.alerts.sent.values()
        assert (alert["topic"], alert["type"], alert["key"]) == ("core-events", "reconciliation.alert", "PHONE")
        assert alert["data"]["detail"] == "the directory says NOK, and its events agree with our entries"
        assert (await w.row("e-1")).status == "ACTIVE"


@in_virtual_time
async def test_an_entry_that_we_hold_twice_is_an_alert(tmp_path: Path) -> None:
    async with world(tmp_path) as (w, env):
        stored = await w.both("e-1", entry(1))
        await w.here("e-2", entry(1), stored.request_id)
        report = phone(await env.run(reconcile_keys, AT_ONCE))
        assert (report.outcome, report.detail) == (
            "DIFFERS", "no identifier differs, but the verifiers do: one of ours is there twice",
        )  # fmt: skip
        assert len(w.alerts.sent) == 1


# Every night


@in_virtual_time
async def test_it_runs_at_three_in_the_night_of_sao_paulo(tmp_path: Path) -> None:
    async with world(tmp_path, schedules=[nightly(AT_ONCE)]) as (w, env):
        await differ(w)
        await env.advance(timedelta(days=2))
        await env.settle()
        runs = (await env.client.list(id_prefix=f"{SCHEDULE_ID}:", limit=10)).runs
        assert len(runs) == 2
        assert {run.id[-10:] for run in runs} == {"T06:00:00Z"}
        assert {str(run.state) for run in runs} == {"completed"}
        assert await w.agree()


# Crashes


def at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of what waits for nothing: `FailingDatabase` has no thread."""
    try:
        work.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it waits for something")


@pytest.mark.chaos
def test_a_worker_that_dies_anywhere_leaves_both_sides_the_same(tmp_path: Path) -> None:
    made: list[World] = []

    def activities() -> list[object]:
        w = World(tmp_path / f"{len(made)}.db")
        at_once(differ(w))
        made.append(w)
        return [w.activities]

    def ending(reports: Any) -> Any:
        return [(one.key_type, one.outcome, one.repaired, one.entries) for one in reports]

    swept = crash_sweep(reconcile_keys, AT_ONCE, activities=activities, key=ending, most=None if LONG else 25)
    assert ("PHONE", "AGREES", 6, 5) in ending(swept.ending)
    assert len(made) > 20
    for w in made:
        assert at_once(w.agree())
        actions = sorted(one.action for one in at_once(w.audit.changes()))
        assert actions == ["ADDED", "ADDED", "CHANGED", "DELETED", "DELETED", "RESTORED"], "each of them once"
