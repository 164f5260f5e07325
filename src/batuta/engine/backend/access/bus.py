"""Messages of the bus, for the client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batuta.authoring.backend import RunRef
from batuta.clock import Clock
from batuta.engine.activities.publisher import Publisher
from batuta.engine.backend.actor import Actor
from batuta.engine.backend.caller_transaction import ReadyWrite
from batuta.journal.audit import Verb
from batuta.journal.bus.messages import BusStore, NewMessage
from batuta.journal.store import Store


class NativeBus:
    """Implements `authoring.services.BusService` on a store."""

    def __init__(self, store: Store, actor: Actor, clock: Clock) -> None:
        self.store: BusStore = store
        self.namespace, self.poll_seconds = store.namespace, store.poll_seconds
        self.listen = store.listen
        self.act = actor.act
        self._all, self._clock = store, clock
        self._publisher = Publisher(store)

    async def now(self) -> int:
        return self._clock.now()

    async def publish(self, messages: Sequence[NewMessage]) -> None:
        await self._publisher.publish(messages)

    async def enter(self, transaction: object, messages: Sequence[NewMessage]) -> ReadyWrite:
        caller = await self._all.enter(transaction, [])

        async def write() -> list[RunRef]:
            await caller.publish(messages)
            return []

        return ReadyWrite(caller, write)

    async def note(self, target: str, verb: Verb, after: Any = None) -> None:
        await self._all.note_act(target, self.act(verb, after=after))
