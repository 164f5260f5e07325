"""Starts that no worker of this process takes at once: those that come together share a transaction."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from batuta import AlreadyStarted, Batuta, Handle, RunState, activity, workflow
from batuta.clock import SystemClock
from batuta.engine.backend.native import NativeBackend
from batuta.errors import BadData, OutcomeUnknown, StoreFailed, StoreUnavailable
from batuta.journal.records import Change, NewRun, Refusal, StartOutcome, Verdict
from batuta.stores.memory import MemoryStore
from tests.engine.kit import world


class CountingStore(MemoryStore):
    """Remembers what was written together; takes its time, or fails."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[str]] = []
        self.fails: list[Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def start_many(self, runs: Sequence[NewRun], after: NewRun | None = None) -> list[StartOutcome]:
        self.batches.append([run.id for run in runs])
        await self.gate.wait()
        if self.fails:
            raise self.fails.pop(0)
        bad: dict[str, StartOutcome] = {run.id: BadData("no") for run in runs if run.id.startswith("bad")}
        written = iter(await super().start_many([run for run in runs if run.id not in bad], after))
        return [bad[run.id] if run.id in bad else next(written) for run in runs]


@asynccontextmanager
async def client() -> AsyncIterator[tuple[CountingStore, Batuta]]:
    store = CountingStore()
    async with Batuta(NativeBackend(store, SystemClock()), store.open, store.close) as batuta:
        yield store, batuta


@workflow
async def nothing() -> None:
    pass


async def test_concurrent_starts_share_a_transaction() -> None:
    async with client() as (store, batuta):
        handles = await asyncio.gather(*(batuta.start("flow", id=f"run {number}") for number in range(50)))
        assert [handle.id for handle in handles] == [f"run {number}" for number in range(50)]
        assert await batuta.count() == 50
        assert len(store.batches) <= 2


async def test_starts_that_come_during_a_write_go_into_the_next_batch() -> None:
    async with client() as (store, batuta):
        store.gate.clear()
        first = asyncio.ensure_future(batuta.start("flow", id="first"))
        await asyncio.sleep(1)
        rest = [asyncio.ensure_future(batuta.start("flow", id=f"{number}")) for number in range(600)]
        await asyncio.sleep(1)
        store.gate.set()
        await asyncio.gather(first, *rest)
        assert [len(batch) for batch in store.batches] == [1, 500, 100]


async def test_each_start_has_an_outcome_of_its_own() -> None:
    async with client() as (_, batuta):
        await batuta.start("flow", id="taken")
        starts = [
            batuta.start("flow", id="new"),
            batuta.start("flow", id="taken"),
            batuta.start("flow", id="taken", if_exists="reject"),
            batuta.start("flow", id="bad one"),
        ]
        found = await asyncio.gather(*starts, return_exceptions=True)
        assert [one.id for one in found if isinstance(one, Handle)] == ["new", "taken"]
        assert [type(one) for one in found[2:]] == [AlreadyStarted, BadData]


async def test_an_error_of_the_store_is_told_to_each_and_the_next_start_works() -> None:
    async with client() as (store, batuta):
        for error in (StoreUnavailable("away"), OutcomeUnknown("who knows")):
            store.fails.append(error)
            store.gate.clear()
            starts = [asyncio.ensure_future(batuta.start("flow", id=f"{error} {n}")) for n in range(3)]
            await asyncio.sleep(1)
            store.gate.set()
            found = await asyncio.gather(*starts, return_exceptions=True)
            assert [type(one) for one in found] == [type(error)] * 3
            assert len(set(map(id, found))) == 3
        assert (await batuta.start("flow", id="next")).id == "next"


async def test_a_start_that_is_cancelled_while_it_waits_is_not_written() -> None:
    async with client() as (store, batuta):
        store.gate.clear()
        first = asyncio.ensure_future(batuta.start("flow", id="first"))
        await asyncio.sleep(1)
        second, third = (asyncio.ensure_future(batuta.start("flow", id=name)) for name in ("second", "third"))
        await asyncio.sleep(1)
        second.cancel()
        store.gate.set()
        await asyncio.gather(first, third)
        assert store.batches == [["first"], ["third"]]
        with pytest.raises(asyncio.CancelledError):
            await second


async def test_a_worker_without_room_has_its_starts_written_together() -> None:
    async with world(nothing, max_runs=1) as env:
        handles = await asyncio.gather(*(env.start(nothing) for _ in range(20)))
        for handle in handles:
            await handle.result()
        assert await env.client.count(state=RunState.COMPLETED) == 20


async def test_an_unexpected_error_of_one_batch_leaves_no_waiter_behind() -> None:
    async with client() as (store, batuta):
        store.fails = [ZeroDivisionError("a bug")]
        store.gate.clear()
        first = asyncio.create_task(batuta.start("flow", id="first"))
        await asyncio.sleep(0.01)
        second = asyncio.create_task(batuta.start("flow", id="second"))
        await asyncio.sleep(0.01)
        store.gate.set()
        with pytest.raises(ZeroDivisionError):
            await first
        async with asyncio.timeout(5):
            assert (await second).id == "second"


class SlowEnd(MemoryStore):
    """Takes its time with the second commit."""

    def __init__(self) -> None:
        super().__init__()
        self.commits = 0
        self.gate = asyncio.Event()

    async def commit(self, worker_id: str, changes: Sequence[Change]) -> dict[int, Verdict | list[Refusal]]:
        self.commits += 1
        if self.commits == 2:
            await self.gate.wait()
        return await super().commit(worker_id, changes)


@activity
async def quick() -> None:
    pass


@workflow
async def one_step() -> str:
    await quick()
    return "done"


async def test_who_started_a_lone_run_is_told_while_its_next_change_is_on_its_way() -> None:
    store = SlowEnd()
    async with Batuta(NativeBackend(store, SystemClock()), store.open, store.close) as batuta:
        async with batuta.worker(workflows=[one_step], activities=[quick]):
            handle = await batuta.start(one_step)
            assert store.commits == 2  # so its end did not wait for the starter, nor the starter for its end
            store.gate.set()
            assert await handle.result() == "done"


class FailsOnce(MemoryStore):
    """The second commit fails."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error
        self.commits = 0

    async def commit(self, worker_id: str, changes: Sequence[Change]) -> dict[int, Verdict | list[Refusal]]:
        self.commits += 1
        if self.commits == 2:
            raise self.error
        return await super().commit(worker_id, changes)


@pytest.mark.parametrize("error", [StoreUnavailable("away"), OutcomeUnknown("?"), StoreFailed("fsync"), ValueError()])
async def test_who_started_a_lone_run_is_told_though_its_next_change_fails(error: Exception) -> None:
    store = FailsOnce(error)
    async with Batuta(NativeBackend(store, SystemClock()), store.open, store.close) as batuta:
        async with batuta.worker(workflows=[one_step], activities=[quick]):
            handle = await batuta.start(one_step)
            assert store.commits == 2
            assert await handle.result() == "done"


class Away(MemoryStore):
    """Does not answer the first commits."""

    def __init__(self, commits: int) -> None:
        super().__init__()
        self.left = commits

    async def commit(self, worker_id: str, changes: Sequence[Change]) -> dict[int, Verdict | list[Refusal]]:
        if self.left and changes:
            self.left -= 1
            raise StoreUnavailable("away")
        return await super().commit(worker_id, changes)


@pytest.mark.parametrize("failures", [1, 2, 3])
async def test_nothing_is_taken_for_durable_that_comes_right_after_refused_starts(failures: int) -> None:
    """The change that comes next must not get the answer of a batch from which all starts were withdrawn."""
    store = Away(failures)
    async with Batuta(NativeBackend(store, SystemClock()), store.open, store.close) as batuta:
        async with batuta.worker(workflows=[one_step], activities=[quick]):
            for number in range(failures):
                with pytest.raises(StoreUnavailable):
                    await batuta.start(one_step, id=f"refused {number}")
            handle = await batuta.start(one_step, id="started")
            assert (await store.get("started")).run_id == handle.run_id
            assert await handle.result() == "done"
            assert await batuta.count() == 1


async def test_who_started_a_lone_run_is_told_though_its_worker_is_lost_meanwhile() -> None:
    store = MemoryStore()

    @activity
    async def loses() -> None:
        if not lost:
            lost.append(worker.session)
            worker.session.abandon()
            await asyncio.Event().wait()

    @workflow
    async def is_lost() -> str:
        await loses()
        return "done"

    lost: list[object] = []
    async with Batuta(NativeBackend(store, SystemClock()), store.open, store.close) as batuta:
        async with batuta.worker(workflows=[is_lost], activities=[loses]) as worker:
            handle = await batuta.start(is_lost)
            assert lost
            assert (await handle.describe()).entries == 1
