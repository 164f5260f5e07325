"""How much a worker takes in: so many runs of a queue at once, and no more jobs than can begin soon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
        self.calls = 0
        """Runs in memory that are one call."""
        calls = {code: one for code, one in workflows.items() if isinstance(one, RoutedCall)}
        self._places = _places({one.activity.place for one in calls.values()}, settings)
        self._batch, self._fair_batch = settings.claim_batch, min(settings.claim_batch, _FAIR_BATCH)
        self.keyed = False
        """The last look brought runs with flow keys."""
        self._info = info
        self._other_work = replace(info, code={code: mark for code, mark in info.code.items() if code not in calls})
        self._has_calls, self._has_others = bool(calls), len(calls) < len(workflows)

    # -- so many of a queue

    def expect(self, tapes: Sequence[Tape], *, sign: int = 1) -> None:
        """Claimed runs that are on their way into memory, where they `enter`; with the sign -1: they are there."""
        if self._has_calls or self._limits:
            if sign > 0:
                self.keyed = any(tape.run.flow_key for tape in tapes)
            for tape in tapes:
                if tape.run.kind is not RunKind.WORKFLOW:
                    self.calls += sign
                if tape.run.queue in self._taken:
                    self._taken[tape.run.queue] += sign

    def enter(self, queue: str, workflow: Workflow[..., Any]) -> None:
        """A run of that queue comes in."""
        if isinstance(workflow, RoutedCall):
            self.calls += 1
        if queue in self._taken:
            self._taken[queue] += 1

    def leave(self, run: LiveRun) -> None:
        if run.is_call:
            self.calls -= 1
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

    def may_start(self, queue: str, workflow: Workflow[..., Any], now: float, *, claiming: bool) -> bool:
        """Whether a start into that queue may be owned at once, as far as the queue and the places go."""
        if self._avoided and self._avoided.get(queue, 0.0) > now:
            return False
        if self.calls >= self._places and isinstance(workflow, RoutedCall):
            return False
        limit = self._limits.get(queue)
        return limit is None or (not claiming and self._taken[queue] < limit)

    def avoid(self, queue: str, now: float) -> None:
        """The store has refused an owned start into it: it is paused, or has limits."""
        self._avoided[queue] = now + _AVOID_SECONDS

    # -- no more calls than can begin soon: jobs, and activities from elsewhere

    def appetite(self, runs: Iterable[LiveRun]) -> tuple[WorkerInfo, int | None]:
        """As whom to claim, and how many at most; None: as many as fit. 0: nothing now, until a run leaves."""
        if not self._has_calls:
            return self._info, None
        if self.calls <= self._places and not self.keyed:
            return self._info, 2 * self._places - self.calls
        here = leaving = 0
        for run in runs:
            if run.is_call:
                if run.leaving:
                    leaving += 1
                else:
                    here += 1
        room = 2 * self._places - here
        batch = self._fair_batch if self.keyed else self._batch
        if leaving < 2 * batch and room * 4 > self._places:
            return self._info, min(room, batch)
        return self._other_work, None if self._has_others else 0


def _places(kinds: set[Place], settings: Settings) -> int:
    """How many calls of these kinds can be executed at once."""
    most = {Place.LOOP: settings.max_activities, Place.THREAD: settings.threads, Place.PROCESS: settings.processes}
    return sum(most[kind] for kind in kinds)
