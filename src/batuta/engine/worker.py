"""A worker: given its workflows and activities, it runs them until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from batuta.authoring.definitions import Activity, Place, Workflow, activities_of, by_code
from batuta.authoring.queues import Queue
from batuta.authoring.retention import Retention
from batuta.clock import Clock
from batuta.engine.alerts import Alerts, Hook
from batuta.engine.around import Around, around_runs
from batuta.engine.collector import tune_collector
from batuta.engine.committer import STORE_FAILED
from batuta.engine.jobs import job_workflows
from batuta.engine.queues import declared_queues, set_limits
from batuta.engine.retention import declared_retention, set_retention
from batuta.engine.routes import routed_calls
from batuta.engine.schedules import reconcile
from batuta.engine.session import Session
from batuta.engine.slots import Plan
from batuta.engine.waiters import Waiters
from batuta.errors import DuplicateDefinition, InvalidInput, StoreError, WorkerError
from batuta.ids import jitter
from batuta.journal.store import Store
from batuta.settings import Settings

log = logging.getLogger("batuta.engine")


class Worker:
    """Runs workflows and their activities on this event loop. An async context manager."""

    def __init__(
        self,
        store: Store,
        workflows: Sequence[Workflow[..., Any]],
        activities: Sequence[object],
        queues: Sequence[str | Queue],
        settings: Settings,
        clock: Clock,
        crew: list[Worker],
        waiters: Waiters,
        plans: Mapping[str, Plan],
        on_dead_letter: Hook | None = None,
        retention: Sequence[Retention] = (),
        around: Around | None = None,
    ) -> None:
        self.letters = Alerts(on_dead_letter)
        self._plans, self._around = plans, around
        self._retention = declared_retention(retention)
        self._activities = _activities_by_name(activities)
        self.code = (
            around_runs(by_code(workflows), around) | routed_calls(self._activities) | job_workflows(self._activities)
        )
        if isinstance(queues, str) or not queues:
            raise InvalidInput(f"queues={queues!r} must be a list of queue names, such as ['default']")
        self._declared = declared_queues(queues)
        self._queues = list(self._declared)
        self._rooms = {name: one.per_worker for name, one in self._declared.items() if one.per_worker is not None}
        self._store, self._settings, self._clock = store, settings, clock
        _check_transactional(store, self._activities.values())
        self._crew, self._waiters = crew, waiters
        self._stopping = False
        self._why_lost = ""
        self._reopening: asyncio.Task[None] | None = None
        self.session: Session | None = None
        self._closing: Session | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Register and begin to work. Raises StoreUnavailable when the store is away."""
        if self.session is not None:
            raise WorkerError("this worker has been started already")
        for sentence in Settings.strange_variables():
            log.warning("%s", sentence)
        if self._settings.tune_collector:
            tune_collector()
        await reconcile(self._store, self._plans)
        await set_limits(self._store, self._declared.values())
        await set_retention(self._store, self._retention)
        session = self._new_session()
        await session.open()
        self.session = session
        self._crew.append(self)

    async def stop(self, grace: float | None = None) -> None:
        """Hand back idle runs at once, wait up to `grace` seconds for activities in flight, and leave.

        Called again while a stop is under way, it cuts the waiting short.
        """
        if self._closing is not None:
            self._closing.hurry()
            return
        self._stopping = True
        if self._reopening is not None:
            self._reopening.cancel()
            await asyncio.gather(self._reopening, return_exceptions=True)
        if self in self._crew:
            self._crew.remove(self)
        self._closing, self.session = self.session, None
        if self._closing is not None:
            try:
                await self._closing.close(self._settings.grace if grace is None else grace)
                await self.letters.close()
            finally:
                self._closing = None

    async def run(self) -> None:
        """Work until cancelled."""
        async with self:
            await asyncio.Event().wait()

    def _new_session(self) -> Session:
        return Session(
            self._store,
            self.code,
            self._activities,
            self._queues,
            self._rooms,
            self._settings,
            self._clock,
            self._lost,
            self._waiters,
            self.letters,
            self._around,
        )

    def _lost(self, why: str) -> None:
        """The session dropped everything. Register anew, as another worker."""
        self._why_lost = why
        if self in self._crew and not self._stopping and (self._reopening is None or self._reopening.done()):
            self._reopening = asyncio.get_running_loop().create_task(self._reopen())

    async def _reopen(self) -> None:
        while not self._stopping:
            old = self.session
            try:
                if old is not None:
                    await old.abandoned()
                    await self._store.retire(old.info.worker_id)  # what it still owns is free; nobody died
                    self.session = None
                if self._why_lost == STORE_FAILED:
                    await self._store.close()
                    await self._store.open()
                session = self._new_session()
                await session.open()
                self.session = session
                if not session.over:  # it may have been lost while it was opened
                    return
            except StoreError as error:
                log.warning("cannot register: %s", error)
            except Exception:
                log.exception("cannot register")
            await asyncio.sleep(0.5 + jitter())


def _activities_by_name(things: Sequence[object]) -> dict[str, Activity[..., Any]]:
    found: dict[str, Activity[..., Any]] = {}
    for thing in things:
        for activity in activities_of(thing):
            if found.setdefault(activity.name, activity) is not activity:
                raise DuplicateDefinition(f"two activities are named {activity.name!r}: give one another name=")
            _ = activity.codec  # a bad annotation of a method is found here
            if activity.place is Place.PROCESS:
                _check_can_be_found(activity)
    return found


def _check_transactional(store: Store, activities: Iterable[Activity[..., Any]]) -> None:
    for activity in activities:
        if activity.place is Place.STORE and (why := store.why_not_transactional(activity.is_async)):
            raise InvalidInput(f"activity {activity.name!r} is transactional and {why}")


def _check_can_be_found(activity: Activity[..., Any]) -> None:
    fn = activity.fn
    found = getattr(sys.modules.get(fn.__module__), fn.__qualname__, None)
    if found is not fn and getattr(found, "fn", None) is not fn:
        raise InvalidInput(
            f"activity {activity.name!r} has process=True, and module {fn.__module__!r} has something else as "
            f"{fn.__qualname__!r}: another process could not find it"
        )
