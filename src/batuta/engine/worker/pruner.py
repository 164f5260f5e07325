"""Runs, and messages of the bus, are deleted when they have been kept for long enough."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager

from batuta.authoring.client.bus import prune_messages
from batuta.clock import SECOND
from batuta.engine.backend.actor import Actor
from batuta.engine.worker.background import BackgroundTask
from batuta.engine.worker.outage import Outage
from batuta.errors import InvalidInput
from batuta.ids import RunId, jitter
from batuta.journal.audit import Verb
from batuta.journal.retention import Pruned, Retention, kept_for, shortest, shown_age
from batuta.journal.store import Store
from batuta.settings import Settings

log = logging.getLogger("batuta.retention")

_FIRST_LIMIT, _LEAST, _MOST = 100, 10, 2_000
"""Runs that a step looks at."""
_SHORT, _LONG = 0.01, 0.04
"""Seconds. A quicker step looks at more rows the next time, a slower one at fewer."""
_SHORTEST_PAUSE = 0.005
_PRUNING = "deleting runs that were kept for long enough"
_MESSAGES = "deleting messages of the bus that were kept for long enough"
_IN_VAIN = 0.01
"""The share of the time that looking at runs which are still kept takes at most."""
_LONGEST_PAUSE = 3_600.0
EVENT = "event"
"""The name in rules of retention that stands for events."""
_EVENTS_AT_ONCE = 500
BY_HAND = 0.5
"""The share of the time that a person's own pruning takes at most."""


async def prune_by_hand(store: Store, actor: Actor, *, dry_run: bool) -> int:
    """Delete what workers would delete in their time, and write that into the audit log. Returns how many runs."""
    if not dry_run:
        await store.note_act("retention", actor.act(Verb.PRUNE))
    deleted = 0
    try:
        async for step in steps(store, BY_HAND, dry_run=dry_run):
            deleted += step.deleted
        if not dry_run:
            await prune_events(store)
    finally:
        if deleted and not dry_run:
            await store.note_act("retention", actor.act(Verb.PRUNE, after={"deleted": deleted}))
    return deleted


def declared_retention(rules: Sequence[Retention]) -> list[Retention]:
    """The retention rules of a worker. Raises InvalidInput."""
    found: dict[tuple[str, str], Retention] = {}
    for rule in rules:
        if not isinstance(rule, Retention):
            raise InvalidInput(f"{rule!r} is not a Retention(keep, workflow=..., state=...)")
        if found.setdefault((rule.workflow, rule.state), rule) != rule:
            raise InvalidInput(
                f"retention of workflow {rule.workflow!r} and state {rule.state!r} is given twice: give one"
            )
    return list(found.values())


async def set_retention(store: Store, rules: Sequence[Retention]) -> None:
    """See to it that the store has these rules. Others stay."""
    there = await store.retention() if rules else []
    for rule in rules:
        if rule not in there:
            log.info(
                "retention of %s, %s: %s", rule.workflow or "all", rule.state or "any state", shown_age(rule.seconds)
            )
            await store.set_retention(rule)


async def steps(store: Store, share: float, *, dry_run: bool = False) -> AsyncIterator[Pruned]:
    """Prune from the oldest run to the newest. No step takes long, and all together take `share` of the time at most:
    where the database is busy steps take longer, and so do the pauses."""
    last: RunId | None = None
    limit = _FIRST_LIMIT
    while True:
        step = await store.prune(limit, last, dry_run=dry_run)
        yield step
        last = step.last
        if last is None:
            return
        if step.busy < _SHORT:
            limit = min(limit * 2, _MOST)
        elif step.busy > _LONG:
            limit = max(limit // 2, _LEAST)
        await asyncio.sleep(max(step.busy * (1 / share - 1), _SHORTEST_PAUSE))


async def prune_events(store: Store) -> int:
    """Delete events that were kept for as long as the retention of workflow `event` says (or else the rule for all),
    and whose runs are gone. Returns how many."""
    keep = kept_for(await store.retention(), EVENT, "")
    deleted, last = 0, _EVENTS_AT_ONCE
    while keep is not None and last == _EVENTS_AT_ONCE:
        last = await store.prune_events(keep, _EVENTS_AT_ONCE)
        deleted += last
        await asyncio.sleep(_SHORTEST_PAUSE)
    return deleted


class Pruner(BackgroundTask):
    """Deletes what was kept for long enough, in the background. Every worker has one and none leads: the live worker
    with the smallest id does it, as each of them knows for itself. Two at once only do it faster."""

    task_name = "batuta-pruner"

    def __init__(
        self, store: Store, worker_id: str, settings: Settings, monotonic: Callable[[], float], outage: Outage
    ) -> None:
        self._store, self._worker_id, self._monotonic, self._outage = store, worker_id, monotonic, outage
        self._every, self._share = settings.prune_every, settings.prune_share
        self._keep_messages = round(settings.bus_keep * SECOND)
        self._pause = self._every

    async def _run(self) -> None:
        if self._store.poll_seconds is None and not await self._has_rules():
            # In memory a virtual clock may wait until all is idle: do not look when there are no rules. Messages are
            # deleted there by workers with subscriptions.
            return
        while True:
            await asyncio.sleep(self._pause * (0.5 + jitter()))
            self._pause = self._every
            with self._tried(_PRUNING):
                if not await self._is_mine():
                    continue
                with self._tried(_MESSAGES):
                    await prune_messages(self._store, self._keep_messages)
                if await self._has_rules():
                    await self._round()

    @contextmanager
    def _tried(self, doing: str) -> Iterator[None]:
        try:
            yield
            self._outage.worked(doing)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next round comes
            self._outage.failed(doing, error, holds=False)

    async def _has_rules(self) -> bool:
        return shortest(await self._store.retention()) is not None

    async def _is_mine(self) -> bool:
        live = [worker.worker_id for worker in await self._store.workers() if worker.live]
        return min(live, default="") == self._worker_id

    async def _round(self) -> None:
        deleted, looked, in_vain = 0, self._monotonic(), 0.0
        async for step in steps(self._store, self._share):
            deleted += step.deleted
            in_vain += 0.0 if step.deleted else step.busy
            if self._monotonic() - looked > self._every:
                looked = self._monotonic()
                if not await self._is_mine():
                    break
        self._pause = min(max(self._every, in_vain / _IN_VAIN), _LONGEST_PAUSE)
        events = await prune_events(self._store)
        if events:
            log.info("%d events were deleted: they had been kept for as long as they should be", events)
        if deleted:
            log.info("%d runs were deleted: they had been kept for as long as they should be", deleted)
