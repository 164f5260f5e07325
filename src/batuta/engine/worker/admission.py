"""How much a worker takes in: so many runs of a queue at once, and no more jobs than can begin soon."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from msgspec.structs import replace

from batuta.authoring.definitions import ExecutionMode, Workflow
from batuta.authoring.history.compensations import COMPENSATE
from batuta.clock import SECOND
from batuta.engine.machine.routing import RoutedCall
from batuta.engine.machine.sagas import CompensationWorkflow
from batuta.engine.run.owned_run import OwnedRun
from batuta.journal.records import RunKind, StoredRun, WorkerInfo
from batuta.settings import Settings

_AVOID_SECONDS = 5.0
_DECLINED_SECONDS = 1.0
"""And a heartbeat, which tells the others that it is due."""
_FAIR_BATCH = 100
"""Jobs that are claimed at once where there are flow keys: runs of other keys wait for those of one key."""


class _Pool:
    """Places that calls share: on the loop, in threads, in processes, or the places of one job with a limit."""

    __slots__ = ("calls", "leaving", "places")

    def __init__(self, places: int) -> None:
        self.places = places
        self.calls = 0
        """Calls of runs that are in memory or being loaded."""
        self.leaving = 0
        """Calls among them that had ended at the last count: their runs are about to leave."""


class Admission:
    """How many runs and calls one worker has, and how many more it may take."""

    def __init__(
        self,
        info: WorkerInfo,
        workflows: Mapping[str, Workflow[..., Any]],
        limits: Mapping[str, int],
        settings: Settings,
    ) -> None:
        self._limits = dict(limits)
        self._taken = dict.fromkeys(limits, 0)
        self._avoided: dict[str, float] = {}
        calls = {code: one for code, one in workflows.items() if isinstance(one, RoutedCall)}
        self._pools = _pools(calls.values(), settings)
        self._pool_of = {code: self._pools[_kind(one)] for code, one in calls.items()}
        self._brought: set[_Pool] = set()
        """Pools of the calls that the last claim brought."""
        self._batch, self._fair_batch = settings.claim_batch, min(settings.claim_batch, _FAIR_BATCH)
        self.keyed = False
        """Whether the last claim brought runs with flow keys."""
        self._info = info
        self._declined_for = int((settings.heartbeat + _DECLINED_SECONDS) * SECOND)
        self._declined_until = 0
        """Compensations are left to other workers until this time of the database."""
        self._has_calls = bool(calls)
        self.limited = self.picky = bool(limits)
        """`limited`: a queue has a limit for this worker, so not only calls but workflow runs, too, must `enter` and
        `leave`. `picky`: ask `may_start` for them, too."""

    # -- so many of a queue

    def expect(self, stored_runs: Sequence[StoredRun], *, sign: int = 1) -> None:
        """Reserve room for claimed runs that are being loaded. `sign=-1` releases it when they are in memory and
        `enter`."""
        if self._has_calls or self.limited:
            if sign > 0:
                self.keyed = any(stored.run.flow_key for stored in stored_runs)
                self._brought.clear()
            for stored in stored_runs:
                if stored.run.kind is not RunKind.WORKFLOW:
                    pool = self._pool_of[stored.run.code]
                    pool.calls += sign
                    if sign > 0:
                        self._brought.add(pool)
                if stored.run.queue in self._taken:
                    self._taken[stored.run.queue] += sign

    def enter(self, queue: str, workflow: Workflow[..., Any]) -> None:
        """A run of that queue is in memory now."""
        if isinstance(workflow, RoutedCall):
            self._pools[_kind(workflow)].calls += 1
        if queue in self._taken:
            self._taken[queue] += 1

    def leave(self, run: OwnedRun) -> None:
        if run.is_call:
            self._pools[_kind(cast(RoutedCall, run.workflow))].calls -= 1
        if self._taken:
            queue = run.named[1]
            if queue in self._taken:
                self._taken[queue] -= 1

    def room(self) -> dict[str, int] | None:
        """For each queue with a limit for this worker: how many more runs it may take."""
        if not self._limits:
            return None
        return {queue: max(0, limit - self._taken[queue]) for queue, limit in self._limits.items()}

    def still_open(self, info: WorkerInfo) -> WorkerInfo:
        """The worker, without the queues whose limit for this worker is reached."""
        full = {queue for queue, limit in self._limits.items() if self._taken[queue] >= limit}
        return replace(info, queues=[queue for queue in info.queues if queue not in full]) if full else info

    def may_start(
        self, queue: str, workflow: Workflow[..., Any], clock: Callable[[], float], *, claiming: bool
    ) -> bool:
        """Whether this worker may own a new run of that queue at once: the queue and the places allow it."""
        if self._avoided and self._avoided.get(queue, 0.0) > clock():
            return False
        if isinstance(workflow, RoutedCall):
            pool = self._pools[_kind(workflow)]
            if pool.calls >= pool.places:
                return False
        limit = self._limits.get(queue)
        return limit is None or (not claiming and self._taken[queue] < limit)

    def avoid(self, queue: str, now: float) -> None:
        """The store has refused a run that was to be owned at once, as the queue is paused or limited."""
        self._avoided[queue] = now + _AVOID_SECONDS
        self.picky = True

    def decline(self, run: OwnedRun, wake_at: int) -> int:
        """A run that lacks an activity here comes back then: when to claim again. Every worker has the workflow of
        compensations, so they are left to the others for longer, who are to have their turn."""
        if not isinstance(run.workflow, CompensationWorkflow):
            return wake_at
        until = wake_at + self._declined_for
        self._declined_until = max(self._declined_until, until)
        return until

    def willing(self, info: WorkerInfo, now: int) -> WorkerInfo:
        """The worker without the code that it leaves to others at that time of the database, whatever room it has."""
        if self._declined_until <= now:
            return info
        return replace(info, code={name: mark for name, mark in info.code.items() if name != COMPENSATE})

    # -- no more calls than can begin soon: jobs, and activities from elsewhere

    def appetite(self, runs: Iterable[OwnedRun], limit: int) -> tuple[WorkerInfo, int]:
        """The next claim: the worker with only the code that has room, and how many runs, `limit` at most. 0: claim
        nothing until a run leaves."""
        if not self._has_calls:
            return self._info, limit
        if self.keyed or any(pool.calls > pool.places for pool in self._pools.values()):
            self._count_leaving(runs)
            rooms = {pool: self._room_in(pool) for pool in self._pools.values()}
        else:
            rooms = {pool: 2 * pool.places - pool.calls for pool in self._pools.values()}
        if all(rooms.values()):
            return self._info, min([limit, *(rooms[pool] for pool in self._brought or rooms)])
        code = {name: mark for name, mark in self._info.code.items() if rooms.get(self._pool_of.get(name, _NONE), 1)}
        return replace(self._info, code=code), min([limit, *filter(None, rooms.values())]) if code else 0

    def _count_leaving(self, runs: Iterable[OwnedRun]) -> None:
        for pool in self._pools.values():
            pool.leaving = 0
        for run in runs:
            if run.is_call and run.leaving:
                self._pools[_kind(cast(RoutedCall, run.workflow))].leaving += 1

    def _room_in(self, pool: _Pool) -> int:
        """How many more calls may come in at once; 0 when it is better to wait until there is room for several."""
        batch = self._fair_batch if self.keyed else self._batch
        room = 2 * pool.places - pool.calls + pool.leaving
        return min(room, batch) if pool.leaving < 2 * batch and room * 4 > pool.places else 0


_NONE = _Pool(0)


def _kind(call: RoutedCall) -> ExecutionMode | str:
    """The key of the pool whose places this call uses."""
    activity = call.activity
    return activity.execution_mode if activity.limit is None else activity.name


def _pools(calls: Iterable[RoutedCall], settings: Settings) -> dict[ExecutionMode | str, _Pool]:
    most = {
        ExecutionMode.LOOP: settings.max_activities,
        ExecutionMode.THREAD: settings.threads,
        ExecutionMode.PROCESS: settings.processes,
        ExecutionMode.STORE: settings.transactions,
    }
    pools: dict[ExecutionMode | str, _Pool] = {}
    for call in calls:
        most_of_it = most[call.activity.execution_mode]
        limit = call.activity.limit
        pools.setdefault(_kind(call), _Pool(most_of_it if limit is None else min(limit, most_of_it)))
    return pools
