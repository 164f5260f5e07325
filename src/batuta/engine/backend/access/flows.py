"""Flows and events. Events that come together share a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from batuta.authoring.backend import StartRequest
from batuta.clock import SECOND, Clock
from batuta.engine.backend.access.store import NativeAccess
from batuta.engine.backend.actor import Actor
from batuta.engine.backend.batching import Batches, until_known
from batuta.engine.backend.quotas import Guard
from batuta.engine.backend.schedule_api import NativeSchedules
from batuta.engine.backend.starts import unowned_run
from batuta.journal.flows.records import Accepted, NewEvent
from batuta.journal.records import NewRun
from batuta.journal.store import Store


class _Events(Batches[NewEvent, Accepted]):
    """Writes events, with the runs that they start."""

    name, rows, splits = "batuta-events", 200, True

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    def size(self, item: NewEvent) -> tuple[int, int]:
        return 1, len(item.event.payload) + sum(len(one.run.start) for one in item.starts)

    async def write(self, items: Sequence[NewEvent]) -> Sequence[Accepted]:
        return await until_known(lambda: self._store.accept_events(items))


class NativeFlows(NativeAccess):
    """Implements `authoring.services.FlowService` on a store."""

    def __init__(self, store: Store, actor: Actor, clock: Clock, guard: Guard, schedules: NativeSchedules) -> None:
        super().__init__(store, actor, clock)
        self.now = store.now
        self.schedule_row = schedules.new_row
        self._guard = guard
        self._events = _Events(store)

    def new_run(self, request: StartRequest, *, debounce: str = "", debounce_limit: float = 0.0) -> NewRun:
        new = unowned_run(request)
        if debounce:
            new.debounce, new.debounce_limit = debounce, round(debounce_limit * SECOND)
        return new

    async def accept(self, event: NewEvent, requests: Sequence[StartRequest] = ()) -> Accepted:
        if self._guard.awake and requests:
            return await self._guard.let_in(requests, partial(self._accept, event))
        return await self._accept(event)

    async def _accept(self, event: NewEvent) -> Accepted:
        return await self._events.add(event)
