"""Flows and events. Events that come together share a transaction."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from batuta.authoring.backend import StartRequest
from batuta.authoring.client.schedules import Schedule
from batuta.clock import SECOND
from batuta.engine.backend.actor import Actor
from batuta.engine.backend.quotas import Guard
from batuta.engine.backend.schedule_api import NativeSchedules
from batuta.engine.backend.start_batching import until_known
from batuta.engine.backend.starts import unowned_run
from batuta.journal.audit import Act, Verb
from batuta.journal.flows.records import Accepted, NewEvent
from batuta.journal.records import NewRun
from batuta.journal.schedules import ScheduleRow
from batuta.journal.store import Store

_MOST, _BYTES = 200, 4 * 1024 * 1024
"""Of a transaction."""


class NativeFlows:
    """Implements `authoring.client.flows.FlowService` on a store."""

    def __init__(self, store: Store, actor: Actor, guard: Guard, schedules: NativeSchedules) -> None:
        self._store, self._actor, self._guard, self._schedules = store, actor, guard, schedules
        self._waiting: deque[tuple[NewEvent, asyncio.Future[Accepted]]] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def namespace(self) -> str:
        return self._store.namespace

    @property
    def store(self) -> Store:
        return self._store

    documents = store

    def act(self, verb: Verb, reason: str = "", *, before: Any = None, after: Any = None) -> Act:
        return self._actor.act(verb, reason, before=before, after=after)

    async def now(self) -> int:
        return await self._store.now()

    async def schedule_row(self, schedule: Schedule) -> ScheduleRow:
        return await self._schedules.new_row(schedule)

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
        future: asyncio.Future[Accepted] = asyncio.get_running_loop().create_future()
        self._waiting.append((event, future))
        if self._task is None:
            # Not in the sender's context: it writes for others, too.
            context = contextvars.Context()
            self._task = asyncio.get_running_loop().create_task(
                self._write_all(), name="batuta-events", context=context
            )
        return await future

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                batch = self._next_batch()
                if batch:
                    await self._write(batch)
        finally:
            self._task = None

    def _next_batch(self) -> list[tuple[NewEvent, asyncio.Future[Accepted]]]:
        batch: list[tuple[NewEvent, asyncio.Future[Accepted]]] = []
        size = 0
        while self._waiting and len(batch) < _MOST and size < _BYTES:
            event, future = self._waiting.popleft()
            if not future.done():  # else its sender was cancelled, and nothing was written
                batch.append((event, future))
                size += len(event.event.payload) + sum(len(one.run.start) for one in event.starts)
        return batch

    async def _write(self, batch: list[tuple[NewEvent, asyncio.Future[Accepted]]]) -> None:
        events = [event for event, _ in batch]
        try:
            found = await until_known(lambda: self._store.accept_events(events))
        except BaseException as error:
            if len(batch) > 1 and isinstance(error, Exception):  # one of them may be to blame
                for one in batch:
                    await self._write([one])
                return
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for (_, future), accepted in zip(batch, found, strict=True):
            if not future.done():
                future.set_result(accepted)
