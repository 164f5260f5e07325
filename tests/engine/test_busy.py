"""Changes that wait for a row which somebody else holds: only their own runs wait."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from batuta import Batuta, activity, workflow
from batuta.clock import ManualClock
from batuta.engine.backend.native import NativeBackend
from batuta.errors import OutcomeUnknown, StoreUnavailable
from batuta.journal.records import Change, Refusal, Verdict
from batuta.stores.memory import MemoryDatabase, MemoryStore
from tests.engine.arena import until

PATIENCE = 20.0


class HeldStore(MemoryStore):
    """Runs of these ids cannot be written."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(MemoryDatabase(clock))
        self.held: set[str] = set()
        self.lose_next = False
        self.busy = 0

    async def commit(self, worker_id: str, changes: Sequence[Change]) -> dict[int, Verdict | list[Refusal]]:
        if self.lose_next:
            self.lose_next = False
            raise OutcomeUnknown("the reply was lost")
        names = {row.run.run_id: row.run.id for row in self._tables.rows.values()}
        ids = [names.get(change.run_id) or (change.start.id if change.start else "") for change in changes]
        kept = [index for index, id in enumerate(ids) if id not in self.held]
        answers = await super().commit(worker_id, [changes[index] for index in kept])
        found = {kept[place]: answer for place, answer in answers.items()}
        found.update({index: Verdict.BUSY for index, id in enumerate(ids) if id in self.held})
        self.busy += len(ids) - len(kept)
        return found

    async def is_busy(self) -> bool:
        return self.busy > 2


gates = [asyncio.Event()]


@activity
async def step(n: int) -> int:
    await gates[0].wait()
    return n


@workflow
async def walk() -> int:
    return sum([await step(n) for n in range(4)])


@workflow
async def spread() -> int:
    return sum(await asyncio.gather(*(step(n) for n in range(4))))


@asynccontextmanager
async def working(clock: ManualClock) -> AsyncIterator[tuple[HeldStore, Batuta]]:
    store = HeldStore(clock)
    gates[:] = [asyncio.Event()]
    gates[0].set()
    async with Batuta(NativeBackend(store, clock), store.open, store.close) as client:
        async with client.worker(workflows=[walk, spread], activities=[step]):
            yield store, client


@pytest.mark.parametrize("flow", [walk, spread])
async def test_others_go_on_and_the_run_does_when_it_can_be_written(real_time: None, flow: object) -> None:
    async with working(ManualClock()) as (store, client):
        gates[0].clear()
        handle = await client.start(flow, id="held")  # type: ignore[call-overload]
        store.held.add("held")
        gates[0].set()
        for _ in range(3):
            assert await (await client.start(walk)).result(PATIENCE) == 6
        await until(store.is_busy)
        assert not (await handle.describe()).closed_at
        store.held.clear()
        assert await handle.result(PATIENCE) == 6
        assert [line.ord for line in await handle.journal()] == list(range(5))


async def test_a_start_that_waits_for_too_long_is_refused_and_others_are_not(real_time: None) -> None:
    clock = ManualClock()
    async with working(clock) as (store, client):
        store.held.add("held")
        starting = asyncio.create_task(client.start(walk, id="held"))
        await until(store.is_busy)
        assert await (await client.start(walk)).result(PATIENCE) == 6
        assert not starting.done()
        clock.advance(6)
        with pytest.raises(StoreUnavailable, match="something holds a transaction open"):
            await asyncio.wait_for(starting, PATIENCE)
        store.held.clear()
        assert await (await client.start(walk, id="held")).result(PATIENCE) == 6


async def test_a_start_that_may_be_there_and_waits_is_told_so(real_time: None) -> None:
    async with working(ManualClock()) as (store, client):
        store.held.add("held")
        store.lose_next = True
        with pytest.raises(OutcomeUnknown):
            await asyncio.wait_for(client.start(walk, id="held"), PATIENCE)
        store.held.clear()
        assert await (await client.start(walk, id="held")).result(PATIENCE) == 6
