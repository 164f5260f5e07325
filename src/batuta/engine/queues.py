"""Queues: limits that are declared with a worker, and what is told of each."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from batuta.authoring.backend import as_datetime
from batuta.authoring.names import check_name
from batuta.authoring.queues import Queue, QueueInfo, merged_limits, shown_rate
from batuta.engine.acting import Actor
from batuta.errors import DuplicateDefinition, InvalidInput
from batuta.journal.acts import Verb
from batuta.journal.queues import QueueLimits, QueueView, Rate
from batuta.journal.store import Store

log = logging.getLogger("batuta.engine")


def declared_queues(queues: Sequence[str | Queue]) -> dict[str, Queue]:
    """By name. Raises InvalidInput, DuplicateDefinition."""
    found: dict[str, Queue] = {}
    for one in queues:
        queue = one if isinstance(one, Queue) else Queue(check_name(one, "queue"))
        if found.setdefault(queue.name, queue) != queue:
            raise DuplicateDefinition(f"queue {queue.name!r} is given twice, with other limits: give it once")
    if not found:
        raise InvalidInput("queues=[] must be a list of queue names, such as ['default']")
    return found


async def set_limits(store: Store, queues: Iterable[Queue]) -> None:
    """Bring the limits in the store to what is declared. What is not declared stays."""
    declared = {queue.name: changes for queue in queues if (changes := queue.changes())}
    if not declared:
        return
    there = {view.name: view.limits for view in await store.queues()}
    for name, changes in declared.items():
        before = there.get(name, QueueLimits())
        after = merged_limits(before, changes)
        if after != before:
            log.info("the limits of queue %s change: %s", name, _difference(before, after))
            await store.limit_queue(name, after, changes)


async def change_limits(store: Store, name: str, changes: dict[str, Any], actor: Actor) -> None:
    """Set some of a queue's limits and leave the others."""
    there = next((view.limits for view in await store.queues() if view.name == name), QueueLimits())
    limits = QueueLimits(**changes)
    before, after = ({limit: _shown(getattr(each, limit)) for limit in changes} for each in (there, limits))
    if any(getattr(there, limit) != getattr(limits, limit) for limit in changes):
        await store.limit_queue(name, limits, changes, actor.act(Verb.LIMIT_QUEUE, before=before, after=after))


def _difference(before: QueueLimits, after: QueueLimits) -> str:
    fields = QueueLimits.__struct_fields__
    return ", ".join(
        f"{field} {_shown(getattr(before, field))} -> {_shown(getattr(after, field))}"
        for field in fields
        if getattr(before, field) != getattr(after, field)
    )


def _shown(limit: int | Rate | None) -> str:
    return "none" if limit is None else str(shown_rate(limit) if isinstance(limit, Rate) else limit)


def queue_info(view: QueueView) -> QueueInfo:
    limits = view.limits
    return QueueInfo(
        name=view.name,
        paused=view.paused,
        note=view.note,
        concurrency=limits.concurrency,
        key_concurrency=limits.key_concurrency,
        rate=shown_rate(limits.rate),
        key_rate=shown_rate(limits.key_rate),
        ready=view.ready,
        delayed=view.delayed,
        running=view.running,
        oldest=as_datetime(view.oldest),
        workers=view.workers,
    )
