"""Hints: they make things fast, and nothing depends on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from batuta.journal.records import Hint, Message, MessageKind, Move
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.close import last_word
from batuta.testing.conformance.kit import MakeStore, beat, live_worker, new_run, outlive_lease, start_owned

WAIT_SECONDS = 20


class Ear:
    """Collects the hints of one store."""

    def __init__(self, store: Store) -> None:
        self.hints: list[Hint] = []
        self._news = asyncio.Event()
        self.undo = store.listen(self._hear)

    def _hear(self, hint: Hint) -> None:
        self.hints.append(hint)
        self._news.set()

    async def hears(self, wanted: Callable[[Hint], bool]) -> None:
        """Wait until a wanted hint has come."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not any(wanted(hint) for hint in self.hints):
                self._news.clear()
                await self._news.wait()


class HintsConformance:
    """Whoever listens hears of it, in this process and in others."""

    async def test_a_start_is_heard(self, store: Store, make_store: MakeStore) -> None:
        ears = [Ear(store), Ear(await make_store())]
        await store.start(new_run())
        for ear in ears:
            await ear.hears(lambda hint: hint.due)

    async def test_a_close_is_heard(self, store: Store, make_store: MakeStore) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        ears = [Ear(store), Ear(await make_store())]
        await pen.write(store, worker, move=Move(RunState.COMPLETED))
        for ear in ears:
            await ear.hears(lambda hint: hint.closed is None or pen.run_id in hint.closed)

    async def test_a_message_to_an_owned_run_is_heard(self, store: Store, make_store: MakeStore) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        ear = Ear(store)
        await store.send(pen.run_id, Message(message_id="m", kind=MessageKind.SIGNAL))
        await ear.hears(lambda hint: pen.run_id in hint.messages)
        far = Ear(await make_store())
        await store.send(pen.run_id, Message(message_id="n", kind=MessageKind.SIGNAL))
        await far.hears(lambda hint: pen.run_id in hint.messages or hint.closed is None)

    async def test_a_message_to_an_unowned_run_is_heard_as_due(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.release(store, worker)
        ear = Ear(store)
        await store.send(pen.run_id, Message(message_id="m", kind=MessageKind.SIGNAL))
        await ear.hears(lambda hint: hint.due)

    async def test_a_close_from_outside_is_heard_by_the_owner(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        ear = Ear(store)
        await store.close_run(pen.run_id, pen.head, last_word(pen), RunState.TERMINATED, "enough")
        await ear.hears(lambda hint: pen.run_id in hint.messages and pen.run_id in (hint.closed or []))

    async def test_reaping_and_retiring_are_heard(self, store: Store) -> None:
        dead = await live_worker(store)
        await start_owned(store, dead)
        await outlive_lease(store)
        reaper = await live_worker(store)
        ear = Ear(store)
        await beat(store, reaper, reap=True)
        await ear.hears(lambda hint: hint.due)
        await store.claim(reaper, 1)
        ear.hints.clear()
        await store.retire(reaper.worker_id)
        await ear.hears(lambda hint: hint.due)

    async def test_who_stopped_listening_hears_no_more(self, store: Store) -> None:
        deaf, ear = Ear(store), Ear(store)
        deaf.undo()
        deaf.undo()
        await store.start(new_run())
        await ear.hears(lambda hint: hint.due)
        assert deaf.hints == []
