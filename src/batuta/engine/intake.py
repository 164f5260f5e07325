"""How much a worker takes in: so many runs of a queue at once, and no more jobs than can begin soon."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from msgspec.structs import replace

from batuta.authoring.definitions import Place, Workflow
from batuta.engine.jobs import EarlyRun
from batuta.engine.live import LiveRun
from batuta.engine.routes import RoutedCall
from batuta.journal.records import RunKind, Tape, WorkerInfo
from batuta.settings import Settings

_AVOID_SECONDS = 5.0
_FAIR_BATCH = 100
"""Jobs that are claimed at once where there are flow keys: what is claimed of one key, the others wait for."""


class _Pool:
    """Places that calls share: on the loop, in threads, in processes, or those of one job that has a limit."""

    __slots__ = ("calls", "leaving", "places")

    def __init__(self, places: int) -> None:
        self.places = places
        self.calls = 0
        """Of runs in memory, or on their way there."""
        self.leaving = 0
        """Of those, when they were last counted: their calls have ended."""


class Intake:
    """What one worker has, and may have."""

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
        """Of the last look."""
        self._batch, self._fair_batch = settings.claim_batch, min(settings.claim_batch, _FAIR_BATCH)
        self.keyed = False
        """The last look brought runs with flow keys."""
        self._info = info
        self._has_calls = bool(calls)
        self.limited = self.picky = bool(limits)
        """Whether it matters to it which runs `enter` and `leave` that are no calls, and whether they `may_start`."""

    # -- so many of a queue

    def expect(self, tapes: Sequence[Tape], *, sign: int = 1) -> None:
        """Claimed runs that are on their way into memory, where they `enter`; with the sign -1: they are there."""
        if self._has_calls or self.limited:
            if sign > 0:
                self.keyed = any(tape.run.flow_key for tape in tapes)
                self._brought.clear()
            for tape in tapes:
                if tape.run.kind is not RunKind.WORKFLOW:
                    pool = self._pool_of[tape.run.code]
                    pool.calls += sign
                    if sign > 0:
                        self._brought.add(pool)
                if tape.run.queue in self._taken:
                    self._taken[tape.run.queue] += sign

    def enter(self, queue: str, workflow: Workflow[..., Any]) -> None:
        """A run of that queue comes in."""
        if isinstance(workflow, RoutedCall):
            self._pools[_kind(workflow)].calls += 1
        if queue in self._taken:
            self._taken[queue] += 1

    def leave(self, run: LiveRun) -> None:
        if run.is_call:
            self._pools[_kind(cast(RoutedCall, run.workflow))].calls -= 1
        if self._taken:
            queue = run.row.queue if isinstance(run, EarlyRun) else run.identity.queue
            if queue in self._taken:
                self._taken[queue] -= 1

    def room(self) -> dict[str, int] | None:
        """How many more of each queue that has a limit here."""
        if not self._limits:
            return None
        return {queue: max(0, limit - self._taken[queue]) for queue, limit in self._limits.items()}

    def still_open(self, info: WorkerInfo) -> WorkerInfo:
        """The worker without those of its queues that it can take no more from."""
        full = {queue for queue, limit in self._limits.items() if self._taken[queue] >= limit}
        return replace(info, queues=[queue for queue in info.queues if queue not in full]) if full else info

    def may_start(
        self, queue: str, workflow: Workflow[..., Any], clock: Callable[[], float], *, claiming: bool
    ) -> bool:
        """Whether a start into that queue may be owned at once, as far as the queue and the places go."""
        if self._avoided and self._avoided.get(queue, 0.0) > clock():
            return False
        if isinstance(workflow, RoutedCall):
            pool = self._pools[_kind(workflow)]
            if pool.calls >= pool.places:
                return False
        limit = self._limits.get(queue)
        return limit is None or (not claiming and self._taken[queue] < limit)

    def avoid(self, queue: str, now: float) -> None:
        """The store has refused an owned start into it: it is paused, or has limits."""
        self._avoided[queue] = now + _AVOID_SECONDS
        self.picky = True

    # -- no more calls than can begin soon: jobs, and activities from elsewhere

    def appetite(self, runs: Iterable[LiveRun]) -> tuple[WorkerInfo, int | None]:
        """As whom to claim, and how many at most; None: as many as fit. 0: nothing now, until a run leaves."""
        if not self._has_calls:
            return self._info, None
        if self.keyed or any(pool.calls > pool.places for pool in self._pools.values()):
            self._count_leaving(runs)
            rooms = {pool: self._room_in(pool) for pool in self._pools.values()}
        else:
            rooms = {pool: 2 * pool.places - pool.calls for pool in self._pools.values()}
        if all(rooms.values()):
            return self._info, min(rooms[pool] for pool in self._brought or rooms)
        code = {name: mark for name, mark in self._info.code.items() if rooms.get(self._pool_of.get(name, _NONE), 1)}
        return replace(self._info, code=code), min(filter(None, rooms.values()), default=None) if code else 0

    def _count_leaving(self, runs: Iterable[LiveRun]) -> None:
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


def _kind(call: RoutedCall) -> Place | str:
    """What calls of this one share places with."""
    activity = call.activity
    return activity.place if activity.limit is None else activity.name


def _pools(calls: Iterable[RoutedCall], settings: Settings) -> dict[Place | str, _Pool]:
    most = {
        Place.LOOP: settings.max_activities,
        Place.THREAD: settings.threads,
        Place.PROCESS: settings.processes,
        Place.STORE: settings.transactions,
    }
    pools: dict[Place | str, _Pool] = {}
    for call in calls:
        most_of_it = most[call.activity.place]
        limit = call.activity.limit
        pools.setdefault(_kind(call), _Pool(most_of_it if limit is None else min(limit, most_of_it)))
    return pools
