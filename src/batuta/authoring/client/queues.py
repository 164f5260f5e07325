"""Queues as operators see and change them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batuta.authoring.services import StoreAccess
from batuta.journal.audit import Verb
from batuta.journal.queues import QueueInfo, QueueLimits, Rate


class Queues:
    """The queues of the namespace: the verbs of `Batuta` about them."""

    def __init__(self, access: StoreAccess) -> None:
        self._act, self._store = access.act, access.store

    async def list(self) -> Sequence[QueueInfo]:
        return await self._store.queues()

    async def pause(self, name: str, paused: bool, reason: str = "") -> None:
        verb = Verb.PAUSE_QUEUE if paused else Verb.RESUME_QUEUE
        before = await self._find(name)
        was, is_now = {"paused": before.paused, "reason": before.reason}, {"paused": paused, "reason": reason}
        if was != is_now:
            await self._store.pause_queue(name, paused, reason, self._act(verb, reason, before=was, after=is_now))

    async def limit(self, name: str, changes: dict[str, Any]) -> None:
        """Set some limits, as `journal.queues.QueueLimits` has them, and leave the others."""
        there = await self._find(name)
        before = {limit: shown_limit(getattr(there, limit)) for limit in changes}
        after = {limit: shown_limit(value) for limit, value in changes.items()}
        if any(getattr(there, limit) != value for limit, value in changes.items()):
            act = self._act(Verb.LIMIT_QUEUE, before=before, after=after)
            await self._store.limit_queue(name, QueueLimits(**changes), changes, act)

    async def _find(self, name: str) -> QueueInfo:
        """The queue of this name; without limits, runs and workers when the store knows none."""
        return next((queue for queue in await self._store.queues() if queue.name == name), QueueInfo(name))


def shown_limit(limit: int | Rate | None) -> str:
    return "none" if limit is None else str(limit)
