"""Queues: declared limits, changes by operators, and their descriptions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from batuta.authoring.client.queues import Queue
from batuta.engine.backend.actor import Actor
from batuta.errors import DuplicateDefinition, InvalidInput
from batuta.journal.audit import Verb
from batuta.journal.queues import LIMITS, QueueInfo, QueueLimits, Rate
from batuta.journal.store import Store
from batuta.names import check_name

log = logging.getLogger("batuta.engine")


def declared_queues(queues: Sequence[str | Queue]) -> dict[str, Queue]:
    """By name. Raises InvalidInput, DuplicateDefinition."""
    found: dict[str, Queue] = {}
    for one in queues:
        queue = one if isinstance(one, Queue) else Queue(check_name(one, "queue"))
        if found.setdefault(queue.name, queue) != queue:
            raise DuplicateDefinition(f"queue {queue.name!r} is given twice, with different limits: give it once")
    if not found:
        raise InvalidInput("queues=[] must be a list of queue names, such as ['default']")
    return found


async def set_limits(store: Store, queues: Iterable[Queue]) -> None:
    """Set the declared limits in the store. Other limits stay."""
    declared = {queue.name: changes for queue in queues if (changes := queue.changes())}
    if not declared:
        return
    there = {queue.name: queue.only(LIMITS) for queue in await store.queues()}
    for name, changes in declared.items():
        before = there.get(name, QueueLimits())
        after = replace(before, **changes)
        if after != before:
            log.info("the limits of queue %s change: %s", name, _difference(before, after))
            await store.limit_queue(name, after, changes)


class NativeQueues:
    """Implements `authoring.services.QueueService` on a store."""

    def __init__(self, store: Store, actor: Actor) -> None:
        self._store, self._actor = store, actor

    async def list(self) -> Sequence[QueueInfo]:
        return await self._store.queues()

    async def pause(self, name: str, paused: bool, reason: str) -> None:
        verb = Verb.PAUSE_QUEUE if paused else Verb.RESUME_QUEUE
        before = await self._find(name)
        was, is_now = {"paused": before.paused, "reason": before.reason}, {"paused": paused, "reason": reason}
        if was != is_now:
            await self._store.pause_queue(name, paused, reason, self._actor.act(verb, reason, before=was, after=is_now))

    async def limit(self, name: str, changes: dict[str, Any]) -> None:
        there = await self._find(name)
        before = {limit: _shown(getattr(there, limit)) for limit in changes}
        after = {limit: _shown(value) for limit, value in changes.items()}
        if any(getattr(there, limit) != value for limit, value in changes.items()):
            act = self._actor.act(Verb.LIMIT_QUEUE, before=before, after=after)
            await self._store.limit_queue(name, QueueLimits(**changes), changes, act)

    async def _find(self, name: str) -> QueueInfo:
        """The queue of this name; without limits, runs and workers when the store knows none."""
        return next((queue for queue in await self._store.queues() if queue.name == name), QueueInfo(name))


def _difference(before: QueueLimits, after: QueueLimits) -> str:
    return ", ".join(
        f"{field} {_shown(getattr(before, field))} -> {_shown(getattr(after, field))}"
        for field in LIMITS
        if getattr(before, field) != getattr(after, field)
    )


def _shown(limit: int | Rate | None) -> str:
    return "none" if limit is None else str(limit)
