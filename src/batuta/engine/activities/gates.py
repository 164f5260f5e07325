"""The gates of one worker: who is let in, and who waits."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar, cast

from batuta.authoring.failures.conversion import answerable, to_exception, to_failure
from batuta.authoring.gates import (
    NOT_BEGUN,
    NOT_RUN,
    Gate,
    GateHost,
    Keepers,
    Outcome,
    Refusal,
    enter_all,
    leave_all,
    refusal_error,
)
from batuta.clock import SECOND
from batuta.engine.activities.call import Call, CallingRun, GatesLapsed, fatal
from batuta.engine.activities.processes import Raised
from batuta.engine.worker.database_clock import DatabaseClock
from batuta.errors import GateFailed, LostAttempt, UnknownPartner
from batuta.journal.failures import Failure
from batuta.journal.store import Store
from batuta.telemetry import Event

T = TypeVar("T")


class Attempts(Protocol):
    """The part of the executor that gates use."""

    def vacate(self, call: Call) -> None: ...
    def conclude(self, call: Call, failure: Failure) -> None: ...
    def try_again_in(self, wait: float, call: Call) -> None: ...
    def stays_for(self, run: CallingRun) -> float: ...


class Gates:
    """Implements `GateHost`."""

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts
        self._keepers = Keepers(cast(GateHost, self))
        self._services: dict[Any, Any] = {}
        self._waiting: dict[str, dict[Call, None]] = {}
        self._closed = False

    def open(
        self,
        store: Store,
        clock: DatabaseClock,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        report: Callable[[Event], None],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
    ) -> None:
        """`spawn` begins a task of the worker; `report` tells middleware."""
        self._spawn, self._loop, self._context = spawn, loop, context
        self.store, self.namespace = store, store.namespace
        self.monotonic = clock.monotonic
        self.report = report

    def close(self) -> None:
        """Nothing is begun any more."""
        self._closed = True
        for service in self._services.values():
            service.close()
        self._keepers.clear()
        self._waiting.clear()

    # -- calls

    def let_in(self, call: Call) -> bool:
        """Whether all gates let the attempt begin. It has a place, which it gives back if it must wait."""
        failure = None
        try:
            refused = self._enter(call)
            if refused is None:
                return True
            if refused[0].on_refusal == "fail" and not refused[1].pending:
                failure = to_failure(refusal_error(*refused))
        except (GateFailed, UnknownPartner) as error:
            refused, failure = None, to_failure(error)
        self._attempts.vacate(call)
        if refused is not None and failure is None:
            failure = self._wait(call, *refused)
        if failure is not None:
            self._leave_row(call)
            call.started_at = call.started_at or call.run.now()
            self._attempts.conclude(call, fatal(failure))
        return False

    def _enter(self, call: Call) -> tuple[Gate, Refusal] | None:
        """Ask the gates of the call: None when all let it in. Raises GateFailed, UnknownPartner."""
        gates: tuple[Gate, ...] = call.pending.options.gates
        try:
            found = enter_all([(gate, self._keepers.of(gate)) for gate in gates], call)
        except (UnknownPartner, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit would end the worker's loop
            raise GateFailed(", ".join(gate.name for gate in gates), error) from error
        if type(found) is list:
            call.passes, call.gate = found, ""
            self._leave_row(call)
            return None
        return cast("tuple[Gate, Refusal]", found)

    def _wait(self, call: Call, gate: Gate, refusal: Refusal) -> Failure | None:
        """Have it ask again later, within its time limits. The failure that it ends with when those are over."""
        run, options, now = call.run, call.pending.options, call.run.now()
        call.refused_at = call.refused_at or now
        ends = [now + int((refusal.wait + refusal.spread) * SECOND) + 1]
        if gate.longest_wait is not None:
            ends.append(call.refused_at + int(gate.longest_wait * SECOND))
            if ends[-1] <= now:
                return to_failure(refusal_error(gate, refusal))
        for limit in (options.total_timeout, None if call.begun else options.start_timeout):
            if limit is not None:
                ends.append(run.counted_from(call.pending.issued_at) + int(limit * SECOND))
                if ends[-1] <= now:
                    return call.too_late(limit)
        name = refusal.gate or gate.name
        call.gate, call.started_at, call.next_at = name, 0, min(ends)
        topic = refusal.topic or name
        if topic != call.topic:  # or else it keeps its place
            self._leave_row(call)
            call.topic = topic
        self._waiting.setdefault(topic, {})[call] = None
        self._attempts.try_again_in((call.next_at - now) / SECOND, call)
        stays = refusal.pending or gate.longest_wait is not None
        if not stays and call.next_at - now > SECOND * self._attempts.stays_for(run):
            run.call_waits()
        run.evict_when_draining()
        return None

    def _leave_row(self, call: Call) -> None:
        """It waits no more."""
        topic, call.topic = call.topic, ""
        calls = self._waiting.get(topic)
        if calls is not None:
            calls.pop(call, None)
            if not calls:
                del self._waiting[topic]

    def leave(self, call: Call, error: BaseException | None) -> None:
        """The attempt has ended so."""
        passes, call.passes = call.passes, None
        if passes:
            leave_all(passes, self._outcome(call, error))

    def give_back(self, call: Call) -> None:
        """It never began, or what it did does not count."""
        passes, call.passes = call.passes, None
        if passes:
            leave_all(passes, NOT_RUN)

    def drop(self, call: Call) -> None:
        """Its run does without it: it has not begun."""
        self._leave_row(call)
        passes, call.passes = call.passes, None
        if passes:
            leave_all(passes, NOT_BEGUN)

    def overdue(self, call: Call, failure: Failure) -> None:
        """The attempt is over its time. Its code may go on: gates that count what goes on are told at its end."""
        passes = call.passes
        if not passes:
            return
        leave_all([one for one in passes if one[0].frees_early], self._outcome(call, to_exception(failure)))
        call.passes = [one for one in passes if not one[0].frees_early]

    def _outcome(self, call: Call, error: BaseException | None) -> Outcome:
        error = None if error is None else answerable(error)
        if isinstance(error, GatesLapsed):
            return NOT_BEGUN
        if call.lost or isinstance(error, asyncio.CancelledError | LostAttempt):
            return NOT_RUN
        if isinstance(error, Raised):
            error = to_exception(error.failure)
        return Outcome(error, max(0, call.run.now() - call.started_at) / SECOND)

    # -- what gates have

    def wake(self, topic: str, most: int | None = None) -> None:
        calls = self._waiting.get(topic)
        while calls and (most is None or most > 0):
            call = next(iter(calls))
            del calls[call]
            if call.gate and not call.over and not call.run.leaving:
                call.next_at = call.run.now()
                self._attempts.try_again_in(0, call)
                most = None if most is None else most - 1
        if calls is not None and not calls:
            self._waiting.pop(topic, None)

    def waiting(self, topic: str) -> int:
        calls = self._waiting.get(topic)
        if not calls:
            return 0
        for call in [one for one in calls if one.over or not one.gate or one.run.leaving]:
            del calls[call]
        return len(calls)

    def service(self, kind: Callable[[GateHost], T]) -> T:
        found = self._services.get(kind)
        if found is None:
            found = self._services[kind] = kind(cast(GateHost, self))
        return cast(T, found)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._closed:
            work.close()
        else:
            self._spawn(work)

    def call_later(self, seconds: float, act: Callable[[], None]) -> None:
        def due() -> None:
            if not self._closed:
                act()

        self._loop.call_later(seconds, due, context=self._context)
