"""A worker: given its workflows and activities, it runs them until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from batuta.authoring.call_options import check_wait
from batuta.authoring.definitions import Activity, ExecutionMode, Workflow, activities_of, by_code
from batuta.authoring.failures.known_errors import KnownErrors
from batuta.authoring.failures.known_errors import check_can_be_found as check_errors_can_be_found
from batuta.authoring.jobs import Job, job_code
from batuta.authoring.queues import Queue
from batuta.authoring.schemas import schemas_of
from batuta.clock import SECOND, Clock
from batuta.durations import Duration
from batuta.engine.backend.claimability import Declared, why_unserved
from batuta.engine.backend.queues import declared_queues, set_limits
from batuta.engine.backend.schedule_rules import Plan
from batuta.engine.machine.routing import activity_code, routed_calls
from batuta.engine.machine.sagas import CompensationWorkflow
from batuta.engine.run.jobs import job_workflows
from batuta.engine.worker.committer import STORE_FAILED, probe
from batuta.engine.worker.dead_letter_alerts import Alerts, Hook
from batuta.engine.worker.gc_tuning import tune_collector
from batuta.engine.worker.middleware import MiddlewareStack, wrap_runs
from batuta.engine.worker.pruner import declared_retention, set_retention
from batuta.engine.worker.scheduler import reconcile
from batuta.engine.worker.session import Session
from batuta.engine.worker.waiters import Waiters
from batuta.errors import DuplicateDefinition, InvalidInput, StoreUnavailable, WorkerError
from batuta.ids import jitter
from batuta.journal.records import WorkerInfo
from batuta.journal.retention import Retention
from batuta.journal.server.documents import SCHEMAS
from batuta.journal.store import Store
from batuta.settings import Settings

log = logging.getLogger("batuta.engine")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_DAY = 86_400 * SECOND
_SCHEMAS_KEPT = 365 * _DAY
_QUIET = 60.0
"""Seconds after which a session is not held to be lost for the same reason as the one before."""


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
        middleware: MiddlewareStack | None = None,
    ) -> None:
        self.letters = Alerts(on_dead_letter)
        self._plans, self._middleware_stack = plans, middleware
        self._retention = declared_retention(retention)
        self._activities = _activities_by_name(activities)
        self._workflows = by_code(workflows)
        self.code = (
            wrap_runs(self._workflows | by_code([CompensationWorkflow(self._activities)]), middleware)
            | routed_calls(self._activities)
            | job_workflows(self._activities)
        )
        if isinstance(queues, str) or not queues:
            raise InvalidInput(f"queues={queues!r} must be a list of queue names, such as ['default']")
        self._declared = declared_queues(queues)
        self._queues = list(self._declared)
        self._rooms = {name: one.per_worker for name, one in self._declared.items() if one.per_worker is not None}
        self._store, self.settings, self._clock = store, settings, clock
        _check_transactional(store, self._activities.values())
        self._crew, self._waiters = crew, waiters
        self._stopping = False
        self._why_lost = ""
        self._known: KnownErrors
        self._opened_at, self._pause = -_QUIET, 0.0
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
        if self.settings.tune_collector:
            tune_collector()
        await reconcile(self._store, self._plans)
        await set_limits(self._store, self._declared.values())
        await set_retention(self._store, self._retention)
        await _publish_schemas(self._store, schemas_of(self._workflows, self._activities))
        self._known = KnownErrors.now()
        await self._warn_of_unserved_queues()
        session = self._new_session()
        await session.open()
        self.session = session
        self._crew.append(self)

    async def _warn_of_unserved_queues(self) -> None:
        declared: list[Declared] = []
        for name, one in self._activities.items():
            if one.options.queue is not None:
                code = job_code(name) if isinstance(one, Job) else activity_code(name)
                declared.append(Declared(code.replace(":", " ", 1), code, one.options.queue))
        works = ((f"schedule {id}", plan.work) for id, plan in self._plans.items())
        declared += [Declared(what, work.code or work.name, work.queue) for what, work in works]
        if declared:
            me = WorkerInfo(worker_id="", queues=self._queues, code=dict.fromkeys(self.code, ""))
            live = [worker for worker in await self._store.workers() if worker.live]
            for sentence in why_unserved(declared, [me, *live]):
                log.warning("%s", sentence)

    async def stop(self, grace: Duration | None = None) -> None:
        """Hand back idle runs at once, wait for activities in flight, and leave.

        `grace`: how long to wait for them, in seconds or as a timedelta; without it, as the settings say.

        Called again while a stop is under way, it cuts the waiting short.
        """
        patience = self.settings.grace if grace is None else check_wait("grace", grace)
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
                await self._closing.close(patience)
                await self.letters.close()
            finally:
                self._closing = None
                if not self._crew:
                    self._waiters.outage.forget()

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
            self.settings,
            self._clock,
            self._lost,
            self._waiters,
            self.letters,
            self._known,
            self._middleware_stack,
        )

    def _lost(self, why: str) -> None:
        """The session dropped everything. Register anew, as another worker."""
        self._why_lost = why
        if self._clock.monotonic() - self._opened_at > _QUIET:
            self._pause = 0.0
        if self in self._crew and not self._stopping and (self._reopening is None or self._reopening.done()):
            self._reopening = asyncio.get_running_loop().create_task(self._reopen())

    async def _reopen(self) -> None:
        while not self._stopping:
            try:
                await self._let_go()
                await self._back_off()
                if self._why_lost == STORE_FAILED:
                    await self._store.close()
                    await self._store.open()
                session = self._new_session()
                # Who cannot commit, or beat, must not execute anything: it takes no runs before both work.
                await probe(self._store, session.info.worker_id)
                await session.open(beaten=True)
                self.session = session
                if not session.over:  # it may have been lost while it was opened
                    self._waiters.outage.over()
                    return
            except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
                self._waiters.outage.failed("registering this worker", error)
                if isinstance(error, StoreUnavailable):
                    self._pause = 0.0
                    await asyncio.sleep(0.5 + jitter())

    async def _let_go(self) -> None:
        """Release the runs of a lost session. Runs that it was executing count a death; the others do not."""
        old = self.session
        if old is not None:
            await old.abandoned()
            if old.in_hand:
                await self._store.give_up(old.info.worker_id, old.in_hand, self._why_lost)
            await self._store.retire(old.info.worker_id)
            self.session = None

    async def _back_off(self) -> None:
        """At once the first time; a session that is lost again and again is opened ever less often."""
        pause, self._pause = self._pause, min(max(_FIRST_PAUSE, self._pause * 2), _LONGEST_PAUSE)
        if pause:
            await asyncio.sleep(pause * (0.5 + jitter()))
        self._opened_at = self._clock.monotonic()


def _activities_by_name(things: Sequence[object]) -> dict[str, Activity[..., Any]]:
    found: dict[str, Activity[..., Any]] = {}
    for thing in things:
        for activity in activities_of(thing):
            if found.setdefault(activity.name, activity) is not activity:
                raise DuplicateDefinition(f"two activities are named {activity.name!r}: give one another name=")
            _ = activity.codec  # a bad annotation of a method is found here
            check_errors_can_be_found(activity.raises, f"activity {activity.name!r}")
            if activity.execution_mode is ExecutionMode.PROCESS:
                _check_can_be_found(activity)
    return found


def _check_transactional(store: Store, activities: Iterable[Activity[..., Any]]) -> None:
    for activity in activities:
        if activity.execution_mode is ExecutionMode.STORE and (why := store.why_not_transactional(activity.is_async)):
            raise InvalidInput(f"activity {activity.name!r} is transactional and {why}")


async def _publish_schemas(store: Store, schemas: dict[str, str]) -> None:
    """Write the JSON schemas of workflows and jobs, for forms: those that are new, have changed, or are a day old."""
    known = {one.key: one for one in await store.documents(SCHEMAS)} if schemas else {}
    changed = {
        name: body
        for name, body in schemas.items()
        if name not in known or known[name].body != body or known[name].age > _DAY
    }
    if changed:
        await store.put_documents(SCHEMAS, changed, _SCHEMAS_KEPT)


def _check_can_be_found(activity: Activity[..., Any]) -> None:
    fn = activity.fn
    found = getattr(sys.modules.get(fn.__module__), fn.__qualname__, None)
    if found is not fn and getattr(found, "fn", None) is not fn:
        raise InvalidInput(
            f"activity {activity.name!r} has process=True, and module {fn.__module__!r} has something else as "
            f"{fn.__qualname__!r}: another process could not find it"
        )
