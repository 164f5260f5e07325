"""`crash_sweep`: the worker dies at every point at which something is about to be written, or just has been."""

from __future__ import annotations

import asyncio
import contextvars
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from batuta.authoring.definitions import Workflow
from batuta.authoring.jobs import Job
from batuta.durations import Duration
from batuta.errors import InvalidInput
from batuta.stores.sqlite import SqliteStore
from batuta.testing.stores import StoreName, quick_folder
from batuta.testing.virtualtime import run
from batuta.testing.worker_lives import Life, Plan, Point, Script, comparable

T = TypeVar("T")

_RECOVERY = ("claim.after", "claim.loaded", "replay.before", "replay.after")
"""Points that the second worker passes on its way to the same place."""
_SHOWN = 5


@dataclass
class Sweep:
    """The result of a sweep."""

    store: str
    ending: Any
    """The result that every life came to; or the RunNotCompleted that each of them raised."""
    points: list[Point] = field(default_factory=list)
    """Where the worker was killed, one life for each."""
    unreached: list[Point] = field(default_factory=list)
    """Points that a life was to have and did not come to: then the workflow takes one way or another by chance."""
    executions: Counter[str] = field(default_factory=Counter)
    """For each activity, how often it was executed without a crash."""
    again: Counter[str] = field(default_factory=Counter)
    """For each activity, how many of the crashes had it executed once more."""

    def __str__(self) -> str:
        lines = [f"{len(self.points)} crashes on {self.store}, the same end each time: {self.ending!r}"]
        for name, times in self.executions.items():
            lines.append(f"  {name}: executed {times} x, and once more after {self.again[name]} of the crashes")
        if self.unreached:
            lines.append(f"  not reached: {', '.join(map(str, self.unreached[:_SHOWN]))}")
        return "\n".join(lines)


class CrashChangesResult(AssertionError):
    """A run came to another end, or broke a promise, because a worker was killed at `points`."""

    def __init__(self, found: Sequence[tuple[Sequence[Point], str]], swept: int) -> None:
        shown = "".join(f"\n  killed at {_named(points)}:\n    {what}" for points, what in found[:_SHOWN])
        more = f"\n  and at {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        super().__init__(f"{len(found)} of {swept} crashes made a difference:{shown}{more}")
        self.points = [points[-1] for points, _ in found]
        """Where the worker was killed in the lives that went wrong."""


def crash_sweep(
    workflow: Workflow[..., Any] | Job[..., Any],
    /,
    *input: Any,  # noqa: A002 - its own word
    activities: Sequence[object] | Callable[[], Sequence[object]] = (),
    workflows: Sequence[Workflow[..., Any]] = (),
    store: StoreName = "memory",
    script: Script | None = None,
    key: Callable[[Any], Any] | None = None,
    downtime: Duration = 0.0,
    most: int | None = None,
    **environment: Any,
) -> Sweep:
    """Run a workflow once to learn each point at which a worker claims, acts or writes; then once for each of them,
    killing the worker there. Another worker takes over. Every run must come to the same end.

    `activities`: as for an Environment; or a function that creates them, called for each run, when they have state.
    Doubles are reset each time. `workflows`: others that it needs, such as children. `script(env, handle)`: awaited
    after the start, to send signals or let time pass; it must do the same each time. `key`: the part of the result (or
    of the RunNotCompleted) that must be the same. `downtime`: seconds between a death and the next worker. `most`: only
    that many points, evenly chosen. Other keywords are those of an Environment: jobs, queues, settings.

    A plain function, for a plain test: it has its own event loops, in virtual time. Raises CrashChangesResult, an
    AssertionError that names the points.
    """
    if store not in ("memory", "sqlite"):
        raise InvalidInput(f"store={store!r} is none that can be swept: 'memory' or 'sqlite'")
    plan = Plan.of(workflow, input, activities, workflows, environment, script, downtime)
    return apart(lambda: _Sweeper(plan, store, key or comparable).sweep(most))


class _Sweeper:
    def __init__(self, plan: Plan, store: StoreName, key: Callable[[Any], Any]) -> None:
        self._plan, self._store, self._key = plan, store, key
        self._template: Path | None = None
        self._wrong: list[tuple[Sequence[Point], str]] = []

    def sweep(self, most: int | None) -> Sweep:
        with self._prepared():
            calm = self._calm()
            found = Sweep(self._store, calm.ending)
            for (_, name, _), times in calm.executed.items():
                found.executions[name] += times
            points = _evenly(list(dict.fromkeys(calm.passed)), most)
            recovery: dict[str, tuple[Point, Point]] = {}
            for point in points:
                life = self._try(found, calm, [point])
                for after in life.passed_by_heir:
                    if after.site in _RECOVERY and after.passage == 1:
                        recovery[after.site] = (point, after)
            for both in recovery.values():  # and the second worker dies, too
                self._try(found, calm, both)
        if self._wrong:
            raise CrashChangesResult(self._wrong, len(found.points))
        return found

    def _calm(self) -> Life:
        """Run twice without a death: a difference then is not caused by a crash."""
        calm, twin = Life(), Life()
        self._live(calm, [])
        self._live(twin, [])
        if calm.wrong:
            raise AssertionError(f"a life without a crash goes wrong: {'; '.join(calm.wrong[:_SHOWN])}")
        if self._key(calm.ending) != self._key(twin.ending):
            raise AssertionError(
                f"two lives without a crash come to different ends, {calm.ending!r} and {twin.ending!r}: "
                f"tell crash_sweep with key= what of it is always the same"
            )
        return calm

    def _try(self, found: Sweep, calm: Life, targets: Sequence[Point]) -> Life:
        life = Life()
        try:
            self._live(life, targets)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong belongs to the point at which it does
            life.wrong.append(f"the test ends with {type(error).__name__}: {error}")
            life.ending = calm.ending
        if life.killed != list(targets):
            found.unreached.append(targets[-1])
            return life
        found.points.append(targets[-1])
        found.again.update(life.again.keys())
        wrong = list(life.wrong)
        if self._key(life.ending) != self._key(calm.ending):
            wrong.insert(0, f"the run ends with {life.ending!r}, and without a crash with {calm.ending!r}")
        if wrong:
            self._wrong.append((targets, "; ".join(wrong)))
        return life

    def _live(self, life: Life, targets: Sequence[Point]) -> None:
        if self._template is None:
            run(self._plan.live(life, targets, None))
            return
        with TemporaryDirectory(dir=self._template.parent, ignore_cleanup_errors=True) as folder:
            file = Path(shutil.copy(self._template, Path(folder, "swept.db")))
            run(self._plan.live(life, targets, file))

    @contextmanager
    def _prepared(self) -> Iterator[None]:
        if self._store == "memory":
            yield
            return
        with TemporaryDirectory(prefix="batuta-sweep-", dir=quick_folder(), ignore_cleanup_errors=True) as folder:
            template = Path(folder, "empty.db")
            asyncio.run(_migrate(template))
            self._template = template
            yield


async def _migrate(file: Path) -> None:
    store = SqliteStore(file)
    await store.migrate()


def _evenly(points: list[Point], most: int | None) -> list[Point]:
    if most is None or most >= len(points):
        return points
    if most < 1:
        raise InvalidInput(f"most={most!r} must be a number of points, at least 1")
    return [points[number * len(points) // most] for number in range(most)]


def _named(points: Sequence[Point]) -> str:
    return ", then its successor at ".join(map(str, points))


def apart(work: Callable[[], T]) -> T:
    """Run something with its own event loops; if one is running, in a thread, and wait for it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(contextvars.copy_context().run, work).result()
