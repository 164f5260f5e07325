"""A run that waits: its time, what it waits for, how long it stays in memory for that, and how it leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from batuta.clock import SECOND
from batuta.engine.activities.call import Call
from batuta.engine.run.changes import ChangeWriter, WriterHost
from batuta.engine.worker.timers import Alarm
from batuta.failpoints import failpoint
from batuta.ids import RunId
from batuta.journal.entries import EntryKind
from batuta.journal.records import Attempt, Move
from batuta.journal.resilience.partners import gate_reason
from batuta.journal.states import RunState

_TIMER_FIRED = EntryKind.TIMER_FIRED
_TALK = (EntryKind.SIGNAL, EntryKind.UPDATE, EntryKind.ACCEPTED, EntryKind.CHILD_DONE, EntryKind.CHILD_FAILED)
_TALK_SECONDS = 2


class WaitingHost(WriterHost, Protocol):
    """The part of the worker that a waiting run uses."""

    def may_linger(self, run_id: RunId) -> bool:
        """Whether there is room to keep the run in memory though nothing of it is going on here."""


class WaitingRun(ChangeWriter):
    """The clock's side of a run."""

    __slots__ = tuple(
        "ahead alarm calls deadline lacking more_messages patient pauses pausing prepare reading ready".split()
    )

    _host: WaitingHost

    def _begin_waiting(self) -> None:
        self.deadline: int | None = None
        self.calls: dict[int, Call] = {}
        self.alarm: Alarm | None = None
        self.ahead = 0
        """Microseconds to add to the database's clock for the run's own clock: not 0 after the database's was set."""
        self.ready = False
        """At the end of its journal: inputs may be delivered."""
        self.reading = False
        """More messages are about to be delivered: it does not leave before it has seen them."""
        self.more_messages = False
        """The store may have more messages than it was given: they are read when it has consumed those."""
        self.lacking: dict[int, str] = {}
        """Calls of activities that this worker does not have, with what to do about it."""
        self.patient = False
        """A call waits long, or for an answer from outside: it need not hold the run in memory."""
        self.pausing: str | None = None
        """Why an operator holds it: it leaves as soon as nothing is in flight."""
        self.pauses: Sequence[Attempt] = ()  # when it was paused before
        self.prepare: Callable[[], object] | None = None  # sets the context of its attempts, once middleware said how

    # -- time

    @property
    def draining(self) -> bool:
        """Whether nothing new is to begin: its worker stops, or it is held."""
        return self._host.draining or self.pausing is not None

    def now(self) -> int:
        """The time by the run's own clock, which all timers of the run use. It equals the database's clock until that
        is set forward or back: the run's own clock does not jump."""
        return self._host.clock.now() + self.ahead

    def clock_set(self, step: int) -> None:
        """The database's clock was set forward by so much, or back."""
        self.ahead -= step

    def _in_the_store(self, when: int) -> int:
        """A moment of the run's own clock by the database's clock. If the journal is ahead of the database, the moment
        stays as it is: the next owner knows only the times in the journal."""
        if when <= self.now():
            return self._host.clock.now()
        return when if self.ahead > 0 else when - self.ahead

    def lingers(self, when: int | None) -> bool:
        """Whether the run stays in memory for a long wait. Its own clock is ahead of the database's, and by that clock
        the wait would take more than twice as long."""
        if self.ahead <= 0 or when is None or self.draining:
            return False
        return when - self.now() < self.ahead and self._host.may_linger(self.run_id)

    def _turn_time(self, kind: EntryKind) -> int:
        """The time of the next turn, when the run's own clock differs from the database's. Drops the difference once no
        call and no timer depends on it. The run's clock never goes back."""
        clock, machine = self._host.clock, self.machine
        counts = self.calls or (self.deadline is not None and self.ahead > 0)
        if not counts and len(machine.deadlines) <= (kind is _TIMER_FIRED):
            due = machine.deadlines[0][0] if machine.deadlines else 0
            self.ahead = max(0, max(machine.at, due) - clock.now())
        return clock.latest() + self.ahead

    def counted_from(self, at: int) -> int:
        """The start of a time limit that began at `at`, moved later by the pauses of the run since then. `at` and the
        pauses may come from two clocks: the part of a pause before `at` is ignored, and no pause counts as negative."""
        return at + sum(max(0, (one.ended_at or 0) - max(one.started_at, at)) for one in self.pauses if one.number)

    # -- what it waits for

    def lack(self, seq: int, why: str) -> None:
        """This worker does not have an activity that the run needs: it is handed back once nothing is in flight."""
        self.lacking[seq] = why

    def be_patient(self) -> None:
        """A call waits long: the run need not stay in memory for it."""
        self.patient = True

    def prepare_with(self, prepare: Callable[[], object]) -> None:
        """Middleware has said how to set the context of the run's attempts."""
        self.prepare = prepare

    def _only_waits(self) -> bool:
        """Whether every activity waits for its next try, or for an answer from outside: none needs memory for that."""
        return self.calls.keys() == self.machine.activities.keys() and all(call.idle for call in self.calls.values())

    def _is_at_work(self) -> bool:
        """Whether an attempt is in flight. A call that waits for a slot can do so elsewhere."""
        return any(not (call.idle or call.queued) for call in self.calls.values())

    def _next_wake(self) -> int | None:
        """When something is due in a run that only waits."""
        times = [call.next_at for call in self.calls.values() if call.next_at is not None]
        times += [timer[0]] if (timer := self.machine.next_timer()) is not None else []
        times += [self.deadline] if self.deadline is not None else []
        if self.machine.related is not None and (check := self.machine.related.next_check()) is not None:
            times.append(check)
        return min(times, default=None)

    def _stays_until(self, keep: int) -> int:
        """Until when a run that gets messages stays in memory after a turn: else each message loads it again."""
        related, host = self.machine.related, self._host
        awaits_word = related is not None and related.awaits_word()  # the store's word is on its way
        if self.more_messages or awaits_word:  # more: so it is read again, too, when what it has is not consumed
            return host.clock.latest() + self.ahead + max(keep, SECOND)
        if related is not None and (related.children or related.routed):
            until = self.machine.at + keep
        elif self.last in _TALK:
            until = self.machine.at + min(keep, _TALK_SECONDS * SECOND)
        else:
            return 0
        return until if host.may_linger(self.run_id) else 0

    def _is_owed(self) -> bool:
        """Whether the run still has an input to come that only its next owner can deliver: then the run must be due."""
        related = self.machine.related
        return bool(self.inbox.backlog) or (related is not None and related.awaits_word())

    # -- leaving memory

    def evict(self) -> None:
        """The worker stops: leave if nothing is in flight. A call that waits for its next attempt or a slot is not."""
        if not self.ready:
            self.evict_until(self.now())
        elif self.head == self.durable and not self.inbox.backlog and not self._is_at_work():
            self.evict_until(self._next_wake() if self._only_waits() and self.head >= 0 else self.now())

    def evict_until(self, wake_at: int | None, reason: str = "") -> None:
        """Hand the run back, due at `wake_at` of its own time."""
        failpoint("evict.before")
        gated = "" if reason else next((call.gate for call in self.calls.values() if call.gate), "")
        reason = gate_reason(gated) if gated else reason
        if self.ahead and wake_at is not None:
            wake_at = self._in_the_store(wake_at)
        state = RunState.WAITING if self.head >= 0 else RunState.PENDING
        if self.pausing is not None:
            state, reason = RunState.PAUSED, self.pausing
        self.move(Move(state, self._host.clock.now() if self._is_owed() else wake_at, reason))

    def hold_unread(self, head: int, why: str, now: int) -> None:
        """Pause a run whose owner died before it did so. The run need not be replayed for that."""
        self.head = self.durable = head
        self.pausing = why
        self.evict_until(now)
