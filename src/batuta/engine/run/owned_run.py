"""A run that this worker owns: inputs go in, entries go to the committer, effects go out when they are durable."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, cast

from msgspec import UNSET, MsgspecError, Raw

from batuta.authoring.activity.attempt import BatchInfo
from batuta.authoring.definitions import Workflow
from batuta.authoring.failures.conversion import to_failure
from batuta.clock import SECOND
from batuta.engine.activities.call import DROPPED, ENDED, Effect, TransactionalInput, Turn
from batuta.engine.machine.async_generators import TurnHooks
from batuta.engine.machine.deferred_logs import is_printable
from batuta.engine.machine.identity import RunIdentity
from batuta.engine.machine.machine import Machine
from batuta.engine.machine.message_handlers import SignalsDropped
from batuta.engine.machine.replay import Replay
from batuta.engine.machine.routing import Route
from batuta.engine.run.effects import effects_of
from batuta.engine.run.inputs import Input, damaged, pause_of, readable_input
from batuta.engine.run.refused_close import RefusedClose
from batuta.engine.run.waiting import WaitingHost, WaitingRun
from batuta.engine.worker.dead_letter_alerts import Alerts
from batuta.engine.worker.timers import Timers
from batuta.engine.worker.waiters import Completion, Waiters
from batuta.errors import (
    InvalidInput,
    OutcomeUnknown,
    PayloadDamaged,
    PayloadSealed,
    WorkerError,
    WorkflowBroken,
    WorkflowRaised,
    told,
)
from batuta.failpoints import failpoint
from batuta.ids import RunId
from batuta.journal.codec_envelope import refuse_coded
from batuta.journal.entries import Body, Command, CommandKind, Entry, EntryKind, StartInfo
from batuta.journal.kinds import MESSAGES
from batuta.journal.records import (
    PAUSES,
    Attempt,
    Change,
    Message,
    MessageKind,
    Move,
    NewRun,
    OutputKind,
    Refusal,
    Run,
    RunKind,
)
from batuta.journal.states import CLOSED, RunState

log = logging.getLogger("batuta.engine")

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
_DONE, _FAILED, _UPDATE = EntryKind.ACTIVITY_DONE, EntryKind.ACTIVITY_FAILED, EntryKind.UPDATE
_STARTED, _TIMER_FIRED = EntryKind.STARTED, EntryKind.TIMER_FIRED
_ACTIVITY, _CANCEL = CommandKind.ACTIVITY, CommandKind.CANCEL

_SHORTEST_LACK, _LONGEST_LACK = SECOND // 5, 5 * SECOND
_UNKNOWN_START = "the run may or may not have been started: start it again with the same id"
_FAILS = {_DONE: _FAILED, EntryKind.CHILD_DONE: EntryKind.CHILD_FAILED}
_READABLE = (MessageKind.SIGNAL, MessageKind.UPDATE, MessageKind.CANCEL)


class Host(WaitingHost, Protocol):
    """The part of the worker that an owned run uses."""

    turns: TurnHooks
    turn: OwnedRun | None
    """The run whose code runs now, for the watchdog."""
    waiters: Waiters
    letters: Alerts
    timers: Timers

    @property
    def begins(self) -> Callable[[OwnedRun, StartInfo], None] | None:
        """Middleware that wants to know of a run's first turn before it is made."""

    def submit_end(self, run: OwnedRun) -> None:
        """A change that only ends a job is to be written."""

    def caught_up(self, run: OwnedRun) -> None:
        """The run has no inputs left that wait: its inbox may be read again."""

    def report(self, run: OwnedRun, turn: Turn) -> None:
        """A turn that a transaction wrote is durable: tell the listeners."""

    def call_soon(self, callback: Callable[[], None]) -> None: ...

    def tell(self, run_id: RunId, message: Message) -> None:
        """The store has put a message into that run's inbox: if it is here, it need not be read."""

    def go_back(self, run: OwnedRun) -> None:
        """Bring the run back to its last durable entry, and then `resume` it."""

    def read_page(self, run: OwnedRun, after: int) -> None:
        """Read the page of its messages after that number, and `resume_page` it."""

    def look_after(self, run: OwnedRun, route: Route) -> None:
        """An activity of the run that is elsewhere may be over its time."""

    def finished(self, run: OwnedRun, outcome: Command) -> None:
        """A job is completed and has left memory, with nothing in it to be cleaned up."""

    def forget(self, run: OwnedRun, wake_at: int | None) -> None:
        """The run has left memory; it is due again at `wake_at`."""


class OwnedRun(WaitingRun):
    """One owned run. All methods are called on the worker's loop, from callbacks, never inside a task.

    Built in layers, each of which knows only those below it: `InputReader` turns messages into inputs, `ChangeWriter`
    makes entries and moves of them, `WaitingRun` knows the run's time and what it waits for. Turns, the committer's
    answers and leaving are here."""

    __slots__ = ("_again", "_held_up")

    _host: Host

    def __init__(self, host: Host, workflow: Workflow[..., Any], identity: RunIdentity, epoch: int) -> None:
        self._host = host
        self.workflow = workflow
        self.identity = identity
        self.run_id = identity.run_id
        self.epoch = epoch
        self.parent = None
        self.machine = Machine(workflow, identity, host.known)
        self._begin_writing()
        self._begin_waiting()
        self._held_up = False
        self._again: RefusedClose | None = None
        """It goes back to its last durable entry, to do this again."""

    def claimed(self, row: Run) -> None:
        """It comes from the store."""
        self.deadline, self.created_at = row.deadline, row.created_at
        if row.parent_run_id is not None and row.kind is not RunKind.JOB:
            self.parent = (row.parent_run_id, row.parent_seq)

    # -- coming into memory

    def begin(self, new: NewRun, body: Body, starting: asyncio.Future[Completion]) -> None:
        """The first turn of a run that is inserted already owned. Raises when it must not start like this. `starting`
        is done when the start is durable."""
        host = self._host
        self.starting = starting
        self._sign(body)
        self.ready = True
        host.turn = self
        try:
            self.machine.turn(at := host.clock.latest(), _STARTED, body, body.commands, host.turns.loop)
        finally:
            host.turn = None
        self.change = Change(self.run_id, self.epoch, -1, start=new)
        if new.timeout or new.execution_timeout:
            self.deadline = at + min(filter(None, (new.timeout, new.execution_timeout)))
        self._record(_STARTED, at, body)
        failpoint("start.before_commit")
        host.committer.submit(self)
        self._after_turn()

    def _sign(self, body: Body) -> None:
        """Fix what the run keeps for life: the code, the Python and the limits it began with."""
        start, host = body.start, self._host
        if start is not UNSET:
            start.fingerprint, start.python = self.workflow.fingerprint, PYTHON
            start.max_payload, start.bounded = host.settings.max_payload, True
            if host.begins is not None:
                host.begins(self, start)

    def restore(self, entries: Sequence[Entry]) -> Replay:
        """A replay of these entries; run it, then `resume`."""
        if entries:
            self.head = self.durable = entries[-1].ord
            self._crc = entries[-1].crc
            if (lead := entries[-1].at - self._host.clock.now()) > SECOND:  # the database's clock was set back since
                self.ahead = max(self.ahead, lead)
        if self._kept is not None:
            self._kept = list(entries)
        return Replay(self.machine, entries, self._host.turns)

    def resume(self, attempts: Sequence[Attempt], messages: Sequence[Message], *, more: bool = False) -> None:
        """Replayed to the end of its journal: start its pending calls, then read the inbox. `more`: the store has
        messages that are not among these."""
        self.ready = True
        if self.deadline is not None and self.deadline <= self.now():
            self.wake(self._host.clock.now())
            return
        self.more_messages = more
        if attempts and attempts[0].seq <= PAUSES:
            self.pauses = [one for one in attempts if one.seq == PAUSES]
        if self._again is not None:
            again, self._again = self._again, None
            self._do_again(again, attempts, messages)
            return
        if self._host.draining:
            self.evict()
            return
        machine = self.machine
        if machine.lineage is not None and machine.sagas is not None:  # those of the run that it was made from
            machine.sagas.add_to(effects_of(self.open_change()).outputs, self.head)
        if machine.related is not None:
            self._send_again()  # before any turn: what that one sends comes after it
            self._hear(machine.related.ended_untold(), ())
        if machine.activities:
            answered = self.answered_early(messages, attempts)
            for seq in list(machine.activities):
                if seq in self.machine.activities:  # resuming another one may have caused a turn
                    tries = [a for a in attempts if a.seq == seq]
                    self._host.executor.resume(self, seq, tries, answered=seq in answered)
        if messages:
            self.receive(messages)
        if self.head >= 0:
            self.wake(self._host.clock.now())

    # -- messages

    def expect_more(self, more: bool) -> None:
        """Whether the store has more messages than those that the run is about to be given."""
        self.more_messages = more

    def read(self, messages: Sequence[Message], *, held: bool = False) -> None:
        """Deliver these. Messages that it cannot read park it, or drop it to be read again. `held`: it was about to be
        held when its whole inbox was read."""
        if self.leaving or (held and self.pausing is None):
            return
        try:
            if held:
                self._read_held(messages)
            else:
                self.receive(messages)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other runs go on
            self.park_or_drop(messages, error)

    def receive(self, messages: Sequence[Message]) -> None:
        """Deliver the messages that were not delivered before."""
        failpoint("message.read")
        if self.head < 0:
            messages = self.in_reading_order(messages)
        inbox = self.inbox
        self.reading = True
        try:
            for message in messages:
                if not inbox.is_new(message) or self.leaving or not self.ready:
                    continue
                if self.pausing is None or message.kind is MessageKind.TERMINATE:
                    inbox.see(message)
                    self._read(message)
        finally:
            self.reading = False
        if messages and not self.leaving and not inbox.backlog and self.head >= 0:
            self._after_turn()
            self.evict_when_draining()

    def _read_held(self, messages: Sequence[Message]) -> None:
        """It is to be held: goes on if the PAUSE was taken back, ends if it was told to."""
        if pause_of(messages) is not None:
            self.receive(messages)
        elif self.head == self.durable and not self.inbox.backlog:
            self.pausing = None
            self._host.executor.unshelve(self)
            self._pick_up(set(self.machine.activities), [], set())
            if messages and not self.leaving:
                self.receive(messages)
            self.wake(self._host.clock.now())
        # Else it leaves when it can: the store sees that it is not to be held any more, and makes it due.

    def _read(self, message: Message) -> None:
        if message.kind is MessageKind.TERMINATE:
            self._end(EntryKind.TERMINATED, RunState.TERMINATED, message.name, message.message_id)
            return
        if message.kind is MessageKind.ACTIVITY:
            self._host.executor.outside.take(self, message)
            return
        if message.kind is MessageKind.PAUSE:
            self.pausing = message.name
            return
        found = self.as_input(message)
        if found is None:
            self.open_change().consumed += (message.message_id,)
            return
        if found[0] is EntryKind.STARTED:
            self._sign(found[1])
        self.deliver(*found)

    def park_or_drop(self, messages: Sequence[Message], error: Exception) -> None:
        """It failed to read these, or its attempts. Coded or damaged values would fail each time: park it."""
        try:
            for message in messages:
                refuse_coded(message.body, f"message {message.message_id!r}")
            if isinstance(error, MsgspecError | RecursionError):
                raise PayloadDamaged(f"{damaged(messages)} cannot be read: {told(error)}")
        except PayloadSealed as sealed:
            self.park(f"{type(sealed).__name__}: {sealed}")
            return
        log.error("run %s is dropped and will be read again", self.run_id, exc_info=error, extra=self.machine.logged)
        self.drop()

    # -- turns

    def deliver(self, kind: EntryKind, body: Body) -> None:
        """Run the turn that this input causes, and queue its entry."""
        if self.leaving or not self.ready:
            if self._again is not None or self.machine.outcome is not None:
                self.inbox.backlog.append((kind, body))  # should it not close after all
        elif not self.is_awaited(kind, body):
            self._after_turn()  # it was cancelled by a turn that was not durable yet when it answered
        elif self.inbox.backlog or self._too_far_ahead():
            self.inbox.backlog.append((kind, body))
        elif kind is not _UPDATE or self.accepts(body):
            self.run_turn(kind, body)

    def run_turn(self, kind: EntryKind, body: Body, at: int = 0) -> None:
        """The turn itself, at a time that is not before `at`."""
        failpoint("turn.before")
        host = self._host
        if kind is not _DONE and body.error is not UNSET:
            self.decide(body.error, body.name)
        machine = self._rebuilt(self._kept) if self._kept else self.machine
        now = at or (self._turn_time(kind) if self.ahead else host.clock.latest())
        at = now if now > machine.at else machine.at
        commands = body.commands
        if commands:
            commands = body.commands = []  # it is delivered again
        host.turn = self
        submitted = self.change is not None
        try:
            machine.turn(at, kind, body, commands, host.turns.loop)
            failpoint("turn.after")
            self._record(kind, at, body)
        except KeyboardInterrupt:  # in the middle of a turn: the machine cannot be trusted
            self.drop()
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, the run is parked and the others go on
            machine.unlog()
            if isinstance(error, InvalidInput):
                self._does_not_fit(kind, body, error)
            elif isinstance(error, SignalsDropped):
                self._again, self.ready = RefusedClose.with_all_values(self.run_id, self.epoch, (kind, body)), False
                self._when_durable(partial(host.go_back, self))
            else:
                self._keep_answer(kind, body)
                self._park_after(error)
            return
        finally:
            host.turn = None
        if not submitted:
            host.committer.submit(self)
        failpoint("commit.queued")
        self._after_turn()

    def _does_not_fit(self, kind: EntryKind, body: Body, error: InvalidInput) -> None:
        """A result that does not fit its annotation is its activity's or child's failure; other values park the run."""
        if kind not in _FAILS:
            self.park(str(error))
            return
        self.machine.retract()
        body.value, body.error = UNSET, to_failure(error)
        body.error.retryable = False
        self.run_turn(_FAILS[kind], body)

    def _rebuilt(self, kept: list[Entry]) -> Machine:
        """Always-replay mode: another machine, fed with the whole journal."""
        before = self.machine
        self._renew_machine()
        Replay(self.machine, kept).run()
        self.machine.inherit(before)
        return self.machine

    def _after_turn(self) -> None:
        """Close, leave memory or wait here, as the turn left things."""
        machine = self.machine
        if machine.outcome is not None:
            self._close(machine.outcome)
            return
        if self.reading:
            return
        when = self.deadline
        if machine.deadlines and (timer := machine.next_timer()) is not None and (when is None or timer[0] < when):
            when = timer[0]
        if machine.related is not None and machine.related.routed:
            when = self._next_wake()
        if self.lacking and not self.calls and self.head == self.durable:
            lacks = [seq for seq in self.lacking if seq in machine.activities]
            if lacks:
                later = self._handed_back_until(max(machine.activities[seq].issued_at for seq in lacks))
                self.evict_until(later if when is None else min(when, later), self.lacking[lacks[0]])
                return
        if not machine.activities and not self.calls:
            now, keep = self.now(), int(self._host.settings.keep_in_memory * SECOND)
            stays = 0 if self.draining else self._stays_until(keep)
            if stays > now:
                when = stays if when is None else min(when, stays)
            elif (when is None or when > now + keep or self.draining) and not self.lingers(when):
                self.evict_until(when)
                return
        elif self.patient and self._evict_if_all_wait():
            return
        if when is not None:
            self._arm(when)

    def _handed_back_until(self, since: int) -> int:
        """A lacking activity has waited since then: as long again, so that the other workers are soon asked, and asked
        less often when none has it."""
        now = self.now()
        return now + min(_LONGEST_LACK, max(_SHORTEST_LACK, now - since))

    def wake(self, now: int) -> None:
        """A timer or the deadline may be due. `now`: the database's time."""
        if self.leaving or not self.ready:
            return
        now += self.ahead
        if self.deadline is not None and now >= self.deadline:
            self._end(EntryKind.TIMED_OUT, RunState.TIMED_OUT, "the run exceeded its time limit")
            return
        if self.machine.related is not None:
            for route in self.machine.related.due_checks(now):
                self._host.look_after(self, route)
        if self.pausing is None:
            self._fire_timers(now)

    def _arm(self, when: int) -> None:
        """Be woken at `when` of its own time. An earlier alarm serves, too: the run arms itself again then."""
        self.alarm = self._host.timers.arm(self, when - self.ahead, self.alarm)

    def ring(self, now: int) -> None:
        """Its alarm is due. `now`: the database's time."""
        self.alarm = None
        self.wake(now)

    def _fire_timers(self, now: int) -> None:
        """Each timer that is due is an input of its own, earliest first."""
        while not self.leaving and (timer := self.machine.next_timer()) is not None and timer[0] <= now:
            if self.inbox.backlog or self.head - self.durable >= self._host.settings.undurable_entries:
                self._held_up = True  # `settled` comes back here
                return
            failpoint("timer.fired")
            self.run_turn(_TIMER_FIRED, Body(timer[1]))  # all that `deliver` asks has been asked
        if not self.leaving:
            self._after_turn()

    def _end(self, kind: EntryKind, state: RunState, reason: str, message_id: str = "") -> None:
        """Close the run without a word to its code."""
        at = max(self._host.clock.latest() + self.ahead, self.machine.at)
        submitted = self.change is not None
        self._record(kind, at, Body(reason=reason, message_id=message_id))
        sagas = self.machine.sagas
        child = sagas.child() if sagas is not None and kind is EntryKind.TIMED_OUT else None
        if child is not None and self.change is not None:
            effects_of(self.change).children.append(child)
        if not submitted:
            self.submit()
        self.move(self._ended_move(state, reason))

    # -- activities answer

    def call_over(self) -> None:
        """An activity whose answer no code waits for has ended."""
        if not self.leaving and self.ready:
            self._after_turn()
            self.evict_when_draining()

    def say(self, progress: str) -> None:
        """An attempt said how far it is: a workflow says itself what it publishes."""

    def say_last(self, progress: str) -> None:
        """The same, with its answer."""

    def gave_up(self, attempt: Attempt) -> None:
        """The last attempt of a call failed: the journal of a workflow says that by itself."""

    def batch(self, loop: asyncio.AbstractEventLoop) -> Future[BatchInfo]:
        """The outcomes of the batch that this run was called for."""
        raise WorkerError("batch_info() was called in an activity of a workflow: it is for jobs that a batch calls")

    def _pick_up(self, pending: set[int], attempts: Sequence[Attempt], answered: set[int]) -> None:
        """Go on with calls that stood still, or were not begun, because the run was closing."""
        if self.leaving:
            return
        executor = self._host.executor
        for seq in sorted(pending & self.machine.activities.keys() - self.lacking.keys() - answered):
            if seq not in self.calls:
                executor.resume(self, seq, [a for a in attempts if a.seq == seq])
        executor.remind(self)

    # -- the committer answers

    def fail_start(self, error: Exception) -> None:
        """The start may have been written: its caller learns that this is unknown, and the run goes on."""
        if self.starting is not None and not self.starting.done():
            self.starting.set_exception(error)
        self.starting = None

    def settled(self, change: Change, effects: list[Effect], refusals: Sequence[Refusal] = ()) -> None:
        """The change is durable, but for `refusals`: what it held back may act now."""
        self.durable = change.head + len(change.entries)
        host, machine, beyond = self._host, self.machine, change.effects
        if machine.logs:
            machine.emit_logs(self.durable + 1)
        if beyond is not None:
            for output in beyond.outputs:  # who waits for an answer in this process need not look for it
                if output.kind is OutputKind.ANSWER:
                    host.waiters.answers.settle((self.identity.chain_id, output.name), output)
            if beyond.letter is not None:
                host.letters.arrived(self._letter(change, beyond.letter))
        if self.starting is not None:
            failpoint("start.after_commit")
            self.completion = Completion()
            host.committer.started(self.starting, self.completion)
            self.starting = None
        if change.move is not None:
            self._leave(change.move)
            return
        draining = host.draining or self.pausing is not None
        stays = not self.leaving and not draining
        for effect in effects:
            if type(effect) is not Command:
                cast("Callable[[], None]", effect)()
            elif effect.kind is _ACTIVITY:
                seq = effect.seq
                if stays and (pending := machine.activities.get(seq)) is not None:
                    host.executor.start(self, seq, pending)
            elif effect.kind is _CANCEL:
                host.executor.cancel(self, effect.target)
        inbox = self.inbox
        if inbox.backlog or self._held_up or self.lacking or draining or self.more_messages:
            host.call_soon(self._go_on)  # not here: a turn must not run inside the committer's task
        if beyond is not None:
            self._hear(effects, refusals)

    def _hear(self, effects: Sequence[Effect], refusals: Sequence[Refusal]) -> None:
        """The store's word on what the run sent goes to the code that waits for it."""
        related = self.machine.related
        commands = [one for one in effects if isinstance(one, Command)]
        inputs = [] if related is None else related.store_answers(commands, refusals)
        if inputs and not self.leaving:
            self.inbox.backlog[:0] = inputs
            self._host.call_soon(self._go_on)

    def _too_far_ahead(self) -> bool:
        return self.head - self.durable >= self._host.settings.undurable_entries

    def _go_on(self) -> None:
        """There is room again for what was held up, or there is nothing left to wait for before leaving."""
        if self._again is not None:
            return  # the rest of its messages comes first
        inbox = self.inbox
        while inbox.backlog and not self._too_far_ahead() and not self.leaving:
            if self._is_stopped(inbox.backlog[0][1]):
                return
            kind, body = inbox.backlog.pop(0)
            if self.is_awaited(kind, body) and (kind is not _UPDATE or self.accepts(body)):
                self.run_turn(kind, body)
        self.evict_when_draining()
        if self.leaving:
            return
        if not inbox.backlog and (not self.more_messages or (self.change is None and self.head == self.durable)):
            self._host.caught_up(self)
        if self.lacking:
            self._after_turn()
        elif self._held_up and not inbox.backlog and not self._too_far_ahead():
            self._held_up = False
            self.wake(self._host.clock.now())

    # -- leaving

    def evict_when_draining(self) -> None:
        """Leave if nothing new is to begin."""
        if self.draining and not self.leaving and self._again is None:
            self.evict()

    def _evict_if_all_wait(self) -> bool:
        """Whether it leaves memory, because every activity waits, and for long."""
        if self.reading or not self._only_waits():
            return False
        now, keep = self.now(), int(self._host.settings.keep_in_memory * SECOND)
        when, stays = self._next_wake(), self._stays_until(keep)
        if stays > now:
            self._arm(stays)
        elif (when is None or when > now + keep) and not self.lingers(when):
            self.evict_until(when)
        return self.leaving

    def call_waits(self) -> None:
        """A call waits long for its next try, or for an answer from outside: leave memory if nothing else goes on."""
        self.patient = True
        if self.draining:
            self.evict_when_draining()
        elif not self.leaving and self.ready:
            self._evict_if_all_wait()

    def _leave(self, move: Move) -> None:
        """Its last change here is durable."""
        host, machine, closed = self._host, self.machine, move.state in CLOSED
        if closed:
            failpoint("close.durable")
            end = (move.state, machine.outcome)
            if self.completion is not None:
                self.completion.settle(end)
            if host.waiters.waiting:
                host.waiters.settle(self.run_id, end)
            if self.parent is not None and (message := self._parent_message(move)) is not None:
                host.tell(self.parent[0], message)
        elif self.completion is not None:
            self.completion.lose()
        self._tear_down(ENDED, None if closed else move.wake_at)
        if not closed:
            host.waiters.look_for(self.run_id)
        failpoint("evict.after")

    def drop(self, error: BaseException | None = None) -> None:
        """It is not ours any more: forget it without telling the store. Waiters look there."""
        if self.starting is not None and not self.starting.done():
            self.starting.set_exception(error or OutcomeUnknown(_UNKNOWN_START))
        self.change, self.effects, self.starting = None, [], None
        if self.completion is not None:
            self.completion.lose()
        self._tear_down(DROPPED, None)
        self._host.waiters.look_for(self.run_id)

    def _tear_down(self, why: str, wake_at: int | None) -> None:
        self.leaving = True
        if self.alarm is not None:
            self._host.timers.disarm(self.alarm)
            self.alarm = None
        if self.calls:
            self._host.executor.cancel_all(self, why)
        self.machine.tear_down()
        self._host.forget(self, wake_at)

    def _park_after(self, error: BaseException) -> None:
        raised = error.__cause__ if isinstance(error, WorkflowRaised) else None
        if isinstance(error, WorkflowRaised) and raised is not None and is_printable(raised):
            self.park(str(error), f"the workflow raised {error.summary}", raised)
        else:
            self.park(str(error) if isinstance(error, WorkflowBroken) else f"its turn failed: {told(error)}")

    # -- a close that is refused

    def unread(self, change: Change, effects: list[Effect]) -> None:
        """The change would have closed the run, and it was sent what it has not seen: nothing of it was written."""
        self._again = RefusedClose(change, effects)
        self._host.go_back(self)

    def go_back(self, entries: Sequence[Entry]) -> Replay:
        """Forget everything that is not durable. Run the replay, then `resume`."""
        self._renew_machine()
        self.leaving = self.ready = False
        self.head = self.durable = -1
        self._crc = 0
        return self.restore(entries)

    def _do_again(self, again: RefusedClose, attempts: Sequence[Attempt], messages: Sequence[Message]) -> None:
        """The run is replayed to its last durable entry: repeat the later inputs, together with the unread messages."""
        if self.inbox.open():  # a change that came meanwhile has a wrong head now
            again.add(self.take_change())
        self._send_again()
        again.begin(set(self.machine.activities), attempts)
        if again.inputs and again.inputs[-1][0] in MESSAGES:  # others, such as the start, are given again only here
            self.inbox.unsee(again.inputs[-1][1].message_id)
        self._read_on(again, messages)

    def _read_on(self, again: RefusedClose, messages: Sequence[Message]) -> None:
        """The same with the next messages: a page of them if there are more, which the run waits for."""
        inbox = self.inbox
        self.reading = True
        inbox.unsee_backlog()
        more = self.more_messages and bool(again.inputs)
        try:
            self._redo(again, messages, more=more)
            if more and not self.leaving:
                again.next_page(messages)
                self._read_page_when_durable(again)
                return
            answered = inbox.answered() | self.answered_early(messages, again.attempts)
            self._pick_up(again.pending, again.attempts, answered)
            self.receive(messages)
            # Pages that it has passed may have answers of children.
            self.more_messages = self.more_messages or again.after > 0
        finally:
            self.reading = False
        again.then()
        self.go_on_soon()  # the backlog is empty: messages that were hinted at may be read
        self.wake(self._host.clock.now())

    def _redo(self, again: RefusedClose, messages: Sequence[Message], *, more: bool) -> None:
        """Give the run the same inputs, with the unread messages before the last one.

        They are put before the code together, and it runs when the last is there: so it cannot end before it could see
        them, in whatever order it takes them. With `more` these are a page of the messages, and the last input waits
        for the others.
        """
        if again.has_more:
            effects = again.add_to(self.open_change())
            self.effects += effects
        if not again.inputs:
            return
        for (kind, body), at in zip(again.inputs[:-1], again.times, strict=False):
            self.run_turn(kind, body, at)
        tail = self._tail(again.inputs[-1], messages, more=more)
        accepted = [one for one in tail if one[0] is not EntryKind.UPDATE or self.accepts(one[1])]
        last = accepted[-1] if accepted else again.inputs[-1]
        if more:
            again.wait_with(last)
            accepted = accepted[:-1]
        for kind, body in accepted:
            if self.leaving:
                break  # a turn failed, or a validator acted: it is parked where it was
            body.quiet = more or body is not last[1]
            self.run_turn(kind, body)

    def _tail(self, last: Input, messages: Sequence[Message], *, more: bool) -> list[Input]:
        """The unread messages and the input that ended the run, in their order; an input that is no message comes after
        them, and a message of an earlier page before them. A cancel comes last of all: it meets the code where the
        other inputs have brought it."""
        kind, body = last
        readable = [one for one in messages if one.kind in _READABLE and not (more and one.kind is MessageKind.CANCEL)]
        is_of_earlier_page = kind in MESSAGES and self.inbox.has_seen(body.message_id)
        unread = [one for one in readable if self.inbox.is_new(one)]
        unread.sort(key=lambda one: one.number)
        for one in unread:
            self.inbox.see(one)
        inputs = [readable_input(one) for one in unread if one.kind is not MessageKind.CANCEL]
        if kind is EntryKind.STARTED or is_of_earlier_page:
            inputs.insert(0, last)
        elif kind not in MESSAGES:
            inputs.append(last)
        return inputs + self._cancels([one for one in unread if one.kind is MessageKind.CANCEL])

    def _read_page_when_durable(self, again: RefusedClose) -> None:
        """It took some of its messages. The next ones are read when these are durable, so that few are in memory.
        Until all were read, other inputs wait."""
        self._again, self.ready = again, False
        self._when_durable(partial(self._read_page, again))

    def _when_durable(self, then: Callable[[], None]) -> None:
        if self.change is None and not self._host.committer.is_writing(self):
            self._host.call_soon(then)
        else:
            self.open_change()
            self.effects.append(then)

    def _read_page(self, again: RefusedClose) -> None:
        if again.drops and self.machine.message_handlers is not None:
            self.machine.message_handlers.drop_values()
        self._host.read_page(self, again.after)

    def resume_page(self, messages: Sequence[Message], *, more: bool) -> None:
        """The next messages of those that it must read before it ends."""
        again, self._again = self._again, None
        self.ready = True
        self.more_messages = more
        if again is not None:
            self._read_on(again, messages)

    # -- answers that are written in transactions of their own

    def add_input(self, answer: TransactionalInput) -> None:
        """Have the answer wait for its place among the run's inputs."""
        self.inbox.hold(answer)
        if answer.data is None and len(self.inbox.backlog) == 1 and not self.leaving:
            self._is_stopped(answer.body)
            if answer.reached.done():  # no turn runs yet: that saves two rounds of the event loop
                return
        self.go_on_soon()

    def _is_stopped(self, body: Body) -> bool:
        """Whether this input, the next one, and all others must wait."""
        inbox = self.inbox
        if inbox.transactional is not None:
            return True
        answer = inbox.held(body)
        if answer is None:
            return False
        if answer.call.over or body.seq not in self.machine.activities:
            body.seq = 0  # no code waits for it: so it is no input
            return False
        if (
            self.head == self.durable
            and self.change is None
            and self.ready
            and not self._host.committer.is_writing(self)
        ):
            inbox.shut(answer)
            if answer.data is not None:
                self.take_turn(answer, answer.data)
            if not answer.reached.done():
                answer.reached.set_result(None)
        return True

    def take_turn(self, answer: TransactionalInput, data: bytes) -> None:
        """Run the turn of an answer whose place it is. From a callback, as any turn.

        `answer.turn` stays None when it has failed, or the run is leaving: then the committer writes.
        """
        if self.leaving:  # it was ended or parked while the activity's code ran: no entry may come after that
            return
        try:
            self._take_turn(answer, data)
        except BaseException as error:
            if isinstance(error, Exception):
                log.exception("run %s is dropped and will be read again", self.identity.id, extra=self.machine.logged)
            answer.call.over = True
            answer.reached.cancel()
            self.drop()
            raise

    def _take_turn(self, answer: TransactionalInput, data: bytes) -> None:
        call, body = answer.call, answer.body
        body.value, body.attempts, body.started_at = Raw(data), call.attempt, call.started_at
        self.calls.pop(call.seq, None)
        self.inbox.lift()
        change = self.open_change()
        with self._host.turns:
            self.answer(body)
        self.inbox.stop()
        if self.change is change and change.entries and change.entries[-1].kind is _DONE:
            answer.turned(self.take_change())

    def answer(self, body: Body) -> None:
        """The turn of an answer that is written in a transaction of its own."""
        self.run_turn(_DONE, body)

    def remove_input(self, answer: TransactionalInput) -> None:
        """It is no input any more: let the others through."""
        if self.inbox.remove(answer) and self.change is not None:
            self.submit()
        if not self.leaving:
            self.go_on_soon()

    def settle_transaction(self, turn: Turn, refusals: Sequence[Refusal]) -> None:
        """The transaction that wrote this turn is durable."""
        waits = self.change is not None
        self._host.report(self, turn)
        self.inbox.open()
        self.settled(*turn, refusals)
        if waits and self.change is not None:
            self.submit()
        if self.inbox.backlog and not self.leaving:
            self.go_on_soon()

    def take_back(self, answer: TransactionalInput, turn: Turn, then: Callable[[], None]) -> None:
        """Nothing of its transaction is durable: the turn never was. `then` is called when the run is where it was."""
        answer.turned(None)
        if self.change is not None and (self.change.entries or self.change.move is not None):
            self.drop()  # it has ended on top of what never was
            return
        self.calls[answer.call.seq] = answer.call
        self._again = RefusedClose(*turn, then)
        self.ready = False
        self._host.go_back(self)

    def go_on_soon(self) -> None:
        self._host.call_soon(self._go_on)
