"""A run that this worker owns: inputs go in, entries go to the committer, effects go out when they are durable."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from msgspec import UNSET

from batuta import failpoints
from batuta.authoring.definitions import Workflow
from batuta.authoring.failures import to_failure
from batuta.authoring.names import readable
from batuta.clock import SECOND
from batuta.engine.calls import Call
from batuta.engine.chains import closing_move, ended_move
from batuta.engine.completion import Completion
from batuta.engine.departing import depart, drop
from batuta.engine.effects import add_effects
from batuta.engine.held import Holding
from batuta.engine.host import Host
from batuta.engine.identity import RunIdentity
from batuta.engine.letters import add_letter, letter_of
from batuta.engine.logs import emit
from batuta.engine.machine import Machine
from batuta.engine.outside import answered_early
from batuta.engine.reading import accepts, as_input, is_awaited, tell_answers, to_begin_with
from batuta.engine.redoing import Redo, do_again
from batuta.engine.relations import send_again, store_answers
from batuta.engine.replay import Replay
from batuta.engine.routes import due_checks
from batuta.engine.waiting import is_at_work, is_owed, leave_if_all_wait, next_wake, only_waits, stays_until
from batuta.errors import InvalidInput, OutcomeUnknown, WorkflowBroken
from batuta.failpoints import failpoint
from batuta.ids import RunId
from batuta.journal.entries import Body, Command, CommandKind, Entry, EntryKind, StartInfo, encode_entry
from batuta.journal.records import PAUSES, Attempt, Change, Message, MessageKind, Move, NewRun, Refusal, and_then
from batuta.journal.states import RunState
from batuta.telemetry import ActivityCompleted, RunFacts

if TYPE_CHECKING:
    from batuta.engine.executor import Executor
    from batuta.engine.timers import Alarm

log = logging.getLogger("batuta.engine")

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
_DONE, _FAILED, _UPDATE = EntryKind.ACTIVITY_DONE, EntryKind.ACTIVITY_FAILED, EntryKind.UPDATE
_STARTED, _TIMER_FIRED = EntryKind.STARTED, EntryKind.TIMER_FIRED
_ACTIVITY, _CANCEL = CommandKind.ACTIVITY, CommandKind.CANCEL
_RUN_FAILED = RunState.FAILED

_LACK_SECONDS = 5
_UNKNOWN_START = "the run may or may not have been started: start it again with the same id"
_FAILS = {_DONE: _FAILED, EntryKind.CHILD_DONE: EntryKind.CHILD_FAILED}

Effect = Command | Callable[[], None]
"""What waits for a change to be durable."""


class LiveRun:
    """One owned run. All methods are called on the worker's loop, from callbacks, never inside a task."""

    early = is_call = False
    """As a CallRun says."""

    __slots__ = tuple(
        "_again _crc _held_up _host _kept alarm backlog calls change completion created_at deadline durable effects "
        "epoch head holding identity lacking last leaving machine parent patient pauses pausing prepare reading ready "
        "run_id seen starting told workflow".split()
    )

    def __init__(self, host: Host, workflow: Workflow[..., Any], identity: RunIdentity, epoch: int) -> None:
        self._host = host
        self.workflow = workflow
        self.identity = identity
        self.run_id = identity.run_id
        self.epoch = epoch
        self.head = self.durable = -1
        self.deadline: int | None = None
        self.created_at = 0  # known of one that was claimed
        self.told: RunFacts | None = None  # what events say of it, once there was one
        self.prepare: Callable[[], object] | None = None  # sets the context of its attempts, once middleware said how
        self.parent: tuple[RunId, int] | None = None
        """Its run id, and the command that began this run."""
        self.machine = Machine(workflow, identity)
        self.change: Change | None = None
        self.effects: list[Effect] = []
        self.calls: dict[int, Call] = {}
        self.completion: Completion | None = None  # for whoever started it here
        self.starting: asyncio.Future[Completion] | None = None
        self.alarm: Alarm | None = None
        self.ready = False
        """At the end of its tape: inputs may be delivered."""
        self.lacking: dict[int, str] = {}
        """Calls of activities that this worker does not have, with what to do about it."""
        self.patient = False
        """A call waits long, or for an answer from outside: it need not hold the run in memory."""
        self.leaving = False
        self.pausing: str | None = None
        """Why an operator holds it: it leaves as soon as nothing is in flight."""
        self.pauses: Sequence[Attempt] = ()  # when it was paused before
        self.seen: set[str] = set()
        self.reading = False
        """More messages are about to be delivered: it does not leave before it has seen them."""
        self._again: Redo | None = None
        self._crc = 0
        self._held_up = False
        self.backlog: list[tuple[EntryKind, Body]] = []  # no deque: an empty one has 600 bytes, a tenth of a run
        self._kept: list[Entry] | None = [] if host.settings.always_replay else None
        self.last: EntryKind | None = None
        self.holding: Holding | None = None
        """Answers that are written in transactions of their own, if there are any."""

    @property
    def executor(self) -> Executor:
        return self._host.executor

    @property
    def named(self) -> tuple[str, str]:
        """Its id and its queue."""
        return self.identity.id, self.identity.queue

    @property
    def started_with(self) -> StartInfo:
        return self.machine.start

    @property
    def draining(self) -> bool:
        """Whether nothing new is to begin: its worker stops, or it is held."""
        return self._host.draining or self.pausing is not None

    # -- coming into memory

    def begin(self, new: NewRun, body: Body) -> None:
        """The first turn of a run that is inserted already owned. Raises when it must not start like this."""
        host = self._host
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
        if failpoints.armed is not None:
            failpoint("start.before_commit")
        host.submit(self)
        self._after_turn()

    def _sign(self, body: Body) -> None:
        """What the first turn fixes for the run's life: the code, the Python and the limits it began with."""
        start, host = body.start, self._host
        if start is not UNSET:
            start.fingerprint, start.python = self.workflow.fingerprint, PYTHON
            start.max_payload = host.settings.max_payload
            if host.begins is not None:
                host.begins(self, start)

    def restore(self, entries: Sequence[Entry]) -> Replay:
        """A replay of these entries; run it, then `resume`."""
        if entries:
            self.head = self.durable = entries[-1].ord
            self._crc = entries[-1].crc
        if self._kept is not None:
            self._kept = list(entries)
        return Replay(self.machine, entries, self._host.turns)

    def resume(self, attempts: Sequence[Attempt], messages: Sequence[Message]) -> None:
        """Replayed to the end of its tape: start what is pending there, then read the inbox."""
        self.ready = True
        if attempts and attempts[0].seq == PAUSES:
            self.pauses = [one for one in attempts if one.seq == PAUSES]
        if self._again is not None:
            again, self._again = self._again, None
            do_again(self, again, attempts, messages)
            self.wake(self._host.clock.now())
            return
        if self._host.draining:
            self.hand_back()
            return
        machine = self.machine
        if machine.kin is not None:
            send_again(self)  # before any turn: what that one sends comes after it
        if machine.activities:
            answered = answered_early(self, messages, attempts)
            for seq in list(machine.activities):
                if seq in self.machine.activities:  # resuming another one may have caused a turn
                    tries = [a for a in attempts if a.seq == seq]
                    self._host.executor.resume(self, seq, tries, answered=seq in answered)
        if messages:
            self.receive(messages)
        if self.head >= 0:
            self.wake(self._host.clock.now())

    def receive(self, messages: Sequence[Message]) -> None:
        """Deliver what is unread and was not delivered before."""
        failpoint("message.read")
        if self.head < 0:
            messages = to_begin_with(messages)
        self.reading = True
        try:
            for message in messages:
                if message.message_id in self.seen or self.leaving or not self.ready:
                    continue
                if self.pausing is None or message.kind is MessageKind.TERMINATE:
                    self.seen.add(message.message_id)
                    self._read(message)
        finally:
            self.reading = False
        if messages and not self.leaving and not self.backlog and self.head >= 0:
            self._after_turn()
            self.hand_back_when_draining()

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
        found = as_input(self, message)
        if found is None:
            self.open_change().consumed += (message.message_id,)
            return
        if found[0] is EntryKind.STARTED:
            self._sign(found[1])
        self.deliver(*found)

    # -- turns

    def deliver(self, kind: EntryKind, body: Body) -> None:
        """Run the turn that this input causes, and queue its entry."""
        if self.leaving or not self.ready:
            if self._again is not None or self.machine.outcome is not None:
                self.backlog.append((kind, body))  # should it not close after all
        elif (kind is not _DONE or body.seq not in self.machine.activities) and not is_awaited(self, kind, body):
            self._after_turn()  # it was cancelled by a turn that was not durable yet when it answered
        elif self.backlog or (self.head != self.durable and self._too_far_ahead()):
            self.backlog.append((kind, body))
        elif kind is not _UPDATE or accepts(self, self.machine, body):
            self.run_turn(kind, body)

    def run_turn(self, kind: EntryKind, body: Body, at: int = 0) -> None:
        """The turn itself, at a time that is not before `at`."""
        if failpoints.armed is not None:
            failpoint("turn.before")
        host = self._host
        machine = self._rebuilt(self._kept) if self._kept else self.machine
        now = at or host.clock.latest()
        at = now if now > machine.at else machine.at
        commands = body.commands
        if commands:
            commands = body.commands = []  # it is delivered again
        host.turn = self
        submitted = self.change is not None
        try:
            machine.turn(at, kind, body, commands, host.turns.loop)
            if failpoints.armed is not None:
                failpoint("turn.after")
            self._record(kind, at, body)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run is parked and the others go on
            machine.unlog()
            if isinstance(error, InvalidInput):
                self._does_not_fit(kind, body, error)
            else:
                self.park(str(error) if isinstance(error, WorkflowBroken) else f"its turn failed: {error!r}")
            return
        except BaseException:  # KeyboardInterrupt in the middle of a turn: the machine cannot be trusted
            self.drop()
            raise
        finally:
            host.turn = None
        if not submitted:
            submit = host.submit  # apart from its call: as a method it would be looked for in the class first
            submit(self)
        if failpoints.armed is not None:
            failpoint("commit.queued")
        self._after_turn()

    def _does_not_fit(self, kind: EntryKind, body: Body, error: InvalidInput) -> None:
        """A result that does not fit its annotation is its activity's or child's failure; other values park the run."""
        if kind not in _FAILS:
            self.park(str(error))
            return
        self.machine.entries -= 1
        body.value, body.error = UNSET, to_failure(error)
        body.error.retryable = False
        self.run_turn(_FAILS[kind], body)

    def _record(self, kind: EntryKind, at: int, body: Body) -> None:
        number = self.head + 1
        entry = encode_entry(number, kind, at, body, self._crc)
        self._crc = entry.crc
        change = self.change
        if change is None:
            change = self.change = Change(self.run_id, self.epoch, self.head, [entry])
            self.effects = body.commands  # type: ignore[assignment]  # only commands are added to this list
        else:
            change.entries.append(entry)
            self.effects += body.commands
        if self._host.listens:
            if kind is not _DONE or self.told is None or change.told is False:
                change.told = False
            else:  # here, without a call: once for every step
                took = (at - body.started_at) / SECOND
                event = ActivityCompleted(at / SECOND, self.told, body.name, body.seq, body.attempts, took)
                change.told = event if change.told is None else and_then(change.told, event)
        if body.message_id:
            change.consumed += (body.message_id,)
        if self.machine.beyond:
            add_effects(self, change, entry, body.commands)
        self.head, self.last = number, kind
        if self._kept is not None:
            self._kept.append(entry)

    def _rebuilt(self, kept: list[Entry]) -> Machine:
        """Always-replay mode: another machine, fed with the whole journal."""
        before = self.machine
        before.tear_down()
        self.machine = Machine(self.workflow, self.identity)
        Replay(self.machine, kept).run()
        self.machine.logs = before.logs
        if before.kin is not None:
            self.machine.kinship().unsettled = before.kin.unsettled
        return self.machine

    def _after_turn(self) -> None:
        """Close, leave memory or wait here, as the turn left things."""
        machine = self.machine
        outcome = machine.outcome
        if outcome is not None:
            move = closing_move(self, outcome)
            if move.state is _RUN_FAILED:
                add_letter(self, outcome)
            self.move(move)
            return
        if self.reading:
            return
        when = self.deadline
        if machine.deadlines and (timer := machine.next_timer()) is not None and (when is None or timer[0] < when):
            when = timer[0]
        if machine.kin is not None and machine.kin.routed:
            when = next_wake(self)
        if self.lacking and not self.calls and self.head == self.durable:
            lacks = [why for seq, why in self.lacking.items() if seq in machine.activities]
            if lacks:
                later = self._host.clock.now() + _LACK_SECONDS * SECOND
                self.leave(later if when is None else min(when, later), lacks[0])
                return
        if not machine.activities and not self.calls:
            now, keep = self._host.clock.now(), int(self._host.settings.keep_in_memory * SECOND)
            stays = 0 if self.draining else stays_until(self, self._host, keep)
            if stays > now:
                when = stays if when is None else min(when, stays)
            elif when is None or when > now + keep or self.draining:
                self.leave(when)
                return
        elif self.patient and leave_if_all_wait(self, self._host):
            return
        if when is not None:
            self._host.arm(self, when)

    def wake(self, now: int) -> None:
        """A timer or the deadline is due."""
        if self.leaving or not self.ready:
            return
        if self.deadline is not None and now >= self.deadline:
            self._end(EntryKind.TIMED_OUT, RunState.TIMED_OUT, "the run was over its time")
            return
        if self.machine.kin is not None:
            for route in due_checks(self.machine.kin, now):
                self._host.look_after(self, route)
        if self.pausing is None:
            self._fire_timers(now)

    def _fire_timers(self, now: int) -> None:
        """Each timer that is due is an input of its own, earliest first."""
        while not self.leaving and (timer := self.machine.next_timer()) is not None and timer[0] <= now:
            if self.backlog or self.head - self.durable >= self._host.settings.undurable_entries:
                self._held_up = True  # `settled` comes back here
                return
            if failpoints.armed is not None:
                failpoint("timer.fired")
            self.run_turn(_TIMER_FIRED, Body(timer[1]))  # all that `deliver` asks has been asked
        if not self.leaving:
            self._after_turn()

    def _end(self, kind: EntryKind, state: RunState, reason: str, message_id: str = "") -> None:
        """Close the run without a word to its code."""
        at = max(self._host.clock.latest(), self.machine.at)
        submitted = self.change is not None
        self.machine.beyond = False
        self._record(kind, at, Body(reason=reason, message_id=message_id))
        if not submitted:
            self.submit()
        self.move(ended_move(self, state, reason))

    # -- activities answer

    def record_attempt(self, attempt: Attempt, then: Callable[[], None] | None = None) -> None:
        """Written with the next batch. `then` is called when it is durable; without it nobody waits."""
        if self.leaving:
            return
        self.open_change().attempts += (attempt,)
        if then is not None:
            self.effects = [*self.effects, then]  # the list may be that of a turn's commands

    def call_waits(self) -> None:
        """A call waits long for its next try, or for an answer from outside: leave memory if nothing else goes on."""
        self.patient = True
        if self.draining:
            self.hand_back_when_draining()
        elif not self.leaving and self.ready:
            leave_if_all_wait(self, self._host)

    def consume(self, message_id: str) -> None:
        """A message was read that causes no turn of its own."""
        if not self.leaving:
            self.open_change().consumed += (message_id,)

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
        if self.draining and not self.leaving and self._again is None:
            self.hand_back()

    def hand_back(self) -> None:
        """The worker stops: leave if nothing is in flight. What waits for its next attempt, or for a place, is not."""
        now = self._host.clock.now()
        if not self.ready:
            self.leave(now)
        elif self.head == self.durable and not self.backlog and not is_at_work(self):
            self.leave(next_wake(self) if only_waits(self) and self.head >= 0 else now)

    def open_change(self) -> Change:
        """What goes to the store next."""
        if self.change is None:
            self.change = Change(self.run_id, self.epoch, self.head)
            self.submit()
        return self.change

    def submit(self) -> None:
        """Have the committer write the change, unless a transaction writes what comes before it."""
        if self.holding is None or self.holding.gate is None:
            self._host.submit(self)

    def is_being_written(self) -> bool:
        return self._host.is_writing(self)

    def move(self, move: Move) -> None:
        """The next change is this run's last here."""
        change = self.change
        if change is None:
            change = self.open_change()
        change.move = move
        self.leaving = True

    def leave(self, wake_at: int | None, reason: str = "") -> None:
        """Hand the run back, due at `wake_at`."""
        failpoint("evict.before")
        state = RunState.WAITING if self.head >= 0 else RunState.PENDING
        if self.pausing is not None:
            state, reason = RunState.PAUSED, self.pausing
        self.move(Move(state, self._host.clock.now() if is_owed(self, self.backlog) else wake_at, reason))

    def park(self, reason: str) -> None:
        log.error("run %s (%s) is parked as needs_code: %s", self.identity.id, self.workflow.name, reason)
        self.move(Move(RunState.NEEDS_CODE, None, readable(reason), self.workflow.fingerprint))

    # -- the committer answers

    def settled(self, change: Change, effects: list[Effect], refusals: Sequence[Refusal] = ()) -> None:
        """The change is durable, but for `refusals`: what it held back may act now."""
        self.durable = change.head + len(change.entries)
        machine, beyond = self.machine, change.effects
        if machine.logs:
            machine.logs = emit(machine.logs, self.durable + 1, self.identity.id)
        if beyond is not None:
            tell_answers(self._host.waiters.answers, self.identity.chain_id, beyond)
            if beyond.letter is not None:
                self._host.letters.arrived(letter_of(self, change, beyond.letter))
        if self.starting is not None:
            if failpoints.armed is not None:
                failpoint("start.after_commit")
            self.completion = Completion()
            self._host.started(self.starting, self.completion)
            self.starting = None
        if change.move is not None:
            depart(self, self._host, change.move)
            return
        host = self._host
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
        if self.backlog or self._held_up or self.lacking or draining:
            host.call_soon(self._go_on)  # not here: a turn must not run inside the committer's task
        if beyond is not None:
            self._hear(effects, refusals)

    def _hear(self, effects: list[Effect], refusals: Sequence[Refusal]) -> None:
        """The store's word on what the run sent goes to whoever waits for it."""
        inputs = store_answers(self, [one for one in effects if isinstance(one, Command)], refusals)
        if inputs and not self.leaving:
            self.backlog[:0] = inputs
            self._host.call_soon(self._go_on)

    def _too_far_ahead(self) -> bool:
        return self.head - self.durable >= self._host.settings.undurable_entries

    def go_on_soon(self) -> None:
        self._host.call_soon(self._go_on)

    def answer(self, body: Body) -> None:
        """The turn of an answer that is written in a transaction of its own."""
        self.run_turn(_DONE, body)

    def _go_on(self) -> None:
        """There is room again for what was held up, or there is nothing left to wait for before leaving."""
        while self.backlog and not self._too_far_ahead() and not self.leaving:
            if self.holding is not None and self.holding.stops(self, self.backlog[0][1]):
                return
            kind, body = self.backlog.pop(0)
            if is_awaited(self, kind, body) and (kind is not _UPDATE or accepts(self, self.machine, body)):
                self.run_turn(kind, body)
        self.hand_back_when_draining()
        if self.leaving:
            return
        if not self.backlog:
            self._host.caught_up(self)
        if self.lacking:
            self._after_turn()
        elif self._held_up and not self.backlog and not self._too_far_ahead():
            self._held_up = False
            self.wake(self._host.clock.now())

    # -- a close that is refused

    def unread(self, change: Change, effects: list[Effect]) -> None:
        """The change would have closed the run, and it was sent what it has not seen: nothing of it was written."""
        self._again = Redo(change, effects)
        self._host.go_back(self)

    def undo(self, change: Change, effects: list[Effect], then: Callable[[], None]) -> None:
        """The last turn never was: go back to before it, and call `then`."""
        self._again = Redo(change, effects, then)
        self.ready = False
        self._host.go_back(self)

    def go_back(self, entries: Sequence[Entry]) -> Replay:
        """Forget what is not durable. Run the replay, then `resume`."""
        self.machine.tear_down()
        self.machine = Machine(self.workflow, self.identity)
        self.leaving = self.ready = False
        self.head = self.durable = -1
        self._crc = 0
        return self.restore(entries)

    def drop(self, error: BaseException | None = None) -> None:
        """It is not ours any more: forget it without a word to the store. Whoever waits for it looks there."""
        if self.starting is not None and not self.starting.done():
            self.starting.set_exception(error or OutcomeUnknown(_UNKNOWN_START))
        drop(self, self._host)
