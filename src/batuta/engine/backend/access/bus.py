"""Messages of the bus, for the client."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.authoring.backend import RunRef
from batuta.clock import Clock
from batuta.engine.activities.publisher import Publisher
from batuta.engine.backend.access.store import NativeAccess
from batuta.engine.backend.actor import Actor
from batuta.engine.backend.caller_transaction import ReadyWrite
from batuta.journal.bus.messages import NewMessage
from batuta.journal.store import Store


class NativeBus(NativeAccess):
    """Implements `authoring.services.BusService` on a store."""

    def __init__(self, store: Store, actor: Actor, clock: Clock) -> None:
        super().__init__(store, actor, clock)
        self._clock, self._publisher = clock, Publisher(store)

    async def now(self) -> int:
        return self._clock.now()

    async def publish(self, messages: Sequence[NewMessage]) -> None:
        await self._publisher.publish(messages)

    async def enter(self, transaction: object, messages: Sequence[NewMessage]) -> ReadyWrite:
        caller = await self.store.enter(transaction, [])

        async def write() -> list[RunRef]:
            await caller.publish(messages)
            return []

        return ReadyWrite(caller, write)
