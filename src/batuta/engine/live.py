"""A run that this worker owns: inputs go in, entries go to the committer, effects go out when they are durable."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import UNSET, Raw, json

from batuta.authoring.definitions import Workflow
from batuta.authoring.failures import to_failure
from batuta.clock import SECOND
from batuta.engine.completion import Completion
from batuta.engine.dbclock import DatabaseClock
from batuta.engine.machine import Machine, RunIdentity
from batuta.engine.replay import Replay
from batuta.engine.waiters import Waiters
from batuta.errors import InvalidInput, OutcomeUnknown, WorkflowBroken
from batuta.failpoints import failpoint
from batuta.ids import RunId
from batuta.journal.entries import Body, Command, CommandKind, Entry, EntryKind, encode_entry
from batuta.journal.records import Attempt, Change, Message, MessageKind, Move, NewRun
from batuta.journal.states import CLOSED, RunState
from batuta.settings import Settings

if TYPE_CHECKING:
    from batuta.engine.executor import Call, Executor
    from batuta.engine.timers import Alarm

log = logging.getLogger("batuta.engine")

_CLOSES = {
    CommandKind.COMPLETE: RunState.COMPLETED,
    CommandKind.FAIL: RunState.FAILED,
    CommandKind.CANCELLED: RunState.CANCELLED,
}
_PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
_DONE, _FAILED = EntryKind.ACTIVITY_DONE, EntryKind.ACTIVITY_FAILED
_ACTIVITY = CommandKind.ACTIVITY

_LACK_SECONDS = 5
_UNKNOWN_START = "the run may or may not have been started: start it again with the same id"
_ANSWERS = (_DONE, _FAILED)

Effect = Command | Callable[[], None]
"""What waits for a change to be durable."""


class Host(Protocol):
    """What a live run needs of its worker."""

    settings: Settings
    clock: DatabaseClock
    executor: Executor
    draining: bool
    turn: LiveRun | None
    """Whose code is running now, for the watchdog."""

    waiters: Waiters

    def submit(self, run: LiveRun) -> None:
        """The run's change is to be written."""
        ...

    def arm(self, run: LiveRun, when: int) -> None:
        """Call `run.wake` at that database time or soon after, never before."""
        ...

    def disarm(self, run: LiveRun) -> None: ...
    def call_soon(self, callback: Callable[[], None]) -> None: ...

    def forget(self, run: LiveRun, wake_at: int | None) -> None:
        """The run has left memory; it is due again at `wake_at`."""
        ...


class LiveRun:
    """One owned run. All methods are called on the worker's loop, from callbacks, never inside a task."""

    __slots__ = (
        "_backlog",
        "_crc",
        "_held_up",
        "_host",
        "_kept",
        "alarm",
        "calls",
        "change",
        "completion",
        "deadline",
        "durable",
        "effects",
        "epoch",
        "head",
        "identity",
        "lacking",
        "leaving",
        "machine",
        "ready",
        "seen",
        "starting",
        "workflow",
    )

    def __init__(self, host: Host, workflow: Workflow[..., Any], identity: RunIdentity, epoch: int) -> None:
        self._host = host
        self.workflow = workflow
        self.identity = identity
        self.epoch = epoch
        self.head = self.durable = -1
        self.deadline: int | None = None
        self.machine = Machine(workflow, identity)
        self.change: Change | None = None
        self.effects: list[Effect] = []
        self.calls: dict[int, Call] = {}
        self.completion = Completion(identity.run_id)
        self.starting: asyncio.Future[Completion] | None = None
        self.alarm: Alarm | None = None
        self.ready = False
        """At the end of its tape: inputs may be delivered."""
        self.lacking: dict[int, str] = {}
        """Calls of activities that this worker does not have, with what to do about it."""
        self.leaving = False
        self.seen: set[str] = set()
        self._crc = 0
        self._held_up = False
        self._backlog: deque[tuple[EntryKind, Body]] = deque()
        self._kept: list[Entry] = []

    @property
    def run_id(self) -> RunId:
        return self.identity.run_id

    # -- coming into memory

    def begin(self, new: NewRun, body: Body) -> None:
        """The first turn of a run that is inserted already owned. Raises when it must not start like this."""
        host = self._host
        self._sign(body)
        self.ready = True
        host.turn = self
        try:
            at = host.clock.latest()
            body.commands = self.machine.turn(at, EntryKind.STARTED, body)
        finally:
            host.turn = None
        self.change = Change(run_id=self.identity.run_id, epoch=self.epoch, head=-1, start=new)
        if new.timeout or new.execution_timeout:
            self.deadline = at + min(filter(None, (new.timeout, new.execution_timeout)))
        self._record(EntryKind.STARTED, at, body)
        failpoint("start.before_commit")
        host.submit(self)
        self._after_turn()

    def _sign(self, body: Body) -> None:
        """What the first turn fixes for the run's life: the code, the Python and the limits it began with."""
        if body.start is not UNSET:
            body.start.fingerprint = self.workflow.fingerprint
            body.start.python = _PYTHON
            body.start.max_payload = self._host.settings.max_payload

    def restore(self, entries: Sequence[Entry]) -> Replay:
        """A replay of these entries; run it, then `resume`."""
        if entries:
            self.head = self.durable = entries[-1].ord
            self._crc = entries[-1].crc
        if self._host.settings.always_replay:
            self._kept = list(entries)
        return Replay(self.machine, entries)

    def resume(self, attempts: Sequence[Attempt], messages: Sequence[Message]) -> None:
        """Replayed to the end of its tape: start what is pending there, then read the inbox."""
        self.ready = True
        if self._host.draining:
            self.hand_back()
            return
        for seq in list(self.machine.activities):
            if seq in self.machine.activities:  # resuming another one may have caused a turn
                self._host.executor.resume(self, seq, [a for a in attempts if a.seq == seq])
        self.receive(messages)
        if self.head >= 0:
            self.wake(self._host.clock.now())

    def receive(self, messages: Sequence[Message]) -> None:
        """Deliver what is unread and was not delivered before."""
        failpoint("message.read")
        for message in messages:
            if message.message_id in self.seen or self.leaving or not self.ready:
                continue
            self.seen.add(message.message_id)
            kind, body = _as_input(message)
            if kind is EntryKind.STARTED:
                self._sign(body)
            body.message_id = message.message_id
            self.deliver(kind, body)

    # -- turns

    def deliver(self, kind: EntryKind, body: Body) -> None:
        """Run the turn that this input causes, and queue its entry."""
        if self.leaving:
            return
        if kind in _ANSWERS and body.seq not in self.machine.activities:
            self._after_turn()  # it was cancelled by a turn that was not durable yet when it answered
            return
        if self._backlog or self.head - self.durable >= self._host.settings.undurable_entries:
            self._backlog.append((kind, body))
            return
        self._take_turn(kind, body)

    def _take_turn(self, kind: EntryKind, body: Body) -> None:
        host = self._host
        failpoint("turn.before")
        machine = self._rebuilt() if self._kept else self.machine
        now = host.clock.latest()
        at = now if now > machine.at else machine.at
        host.turn = self
        lines = len(machine.logs)
        submitted = self.change is not None
        try:
            body.commands = machine.turn(at, kind, body)
            failpoint("turn.after")
            self._record(kind, at, body)
        except InvalidInput as error:
            del machine.logs[lines:]  # they belong to a turn that never was
            self._does_not_fit(kind, body, error)
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the run is parked and the others go on
            del machine.logs[lines:]
            self.park(str(error) if isinstance(error, WorkflowBroken) else f"its turn failed: {error!r}")
            return
        except BaseException:  # KeyboardInterrupt in the middle of a turn: the machine cannot be trusted
            self.drop()
            raise
        finally:
            host.turn = None
        if not submitted:
            host.submit(self)
        failpoint("commit.queued")
        self._after_turn()

    def _does_not_fit(self, kind: EntryKind, body: Body, error: InvalidInput) -> None:
        """A result that does not fit its annotation is the activity's failure; other values park the run."""
        if kind is not _DONE:
            self.park(str(error))
            return
        self.machine.entries -= 1
        failure = to_failure(error)
        failure.retryable = False
        again = Body(body.seq, body.name, error=failure, attempts=body.attempts, started_at=body.started_at)
        self._take_turn(_FAILED, again)

    def _record(self, kind: EntryKind, at: int, body: Body) -> None:
        entry = encode_entry(self.head + 1, kind, at, body, self._crc)
        self._crc = entry.crc
        change = self.change
        if change is None:
            change = self.change = Change(run_id=self.identity.run_id, epoch=self.epoch, head=self.head)
        change.entries.append(entry)
        if body.message_id:
            change.consumed.append(body.message_id)
        self.effects.extend(body.commands)
        self.head = entry.ord
        if self._host.settings.always_replay:
            self._kept.append(entry)

    def _rebuilt(self) -> Machine:
        """Always-replay mode: another machine, fed with the whole journal."""
        logs = self.machine.logs
        self.machine.tear_down()
        self.machine = Machine(self.workflow, self.identity)
        Replay(self.machine, self._kept).run()
        self.machine.logs = logs
        return self.machine

    def _after_turn(self) -> None:
        """Close, leave memory or wait here, as the turn left things."""
        machine = self.machine
        outcome = machine.outcome
        if outcome is not None:
            self.move(Move(_CLOSES[outcome.kind]))
            return
        timer = machine.next_timer()
        when = timer[0] if timer is not None else None
        if self.deadline is not None and (when is None or self.deadline < when):
            when = self.deadline
        if self.lacking and not self.calls and self.head == self.durable:
            lacks = [why for seq, why in self.lacking.items() if seq in machine.activities]
            if lacks:
                later = self._host.clock.now() + _LACK_SECONDS * SECOND
                self.leave(later if when is None else min(when, later), lacks[0])
                return
        if not machine.activities and not self.calls:
            horizon = self._host.clock.now() + int(self._host.settings.keep_in_memory * SECOND)
            if when is None or when > horizon or self._host.draining:
                self.leave(when)
                return
        if when is not None:
            self._host.arm(self, when)

    def wake(self, now: int) -> None:
        """A timer or the deadline is due."""
        if self.leaving or not self.ready:
            return
        if self.deadline is not None and now >= self.deadline:
            self._time_out(now)
            return
        self._fire_timers(now)

    def _fire_timers(self, now: int) -> None:
        """Each timer that is due is an input of its own, earliest first."""
        while not self.leaving and (timer := self.machine.next_timer()) is not None and timer[0] <= now:
            if self._backlog or self._too_far_ahead():
                self._held_up = True  # `settled` comes back here
                return
            failpoint("timer.fired")
            self.deliver(EntryKind.TIMER_FIRED, Body(seq=timer[1]))
        if not self.leaving:
            self._after_turn()

    def _time_out(self, now: int) -> None:
        at = max(now, self.machine.at)
        submitted = self.change is not None
        self._record(EntryKind.TIMED_OUT, at, Body(reason="the run was over its time"))
        if not submitted:
            self._host.submit(self)
        self.move(Move(RunState.TIMED_OUT, reason="the run was over its time"))

    # -- activities answer

    def record_attempt(self, attempt: Attempt, then: Callable[[], None] | None = None) -> None:
        """Written with the next batch. `then` is called when it is durable; without it nobody waits."""
        if self.leaving:
            return
        self._open_change().attempts.append(attempt)
        if then is not None:
            self.effects.append(then)

    def wait_for_retry(self, next_at: int) -> None:
        """An activity waits long for its next try: leave memory if nothing else is going on."""
        horizon = self._host.clock.now() + int(self._host.settings.keep_in_memory * SECOND)
        waits = [call.next_at for call in self.calls.values()]
        if len(waits) != len(self.machine.activities) or any(wait is None or wait <= horizon for wait in waits):
            return
        timer = self.machine.next_timer()
        times = [next_at, *(wait for wait in waits if wait is not None)]
        times += [timer[0]] if timer is not None else []
        times += [self.deadline] if self.deadline is not None else []
        if min(times) > horizon:
            self.leave(min(times))

    def call_over(self) -> None:
        """An activity whose answer nobody waits for has come to an end."""
        if not self.leaving and self.ready:
            self._after_turn()
            self.hand_back_when_draining()

    def lack(self, seq: int, why: str) -> None:
        """This worker does not have an activity that the run needs: it is handed back once nothing is in flight."""
        self.lacking[seq] = why

    # -- leaving

    def hand_back_when_draining(self) -> None:
        if self._host.draining and not self.leaving:
            self.hand_back()

    def hand_back(self) -> None:
        """The worker stops: leave if nothing is in flight. A call that waits for its next attempt is not."""
        now = self._host.clock.now()
        if not self.ready:
            self.leave(now)
        elif self.head == self.durable and all(call.next_at is not None for call in self.calls.values()):
            machine = self.machine
            times = [call.next_at or now for call in self.calls.values()]
            times += [timer[0]] if (timer := machine.next_timer()) is not None else []
            times += [self.deadline] if self.deadline is not None else []
            begun = machine.activities.keys() <= self.calls.keys() and self.head >= 0
            self.leave(min(times, default=None) if begun else now)

    def _open_change(self) -> Change:
        if self.change is None:
            self.change = Change(run_id=self.identity.run_id, epoch=self.epoch, head=self.head)
            self._host.submit(self)
        return self.change

    def move(self, move: Move) -> None:
        """The next change is this run's last here."""
        self._open_change().move = move
        self.leaving = True

    def leave(self, wake_at: int | None, reason: str = "") -> None:
        """Hand the run back, due at `wake_at`."""
        failpoint("evict.before")
        state = RunState.WAITING if self.head >= 0 else RunState.PENDING
        self.move(Move(state, wake_at, reason))

    def park(self, reason: str) -> None:
        log.error("run %s (%s) is parked as needs_code: %s", self.identity.id, self.workflow.name, reason)
        self.move(Move(RunState.NEEDS_CODE, None, reason, self.workflow.fingerprint))

    # -- the committer answers

    def settled(self, change: Change, effects: list[Effect]) -> None:
        """The change is durable: what it held back may act now."""
        self.durable = change.new_head
        machine = self.machine
        if machine.logs:
            self._emit_logs()
        if self.starting is not None:
            failpoint("start.after_commit")
            if not self.starting.done():  # the starter may have been cancelled; the run goes on
                self.starting.set_result(self.completion)
            self.starting = None
        if change.move is not None:
            self._gone(change.move)
        else:
            self._act(effects)

    def _act(self, effects: list[Effect]) -> None:
        executor, activities = self._host.executor, self.machine.activities
        stays = not self.leaving and not self._host.draining
        for effect in effects:
            if not isinstance(effect, Command):
                effect()
            elif effect.kind is _ACTIVITY:
                pending = activities.get(effect.seq) if stays else None
                if pending is not None:
                    executor.start(self, effect.seq, pending)
            elif effect.kind is CommandKind.CANCEL:
                executor.cancel(self, effect.target)
        if self._backlog or self._held_up or self.lacking or self._host.draining:
            self._host.call_soon(self._go_on)  # not here: a turn must not run inside the committer's task

    def _too_far_ahead(self) -> bool:
        return self.head - self.durable >= self._host.settings.undurable_entries

    def _go_on(self) -> None:
        """There is room again for what was held up, or there is nothing left to wait for before leaving."""
        while self._backlog and not self._too_far_ahead() and not self.leaving:
            kind, body = self._backlog.popleft()
            if kind not in _ANSWERS or body.seq in self.machine.activities:
                self._take_turn(kind, body)
        self.hand_back_when_draining()
        if self.leaving:
            return
        if self.lacking:
            self._after_turn()
        elif self._held_up and not self._backlog and not self._too_far_ahead():
            self._held_up = False
            self.wake(self._host.clock.now())

    def _gone(self, move: Move) -> None:
        if move.state in CLOSED:
            failpoint("close.durable")
            self.completion.settle(move.state, self.machine.outcome)
            self._host.waiters.settle(self.run_id, (move.state, self.machine.outcome))
        else:
            self.completion.lose()
        self.leaving = True
        self._host.disarm(self)
        self._host.executor.cancel_all(self)
        self.machine.tear_down()
        self._host.forget(self, move.wake_at if move.state not in CLOSED else None)
        self._host.waiters.look_for(self.run_id)
        failpoint("evict.after")

    def _emit_logs(self) -> None:
        logs, self.machine.logs = self.machine.logs, []
        for emit in logs:
            try:
                emit()
            except Exception as error:  # noqa: BLE001 - somebody's log handler must not harm the run
                log.warning("a log line of run %s was lost: %r", self.identity.id, error)

    def drop(self, error: BaseException | None = None) -> None:
        """It is not ours any more: forget it without a word to the store. Whoever waits for it looks there."""
        self.leaving = True
        self.change = None
        self.effects = []
        if self.starting is not None and not self.starting.done():
            self.starting.set_exception(error or OutcomeUnknown(_UNKNOWN_START))
        self.starting = None
        self.completion.lose()
        self._host.disarm(self)
        self._host.executor.cancel_all(self)
        self.machine.tear_down()
        self._host.forget(self, None)
        self._host.waiters.look_for(self.run_id)


def _as_input(message: Message) -> tuple[EntryKind, Body]:
    match message.kind:
        case MessageKind.START:
            return EntryKind.STARTED, json.decode(message.body, type=Body)
        case MessageKind.CANCEL:
            return EntryKind.CANCEL_REQUESTED, Body(reason=message.name)
        case _:
            return EntryKind.SIGNAL, Body(name=message.name, value=Raw(message.body.encode()))
