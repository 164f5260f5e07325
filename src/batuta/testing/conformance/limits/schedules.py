"""Schedules: written under a fence, found when they are due, and fired once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from batuta.clock import SECOND
from batuta.errors import UnknownRun, UnknownSchedule
from batuta.journal.records import Move, NewRun
from batuta.journal.schedules import Firing, ScheduleRow
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.commits.hints import Ear
from batuta.testing.conformance.kit import MakeStore, Pen, beat, claim_one, live_worker, new_run


async def put(store: Store, id: str = "nightly", **fields: Any) -> ScheduleRow:
    """A schedule that is there."""
    assert await store.put_schedule(ScheduleRow(id=id, **({"spec": '{"when":1}'} | fields)))
    return await read(store, id)


async def read(store: Store, id: str = "nightly") -> ScheduleRow:
    return (await store.schedule(id)).schedule


def firing(row: ScheduleRow, *starts: NewRun, **fields: Any) -> Firing:
    """What a look at this row leads to."""
    told: dict[str, Any] = {"next_at": 5, "state": '{"cursor":4}'} | fields
    return Firing(id=row.id, revision=row.revision, starts=list(starts), **told)


async def due(store: Store, limit: int = 10) -> list[str]:
    return [found.schedule.id for found in await store.due_schedules(limit)]


class SchedulesConformance:
    """Rows."""

    async def test_a_payload_is_read_as_it_was_written(self, store: Store) -> None:
        now = await store.now()
        told: dict[str, Any] = {"spec": '{"é":"\\u0000"}', "state": '{"x":1}', "reason": "why", "paused": True}
        row = await put(store, **told, next_at=7, last_at=6, last_id="nightly:6")
        assert (row.id, row.spec, row.state, row.reason, row.paused) == ("nightly", *told.values())
        assert (row.next_at, row.last_at, row.last_id) == (7, 6, "nightly:6")
        assert row.created_at == row.updated_at >= now

    async def test_an_id_is_taken_once(self, store: Store) -> None:
        row = await put(store)
        assert not await store.put_schedule(ScheduleRow(id="nightly", spec="{}"))
        assert await read(store) == row

    async def test_a_write_needs_the_revision_that_is_there(self, store: Store) -> None:
        row = await put(store)
        changed = ScheduleRow(id="nightly", spec='{"when":2}', reason="new", next_at=3)
        assert not await store.put_schedule(changed, row.revision + 1)
        assert not await store.put_schedule(ScheduleRow(id="other", spec="{}"), 0)
        assert await store.put_schedule(changed, row.revision)
        found = await read(store)
        assert (found.spec, found.reason, found.next_at) == ('{"when":2}', "new", 3)
        assert (found.revision, found.created_at) == (row.revision + 1, row.created_at)
        assert found.updated_at >= row.updated_at
        assert not await store.put_schedule(changed, row.revision)

    async def test_what_is_not_there_is_not_found(self, store: Store) -> None:
        with pytest.raises(UnknownSchedule):
            await store.schedule("nightly")
        assert not await store.delete_schedule("nightly")
        assert await store.schedule_at() is None
        assert await store.fire([Firing(id="nightly", revision=0, next_at=None, state="{}")]) == [False]

    async def test_one_that_was_deleted_and_made_anew_is_another(self, store: Store) -> None:
        old = await put(store)
        assert await store.delete_schedule("nightly")
        new = await put(store)
        assert new.revision != old.revision
        assert await store.fire([firing(old)]) == [False]

    async def test_they_are_listed_by_id_in_pages(self, store: Store, make_store: MakeStore) -> None:
        for id in ("b", "a", "c", "B"):
            await put(store, id)
        await put(await make_store("other"), "aa")
        assert [found.schedule.id for found in await store.schedules()] == ["B", "a", "b", "c"]
        assert [found.schedule.id for found in await store.schedules("a", 1)] == ["b"]
        assert await store.schedules("c") == []

    async def test_a_namespace_sees_its_own(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store("other")
        await put(other, next_at=1)
        assert await store.schedule_at() is None
        assert await due(store) == []
        row = await put(store, next_at=2)
        assert await store.delete_schedule("nightly")
        assert (await read(other)).next_at == 1
        assert await store.fire([firing(row)]) == [False]


class DueSchedulesConformance:
    """When they are to be looked at."""

    async def test_due_are_those_whose_time_is_over_in_its_order(self, store: Store) -> None:
        now = await store.now()
        times = {"late": now - SECOND, "later": now - 2 * SECOND, "soon": now + 60 * SECOND, "ended": None}
        for id, next_at in times.items():
            await put(store, id, next_at=next_at)
        await put(store, "paused", next_at=now - 3 * SECOND, paused=True)
        assert await due(store) == ["later", "late"]
        assert await due(store, 1) == ["later"]
        assert await store.schedule_at() == now - 2 * SECOND

    async def test_due_are_read_page_by_page(self, store: Store) -> None:
        now = await store.now()
        for number in range(7):
            await put(store, f"s{number}", next_at=now - SECOND if number < 5 else now - 2 * SECOND)
        found, after = list[str](), None
        while page := await store.due_schedules(2, after):
            found += [each.schedule.id for each in page]
            after = page[-1].schedule.next_at or 0, page[-1].schedule.id
        assert found == ["s5", "s6", "s0", "s1", "s2", "s3", "s4"]
        assert await store.schedule_at(now - 2 * SECOND) == now - SECOND
        assert await store.schedule_at(now) is None

    async def test_the_clock_is_the_stores(self, store: Store) -> None:
        await put(store, next_at=await store.now() + 60 * SECOND)
        assert await due(store) == []
        store.shift_clock(61)
        assert await due(store) == ["nightly"]

    async def test_a_heartbeat_tells_when_the_next_one_is_due(self, store: Store) -> None:
        worker = await live_worker(store)
        assert (await beat(store, worker)).schedule_at is None
        await put(store, next_at=9)
        await put(store, "paused", next_at=3, paused=True)
        assert (await beat(store, worker)).schedule_at == 9

    async def test_one_is_busy_while_the_run_that_it_began_last_is_open(self, store: Store) -> None:
        assert await store.put_schedule(ScheduleRow(id="nightly", spec="{}", next_at=1, last_id="gone"))
        assert not (await store.schedule("nightly")).busy
        run = new_run("nightly:1")
        row = await read(store)
        assert await store.fire([firing(row, run, last_at=1, last_id="nightly:1")]) == [True]
        assert (await store.schedule("nightly")).busy
        assert [found.busy for found in await store.due_schedules(5)] == [True]
        assert [found.busy for found in await store.schedules()] == [True]
        await end(store, run)
        assert not (await store.schedule("nightly")).busy
        assert [found.busy for found in await store.due_schedules(5)] == [False]

    async def test_a_schedule_is_heard_of(self, store: Store, make_store: MakeStore) -> None:
        ears = [Ear(store), Ear(await make_store())]
        row = await put(store, next_at=1)
        for ear in ears:
            await ear.hears(lambda hint: hint.schedules)
            ear.hints.clear()
        assert await store.put_schedule(ScheduleRow(id="nightly", spec="{}", next_at=2), row.revision)
        for ear in ears:
            await ear.hears(lambda hint: hint.schedules)

    async def test_the_runs_of_a_firing_are_heard_of(self, store: Store, make_store: MakeStore) -> None:
        row = await put(store, next_at=1)
        ears = [Ear(store), Ear(await make_store())]
        await store.fire([firing(row, new_run())])
        for ear in ears:
            await ear.hears(lambda hint: hint.due)


class FireConformance:
    """A look at a schedule and the runs that it begins are one."""

    async def test_a_firing_moves_the_schedule_and_begins_its_runs(self, store: Store) -> None:
        row = await put(store, next_at=1)
        runs = [new_run(f"nightly:{n}", delay=n, tags='{"a":"b"}') for n in range(3)]
        assert await store.fire([firing(row, *runs, next_at=8, last_at=2, last_id="nightly:2")]) == [True]
        found = await read(store)
        assert (found.next_at, found.state, found.last_at, found.last_id) == (8, '{"cursor":4}', 2, "nightly:2")
        assert (found.revision, found.spec, found.created_at) == (row.revision + 1, row.spec, row.created_at)
        for run in runs:
            begun = await store.get(run.id)
            assert (begun.run_id, begun.state, begun.owner, begun.tags) == (run.run_id, "pending", None, run.tags)
            assert begun.wake_at == begun.created_at + run.delay

    async def test_a_run_of_a_firing_can_be_claimed_with_its_start_message(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.fire([firing(await put(store, next_at=1), new_run("nightly:1"))])
        stored = await claim_one(store, worker)
        assert [(message.kind, message.body) for message in stored.messages] == [("start", '{"value":["first"]}')]

    async def test_a_firing_without_a_slot_leaves_the_last_one(self, store: Store) -> None:
        row = await put(store, next_at=1, last_at=3, last_id="nightly:3")
        assert await store.fire([firing(row, next_at=None)]) == [True]
        found = await read(store)
        assert (found.next_at, found.last_at, found.last_id) == (None, 3, "nightly:3")

    async def test_a_firing_happens_once(self, store: Store) -> None:
        row = await put(store, next_at=1)
        first, second = new_run("nightly:1"), new_run("nightly:2")
        assert await store.fire([firing(row, first)]) == [True]
        assert await store.fire([firing(row, second)]) == [False]
        with pytest.raises(UnknownRun):
            await store.get("nightly:2")

    async def test_nothing_fires_that_was_written_or_paused_since(self, store: Store) -> None:
        row, paused = await put(store, next_at=1), await put(store, "paused", next_at=1, paused=True)
        assert await store.put_schedule(ScheduleRow(id="nightly", spec="{}", next_at=1), row.revision)
        firings = [firing(row, new_run("nightly:1")), firing(paused, new_run("paused:1"))]
        assert await store.fire(firings) == [False, False]
        for id in ("nightly:1", "paused:1"):
            with pytest.raises(UnknownRun):
                await store.get(id)

    async def test_a_slot_that_has_had_its_run_is_left_out(self, store: Store) -> None:
        there = new_run("nightly:1")
        await store.start(there)
        await end(store, there)
        row = await put(store, next_at=1)
        assert await store.fire([firing(row, new_run("nightly:1"), new_run("nightly:2"))]) == [True]
        assert (await store.get("nightly:1")).run_id == there.run_id
        assert (await store.get("nightly:2")).state == "pending"

    async def test_each_firing_stands_by_itself(self, store: Store) -> None:
        rows = [await put(store, f"s{n}", next_at=1) for n in range(4)]
        rows[2].revision -= 1
        firings = [firing(row, new_run(f"{row.id}:1"), new_run(f"{row.id}:2"), next_at=n) for n, row in enumerate(rows)]
        assert await store.fire(firings[::-1]) == [True, False, True, True]
        assert [(await read(store, f"s{n}")).next_at for n in range(4)] == [0, 1, 1, 3]
        for n in (0, 1, 3):
            assert (await store.get(f"s{n}:2")).state == "pending"
        with pytest.raises(UnknownRun):
            await store.get("s2:1")

    async def test_nothing_to_fire_is_no_error(self, store: Store) -> None:
        assert await store.fire([]) == []

    async def test_of_many_who_look_at_once_one_fires(self, store: Store, make_store: MakeStore) -> None:
        rows = [await put(store, f"s{n}", next_at=1) for n in range(20)]
        stores = [await make_store() for _ in range(4)]

        async def fire(one: Store, number: int) -> list[bool]:
            order = rows if number % 2 else rows[::-1]
            fired = await one.fire([firing(row, new_run(f"{row.id}:1", memo=str(number))) for row in order])
            return fired if number % 2 else fired[::-1]

        answers = await asyncio.gather(*(fire(one, number) for number, one in enumerate(stores)))
        assert [sum(each) for each in zip(*answers, strict=True)] == [1] * 20
        for n in range(20):
            winner = next(number for number, answer in enumerate(answers) if answer[n])
            assert (await store.get(f"s{n}:1")).memo == str(winner)

    async def test_a_thousand_fire_at_once(self, store: Store) -> None:
        for n in range(1_000):
            await store.put_schedule(ScheduleRow(id=f"s{n:03}", spec="{}", next_at=1))
        found = await store.due_schedules(2_000)
        assert len(found) == 1_000
        firings = [firing(each.schedule, new_run(f"{each.schedule.id}:1")) for each in found]
        assert await store.fire(firings) == [True] * 1_000
        assert (await store.get("s999:1")).state == "pending"


async def end(store: Store, run: NewRun) -> None:
    """The run comes to its end."""
    worker = await live_worker(store)
    stored = await claim_one(store, worker)
    assert stored.run.run_id == run.run_id
    await Pen.of(stored).write(store, worker, move=Move(RunState.CANCELLED))
