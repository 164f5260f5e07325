"""One life of a run: from its start to its end, with a worker that may die at a given point."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from batuta import failpoints, ids
from batuta.authoring.activity.attempt import activity_info
from batuta.authoring.client.handle import Handle
from batuta.authoring.definitions import Activity, ExecutionMode, Workflow
from batuta.authoring.jobs import Job
from batuta.durations import Duration
from batuta.errors import InvalidInput, OutcomeUnknown, RunNotCompleted, StoreUnavailable
from batuta.ids import RunId
from batuta.journal.entries import EntryKind, decode_body
from batuta.journal.records import RunFilter, RunKind
from batuta.journal.store import Store
from batuta.stores.memory import MemoryDatabase, MemoryStore
from batuta.testing.doubles import doubles_of, with_doubles
from batuta.testing.environment import Environment
from batuta.testing.stores import FragileMemoryStore, LonelySqliteStore
from batuta.verify import verify

Script = Callable[[Environment, Handle[Any]], Awaitable[object]]
Call = tuple[RunId, int]

_NOT_THE_WORKERS = ("enqueue.", "lease.", "recover.", "stop.")
"""Sites that a client passes, or a worker that is not at work."""
_SEED = 4711


@dataclass(frozen=True)
class Point:
    """A passage of a failpoint: which one, counted from 1."""

    site: str
    passage: int

    def __str__(self) -> str:
        return f"{self.site}, passage {self.passage} ({failpoints.SITES[self.site]})"


@dataclass
class Life:
    """What happened in one life."""

    ending: Any = None
    """The result, or the RunNotCompleted that was raised."""
    passed: list[Point] = field(default_factory=list)
    """By every worker; each one's passages are counted from 1."""
    killed: list[Point] = field(default_factory=list)
    passed_by_heir: list[Point] = field(default_factory=list)
    """Those of `passed` that came after the last death."""
    executed: Counter[tuple[Call, str, int]] = field(default_factory=Counter)
    """How often each attempt of each activity call was begun."""
    wrong: list[str] = field(default_factory=list)

    @property
    def again(self) -> Counter[str]:
        """Executions of attempts that had been begun before, by activity."""
        found: Counter[str] = Counter()
        for (_, name, _), times in self.executed.items():
            if times > 1:
                found[name] += times - 1
        return found


def comparable(ending: Any) -> Any:
    """Errors are equal when their texts are."""
    return (type(ending), str(ending)) if isinstance(ending, RunNotCompleted) else ending


async def ending_of(env: Environment, handle: Handle[Any]) -> Any:
    """The result, or the RunNotCompleted that is raised. Raises Stuck when a run lacks an activity."""
    try:
        return await env.result_of(handle, patience=1)
    except RunNotCompleted as error:
        return error


async def violations(env: Environment) -> list[str]:
    """What `verify` finds wrong."""
    report = await verify(env.store, env.workflows)
    return [f"{one.invariant}: run {one.id!r}: {one.what}" for one in report.violations]


_log = logging.getLogger("batuta.engine")


class Killed(BaseException):
    """Raised into the code of a dying worker: nothing catches it, nothing goes on."""


class Killer:
    """Watches the failpoints that a worker passes, and kills it at given ones. Another takes over."""

    def __init__(self, env: Environment, life: Life, targets: Sequence[Point], downtime: Duration) -> None:
        self._env, self._life, self._targets, self._downtime = env, life, list(targets), downtime
        self._counted: Counter[str] = Counter()
        self._recovering: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def pass_by(self, site: str) -> None:
        session = self._env.worker.session
        if session is None or session.over or self._recovering is not None or site.startswith(_NOT_THE_WORKERS):
            return
        self._counted[site] += 1
        point = Point(site, self._counted[site])
        self._life.passed.append(point)
        if self._life.killed:
            self._life.passed_by_heir.append(point)
        if self._targets and point == self._targets[0]:
            self._targets.pop(0)
            self._life.killed.append(point)
            self._life.passed_by_heir.clear()
            self._kill_from_anywhere()
            raise Killed(site)

    def _kill_from_anywhere(self) -> None:
        if threading.get_ident() == self._thread:
            self._kill()
            return
        done = threading.Event()
        self._loop.call_soon_threadsafe(self._kill)
        self._loop.call_soon_threadsafe(done.set)
        done.wait()

    def _kill(self) -> None:
        session = self._env.worker.session
        if session is not None:
            session.abandon()
        self._counted.clear()  # of the next worker, passages are counted from 1 again
        self._recovering = self._loop.create_task(self._recover())

    async def _recover(self) -> None:
        try:
            await self._env.take_over(self._downtime)
        finally:
            self._recovering = None

    async def recovered(self) -> None:
        """Wait until a worker is there."""
        while self._recovering is not None:
            await asyncio.gather(self._recovering)


class _Place(Environment):
    """An environment whose store passes all failpoints, at a given place."""

    file: Path | None = None

    def make_store(self, database: MemoryDatabase) -> MemoryStore:
        return FragileMemoryStore(database)

    async def _made_store(self, *, virtual: bool) -> Store:
        if self.file is None:
            return await super()._made_store(virtual=virtual)
        return LonelySqliteStore(self.file, clock=self._clock)


@dataclass
class Plan:
    """The scenario that is run again and again."""

    work: Any
    input: tuple[Any, ...]
    activities: Callable[[], Sequence[object]]
    environment: dict[str, Any]
    script: Script | None
    downtime: Duration

    @classmethod
    def of(
        cls,
        work: Any,
        input: tuple[Any, ...],  # noqa: A002 - its own word
        activities: Sequence[object] | Callable[[], Sequence[object]],
        workflows: Sequence[Workflow[..., Any]],
        environment: dict[str, Any],
        script: Script | None,
        downtime: Duration = 0.0,
    ) -> Self:
        """Activities are made, and doubles reset, for each life. Raises InvalidInput."""
        jobs = list(environment.pop("jobs", ()))
        if isinstance(work, Job):
            jobs.append(work)
        elif isinstance(work, Workflow):
            workflows = [work, *workflows]
        else:
            raise InvalidInput(f"{work!r} is neither a workflow nor a job")

        def fresh() -> Sequence[object]:
            given = [*(activities() if callable(activities) else activities), *jobs]
            for one in doubles_of(given):
                one.reset()
            return given

        return cls(work, input, fresh, {"workflows": workflows, **environment}, script, downtime)

    async def live(self, life: Life, targets: Sequence[Point], file: Path | None) -> None:
        """From start to end; `file`: an empty SQLite database for it."""
        asyncio.get_running_loop().set_exception_handler(_forgive_the_killed)
        _log.addFilter(_is_of_the_living)
        counted = [_counted(one, life) for one in with_doubles(self.activities())]
        env = _Place(activities=counted, **self.environment)
        env.file = file
        try:
            async with env:
                killer = Killer(env, life, targets, self.downtime)
                failpoints.observe(killer.pass_by)
                await self._live(env, life, killer)
        finally:
            _log.removeFilter(_is_of_the_living)
            failpoints.arm()
            ids.foresee(None)

    async def _live(self, env: Environment, life: Life, killer: Killer) -> None:
        handle = await self._begin(env, killer)
        if self.script is not None:
            await self.script(env, handle)
        life.ending = await ending_of(env, handle)
        await env.settle()
        await killer.recovered()
        failpoints.arm()
        life.wrong += await violations(env)
        life.wrong += await _unexecuted(env.store, life)

    async def _begin(self, env: Environment, killer: Killer) -> Handle[Any]:
        """As a client does: again, under the same id, when the answer is lost."""
        while True:
            ids.foresee(_SEED)
            try:
                return await env.begin(self.work, *self.input, id="swept")
            except (OutcomeUnknown, StoreUnavailable):
                await killer.recovered()


def _forgive_the_killed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), Killed):
        loop.default_exception_handler(context)


def _is_of_the_living(record: logging.LogRecord) -> bool:
    """A turn in which the worker was killed looks to the engine like one that failed."""
    return f"its turn failed: {Killed.__name__}: " not in record.getMessage()


def _counted(activity: Activity[..., Any], life: Life) -> Activity[..., Any]:
    """The activity, with its executions counted. A process activity runs in a thread."""
    fn = activity.fn

    def count() -> None:
        info = activity_info()
        life.executed[(info.run_id, info.seq), info.name, info.attempt] += 1

    @functools.wraps(fn)
    async def on_the_loop(*args: Any, **kwargs: Any) -> Any:
        count()
        return await fn(*args, **kwargs)

    @functools.wraps(fn)
    def in_a_thread(*args: Any, **kwargs: Any) -> Any:
        count()
        return fn(*args, **kwargs)

    codec, twin = activity.codec, activity.with_options()
    twin.fn = on_the_loop if inspect.iscoroutinefunction(fn) else in_a_thread
    twin.__dict__["codec"] = codec
    if twin.execution_mode is ExecutionMode.PROCESS:
        twin.execution_mode = ExecutionMode.THREAD
    return twin


async def _unexecuted(store: Store, life: Life) -> list[str]:
    """Results in journals that no execution can have brought, and such that are there twice."""
    executed = {call for call, _, _ in life.executed}
    wrong = []
    for run in (await store.list_runs(RunFilter(kind=RunKind.WORKFLOW), None, 1000)).runs:
        done: Counter[tuple[int, str]] = Counter()
        for entry in await store.journal(run.run_id):
            if entry.kind is EntryKind.ACTIVITY_DONE:
                body = decode_body(entry)
                done[body.seq, body.name] += 1
        twice = [(name, times) for (_, name), times in done.items() if times > 1]
        wrong += [f"{name!r} of run {run.id!r} is committed {times} times" for name, times in twice]
        wrong += [
            f"{name!r} of run {run.id!r} has a result and was never executed"
            for seq, name in done
            if (run.run_id, seq) not in executed
        ]
    return wrong
