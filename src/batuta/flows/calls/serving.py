"""A worker of flows. It learns what those need that are published while it works: queues, and topics of the bus."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self
from uuid import UUID

from msgspec import Struct

from batuta.authoring.services import FlowService
from batuta.clock import SECOND
from batuta.durations import Duration
from batuta.errors import BatutaError, InvalidInput, PayloadSealed
from batuta.flows.calls import starters
from batuta.flows.calls.reading import Client
from batuta.flows.calls.triggers import queue_of
from batuta.flows.rows import document_of
from batuta.flows.workflow import Flows as WorkerFlows
from batuta.journal.flows.records import FlowFilter, FlowRow

log = logging.getLogger("batuta.flows")

LOOK: Final = 2.0
"""Seconds between two looks for flows that changed."""
_LATE: Final = 60 * SECOND
"""A flow may be seen so much later than its row says: it is looked for again."""
_PAGE: Final = 1_000
_LISTS: Final = ("workflows", "activities", "jobs", "queues", "subscriptions")
_ONCE: Final = (*_LISTS, "schedules", "retention", "webhooks")
"""Parts of the first worker alone."""


class Needs(Struct):
    """Queues and subscriptions that some flows need, beside the interpreter."""

    queues: set[str] = set()
    topics: set[tuple[str, str]] = set()
    """Topic, and name of the flow."""

    def without(self, served: Needs) -> Needs:
        return Needs(self.queues - served.queues, self.topics - served.topics)

    def add(self, more: Needs) -> None:
        self.queues |= more.queues
        self.topics |= more.topics


def needs_of(rows: Iterable[FlowRow]) -> Needs:
    """Of those that are active."""
    found = Needs()
    for row in rows:
        try:
            trigger = starters.trigger_of(document_of(row)) if row.is_active else None
        except PayloadSealed as error:  # it must not keep the worker from its other flows
            log.error("%s", error)
            continue
        if trigger is None:
            continue
        if trigger.concurrency is not None and trigger.concurrency.overlap == "queue":
            found.queues.add(queue_of(trigger.concurrency.limit))
        if trigger.topic:
            found.topics.add((trigger.topic, row.name))
    return found


def parts_of(flows: WorkerFlows, made: starters.Starters, needs: Needs) -> dict[str, Any]:
    """The arguments of a worker."""
    subscriptions = [made.subscription(topic, name) for topic, name in sorted(needs.topics)]
    more: dict[str, Any] = {"subscriptions": subscriptions} if subscriptions else {}
    return {**flows.parts(), "jobs": [made], "queues": ["default", *sorted(needs.queues)], **more}


def joined_lists(ours: Sequence[Any] | None, own: Sequence[Any] | None) -> list[Any]:
    """Each once."""
    return list({id(one) if not isinstance(one, str) else one: one for one in (*(ours or ()), *(own or ()))}.values())


class FlowWorker:
    """A worker, and more of them for what flows need that are published later. Made by `client.worker(flows=...)`."""

    def __init__(self, client: Client, backend: FlowService, flows: WorkerFlows, own: Mapping[str, Any]) -> None:
        """`own`: what the worker has beside flows, and its settings."""
        self._client, self._backend, self._flows, self._own = client, backend, flows, own
        self._made = starters.Starters(client.flows)
        self._served, self._seen = Needs(), dict[UUID, int]()
        self._since = 0
        self._workers: list[Any] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Begin to work. Raises what a worker raises."""
        self._since = await self._backend.now()
        needs = needs_of(await active_rows(self._backend))
        parts = parts_of(self._flows, self._made, needs)
        lists = {name: joined_lists(parts.get(name), self._own.get(name)) for name in _LISTS}
        await self._begin({**self._own, **lists})
        self._served.add(needs)
        self._task = asyncio.create_task(self._watch(), name="batuta-flows")

    async def stop(self, grace: Duration | None = None) -> None:
        """Stop as a worker does."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await asyncio.gather(*(one.stop(grace) for one in self._workers))

    async def run(self) -> None:
        """Work until the task is cancelled."""
        async with self:
            await asyncio.Event().wait()

    async def _begin(self, parts: dict[str, Any]) -> None:
        worker = self._client.worker(**parts)
        try:
            await worker.start()
        except BaseException:
            await worker.stop()
            raise
        self._workers.append(worker)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            try:
                await self._look()
            except Exception as error:  # noqa: BLE001 - it must not keep the worker from flows that are published later
                level = logging.WARNING if isinstance(error, BatutaError) else logging.ERROR
                log.log(level, "looking for flows that were published: %r", error)

    async def _look(self) -> None:
        """Serve what flows need that were written since the last look. What fails is looked at again."""
        found = await self._changed()
        missing = needs_of(found).without(self._served)
        ready = Needs(missing.queues, await self._kept_for(missing.topics))
        if ready.queues or ready.topics:
            settings = {name: value for name, value in self._own.items() if name not in _ONCE}
            parts = parts_of(self._flows, self._made, ready)
            if not ready.topics:
                parts["queues"] = sorted(ready.queues)  # the first worker serves `default`; deliveries need it, too
            await self._begin({**settings, **parts})
            self._served.add(ready)
        if ready.topics == missing.topics:
            self._since = max([self._since, *(row.updated_at for row in found)])
            self._seen |= {row.workflow_id: row.revision for row in found}

    async def _kept_for(self, topics: set[tuple[str, str]]) -> set[tuple[str, str]]:
        """Those of which messages are kept. One that is refused keeps no other from being served."""
        kept = set()
        for topic, name in sorted(topics):
            try:
                await self._client.keep_for(self._made.subscription(topic, name))
            except InvalidInput as error:
                log.error("flow %r gets no messages of topic %r: %s", name, topic, error)
            else:
                kept.add((topic, name))
        return kept

    async def _changed(self) -> list[FlowRow]:
        """Flows that were written since the last look."""
        found: list[FlowRow] = []
        since = self._since - _LATE
        while True:
            page = await self._backend.store.changed_flows(since, _PAGE)
            found += [row for row in page if self._seen.get(row.workflow_id) != row.revision]
            if len(page) < _PAGE or page[-1].updated_at == since:
                break
            since = page[-1].updated_at
        return found


async def active_rows(backend: FlowService) -> list[FlowRow]:
    found: list[FlowRow] = []
    after: tuple[str, int] | None = None
    while page := await backend.store.flows(FlowFilter(active=True), after, 200):
        found += page
        after = page[-1].name, page[-1].version
    return found
