"""Queues as workers declare them, and their limits."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from batuta.authoring.client.queues import shown_limit
from batuta.authoring.queues import Queue
from batuta.errors import DuplicateDefinition, InvalidInput
from batuta.journal.queues import LIMITS, QueueLimits
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


def _difference(before: QueueLimits, after: QueueLimits) -> str:
    return ", ".join(
        f"{field} {shown_limit(getattr(before, field))} -> {shown_limit(getattr(after, field))}"
        for field in LIMITS
        if getattr(before, field) != getattr(after, field)
    )
