"""Hints: they make things fast, and nothing depends on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from batuta.journal.records import Effects, Hint, Message, MessageKind, Move
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import MakeStore, beat, claimed, live_worker, new_run, outlive_lease, start_owned
from batuta.testing.conformance.runs.chains import going_on
from batuta.testing.conformance.runs.close import last_word
from batuta.testing.conformance.runs.outputs import ANSWER, output
from batuta.testing.conformance.runs.sends import sends

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
    """Listeners get hints, in this process and in others."""

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
        await claimed(store, reaper, 1)
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

    async def test_a_send_to_an_owned_run_is_heard(self, store: Store) -> None:
        worker = await live_worker(store)
        sender, target = await start_owned(store, worker), await start_owned(store, worker, "target")
        ear = Ear(store)
        await sender.write(store, worker, effects=sends(("target", "m")))
        await ear.hears(lambda hint: target.run_id in hint.messages)

    async def test_a_send_to_an_unowned_run_is_heard_as_due(self, store: Store) -> None:
        worker = await live_worker(store)
        sender, target = await start_owned(store, worker), await start_owned(store, worker, "target")
        await target.release(store, worker)
        ear = Ear(store)
        await sender.write(store, worker, effects=sends(("target", "m")))
        await ear.hears(lambda hint: hint.due)

    async def test_children_and_successors_are_heard_as_due(self, store: Store, make_store: MakeStore) -> None:
        worker = await live_worker(store)
        for effects, move in [(Effects(children=[new_run()]), None), (going_on(), Move(RunState.CONTINUED))]:
            pen = await start_owned(store, worker)
            ears = [Ear(store), Ear(await make_store())]
            await pen.write(store, worker, effects=effects, move=move)
            for ear in ears:
                await ear.hears(lambda hint: hint.due)

    async def test_an_answer_is_heard(self, store: Store, make_store: MakeStore) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        ears = [Ear(store), Ear(await make_store())]
        await pen.write(store, worker, effects=Effects(outputs=[output("u", "1", ANSWER)]))
        for ear in ears:
            await ear.hears(lambda hint: hint.answered is None or pen.run_id in hint.answered)

    async def test_the_end_of_a_child_is_heard_by_the_owner_of_its_parent(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        child = await start_owned(store, worker, parent_run_id=parent.run_id)
        ear = Ear(store)
        await child.write(store, worker, move=Move(RunState.COMPLETED, outcome="{}"))
        await ear.hears(lambda hint: parent.run_id in hint.messages)

    async def test_the_end_of_a_parent_is_heard_by_the_owner_of_its_child(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        child = await start_owned(store, worker, parent_run_id=parent.run_id)
        ear = Ear(store)
        await store.close_run(parent.run_id, parent.head, last_word(parent), RunState.TERMINATED, "enough")
        await ear.hears(lambda hint: child.run_id in hint.messages)
