"""Events that come together share a transaction; when that fails, each is written alone."""

import asyncio
from collections.abc import Sequence

import pytest

from batuta.clock import SystemClock
from batuta.engine.backend.native import NativeBackend
from batuta.errors import BadData
from batuta.ids import new_run_id
from batuta.journal.flows.records import Accepted, EventRow, NewEvent
from batuta.stores.memory import MemoryStore


class OneByOne(MemoryStore):
    """Takes no two events together, refuses "bad", and holds up "slow"."""

    def __init__(self) -> None:
        super().__init__()
        self.released = asyncio.Event()

    async def accept_events(self, events: Sequence[NewEvent]) -> list[Accepted]:
        if len(events) > 1:
            raise BadData("one of them is bad")
        [name] = [one.event.external_id for one in events]
        if name == "slow":
            await self.released.wait()
        if name == "bad":
            raise BadData("this one is")
        return list(await super().accept_events(events))


async def sent(store: OneByOne, *names: str) -> list[asyncio.Task[Accepted]]:
    """One event that is written at once, and these, which have come meanwhile."""
    await store.open()
    flows = NativeBackend(store, SystemClock()).flows

    def event(name: str) -> NewEvent:
        return NewEvent(event=EventRow(event_id=new_run_id(), type="t", source="api", external_id=name, payload="{}"))

    return [asyncio.create_task(flows.accept(event(name))) for name in ("first", *names)]


async def test_a_sender_does_not_wait_for_the_events_after_its_own() -> None:
    store = OneByOne()
    tasks = await sent(store, "bad", "good", "slow", "last")
    async with asyncio.timeout(10):
        await asyncio.wait(tasks[:3])
        assert not tasks[3].done()
        with pytest.raises(BadData, match="this one is"):
            await tasks[1]
        store.released.set()
        assert [(await tasks[place]).is_new for place in (0, 2, 3, 4)] == [True] * 4


async def test_all_senders_are_told_when_the_writing_ends() -> None:
    tasks = await sent(OneByOne(), "good", "slow", "last")
    async with asyncio.timeout(10):
        while not tasks[1].done():
            await asyncio.sleep(0)
        [writer] = [task for task in asyncio.all_tasks() if task.get_name() == "batuta-events"]
        writer.cancel()
        await asyncio.wait(tasks)
    assert (await tasks[1]).is_new
    assert [task.cancelled() for task in tasks] == [False, False, True, True]
