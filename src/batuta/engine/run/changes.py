"""The journal's side of a run: its place, the change that goes to the store next, and its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import UNSET, Raw, json

from batuta.authoring.definitions import Workflow
from batuta.authoring.failures.conversion import to_failure
from batuta.authoring.failures.known_errors import KnownErrors
from batuta.clock import SECOND
from batuta.engine.activities.call import Effect, Turn
from batuta.engine.activities.executor import Executor
from batuta.engine.machine.machine import Machine
from batuta.engine.machine.routing import with_attempts
from batuta.engine.run.dead_letters import letter_of, new_letter
from batuta.engine.run.effects import add_effects, effects_of, put_output
from batuta.engine.run.inbox import Inbox
from batuta.engine.run.inputs import CANCEL_AGAIN, Input, InputReader
from batuta.engine.worker.database_clock import DatabaseClock
from batuta.engine.worker.waiters import Completion
from batuta.errors import UpdateRejected, WorkflowBroken, cut, words_of
from batuta.ids import RunId, made_traceparent
from batuta.journal.child_outcomes import completed_outcome, ended_outcome
from batuta.journal.dead_letters import DeadLetter
from batuta.journal.entries import Body, Command, CommandKind, Entry, EntryKind, StartInfo, encode_entry
from batuta.journal.failures import Failure
from batuta.journal.kinds import ACTIVITY_ANSWERS, CALL_ANSWERS, CLOSING_COMMANDS, STORE_ANSWERS
from batuta.journal.records import (
    REJECTED,
    Attempt,
    Change,
    Message,
    MessageKind,
    Move,
    NewLetter,
    Output,
    OutputKind,
    RunKind,
    Send,
    and_then,
)
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.journal.tracebacks import summary_of
from batuta.names import readable
from batuta.settings import MOST_UNDURABLE, Settings
from batuta.telemetry import ActivityCompleted, RunFacts

log = logging.getLogger("batuta.engine")

_DONE, _RUN_FAILED = EntryKind.ACTIVITY_DONE, RunState.FAILED


class Committing(Protocol):
    """The committer as a run sees it."""

    def submit(self, run: Any) -> None:
        """The run's change is to be written."""

    def is_writing(self, run: Any) -> bool:
        """Whether a change of the run is on its way to the store."""

    def started(self, starter: asyncio.Future[Completion], completion: Completion) -> None:
        """The run's start is durable, and who waits for that may know."""


class WriterHost(Protocol):
    """The part of the worker that a writing run uses."""

    settings: Settings
    clock: DatabaseClock
    executor: Executor
    draining: bool
    listens: bool
    """Middleware listens to activities: an event is made with its entry, and waits until that is durable."""
    store: Store
    known: KnownErrors

    @property
    def committer(self) -> Committing: ...


class ChangeWriter(InputReader):
    """The journal's side of a run. One change at a time is open; the committer takes it, and says when it is
    durable."""

    early = is_call = False
    """As a CallRun says."""

    __slots__ = tuple(
        "_crc _host _kept change completion created_at durable effects epoch head inbox last leaving run_id starting "
        "told workflow".split()
    )

    _host: WriterHost
    workflow: Workflow[..., Any]
    run_id: RunId
    epoch: int

    def _begin_writing(self) -> None:
        self.head = self.durable = -1
        self.last: EntryKind | None = None
        self._crc = 0
        self._kept: list[Entry] | None = [] if self._host.settings.always_replay else None
        self.created_at = 0  # known of a claimed run
        self.change: Change | None = None
        self.effects: list[Effect] = []
        self.inbox = Inbox()
        self.leaving = False
        self.told: RunFacts | None = None  # what events say of it, once there was one
        self.completion: Completion | None = None  # for a caller in this process
        self.starting: asyncio.Future[Completion] | None = None

    # -- who it is

    @property
    def named(self) -> tuple[str, str]:
        """Its id and its queue."""
        return self.identity.id, self.identity.queue

    @property
    def started_with(self) -> StartInfo:
        return self.machine.start

    @property
    def executor(self) -> Executor:
        return self._host.executor

    def facts(self, change: Change) -> RunFacts:
        """Facts for the events of this change. Made once for a run that has many turns."""
        if self.told is not None:
            return self.told
        if change.head + len(change.entries) < 0 or not hasattr(self.machine, "start"):  # not begun, or parked unread
            return self._facts("")
        return self.begun_facts()

    def begun_facts(self) -> RunFacts:
        """The same of a run that has begun."""
        if self.told is None:
            self.told = self._facts(self.started_with.trace, self.started_with.flow)
        return self.told

    def _facts(self, trace: str, flow: str = "") -> RunFacts:
        id, queue = self.named
        trace = trace or made_traceparent(self.chain_id)
        namespace, name = self._host.store.namespace, self.workflow.name
        return RunFacts(namespace, self.run_id, id, name, str(self._kind), queue, trace, flow)

    @property
    def _kind(self) -> RunKind:
        return RunKind.WORKFLOW

    @property
    def chain_id(self) -> RunId:
        return self.identity.chain_id

    # -- the change that goes to the store next

    def submit(self) -> None:
        """Have the committer write the change, unless a transaction writes what comes before it."""
        if self.inbox.transactional is None:
            self._host.committer.submit(self)

    def open_change(self) -> Change:
        """The change that goes to the store next."""
        if self.change is None:
            self.change = Change(self.run_id, self.epoch, self.head)
            self.submit()
        return self.change

    def take_change(self) -> Turn | None:
        """Give the change away to be written, with what acts when it is durable; None: it was dropped meanwhile."""
        change = self.change
        if change is None:
            return None
        taken = change, self.effects
        self.change, self.effects = None, []
        return taken

    def put_back(self, change: Change, effects: list[Effect]) -> None:
        """It was not written, and may have been: it is to be written again."""
        self.change, self.effects = change, effects

    def consume(self, message_id: str) -> None:
        """A message was read that causes no turn of its own."""
        if not self.leaving:
            self.open_change().consumed += (message_id,)

    def record_attempt(self, attempt: Attempt, then: Callable[[], None] | None = None) -> None:
        """Written with the next batch. `then` is called when it is durable."""
        if self.leaving:
            return
        self.open_change().attempts += (attempt,)
        if then is not None:
            self.effects.append(then)

    def _record(self, kind: EntryKind, at: int, body: Body) -> None:
        """Add the entry of a turn, whose commands act when it is durable."""
        number = self.head + 1
        entry = encode_entry(number, kind, at, body, self._crc)
        self._crc = entry.crc
        change = self.change
        if change is None:
            change = self.change = Change(self.run_id, self.epoch, self.head, [entry])
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
        if body.commands and self.machine.beyond:
            add_effects(self.machine, change, entry, body.commands)
        self.head, self.last = number, kind
        if self._kept is not None:
            self._kept.append(entry)

    def _renew_machine(self) -> None:
        """Have another machine in place of this one, which leaves memory."""
        self.machine.tear_down()
        self.machine = Machine(self.workflow, self.identity, self._host.known)

    # -- messages that cause no turn

    def is_awaited(self, kind: EntryKind, body: Body) -> bool:
        """False for an answer that no code waits for: it is no input. A message with one is read all the same."""
        machine = self.machine
        related = machine.related
        if kind in ACTIVITY_ANSWERS:
            awaited = body.seq in machine.activities or (related is not None and body.seq in related.routed)
        elif kind in CALL_ANSWERS or kind in STORE_ANSWERS:
            awaited = related is not None and related.is_awaited(body)
        else:
            return True
        if not awaited and body.message_id:
            self.open_change().consumed += (body.message_id,)
        return awaited

    def _cancels(self, messages: Sequence[Message]) -> list[Input]:
        """Those of these cancels that the run's code hears: the first, unless it heard one before, and any that is sent
        again. The others are read all the same."""
        heard: list[Input] = []
        for message in messages:
            found = None if heard and message.body != CANCEL_AGAIN else self.cancel_input(message)
            if found is None:
                self.open_change().consumed += (message.message_id,)
            else:
                found[1].message_id = message.message_id
                heard.append(found)
        return heard

    def accepts(self, body: Body) -> bool:
        """Whether the run takes the update. A rejected update is answered; a validator that acts parks the run."""
        try:
            self.machine.messages().validate(body.name, body.value if body.value is not UNSET else Raw(b"[]"))
        except WorkflowBroken as error:
            self.park(str(error))
            return False
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a validator raises says no
            self._reject(body, error)
            return False
        return True

    def _reject(self, body: Body, error: BaseException) -> None:
        """No entry: the message is consumed and answered, and the run never knew."""
        rejected = UpdateRejected(body.name, self.identity.id, words_of(error) or type(error).__name__)
        rejected.__cause__ = error
        failure = to_failure(rejected)
        self.decide(failure)
        failure.traceback = ""
        change = self.open_change()
        change.consumed += (body.message_id,)
        at, text = self.machine.at, json.encode(failure).decode()
        output = Output(kind=OutputKind.ANSWER, name=body.message_id, ord=REJECTED, at=at, error=text)
        put_output(effects_of(change), output)

    def decide(self, failure: Failure, name: str = "") -> None:
        """Fix what an error is raised as that is about to be recorded. `name`: of the activity that it comes from."""
        activity = self.executor.activity(name)
        if activity is None:
            self._host.known.decide(failure, (), f"run {self.named[0]!r}")
        else:
            self._host.known.decide(failure, activity.raises, repr(activity)[1:-1])

    def _keep_answer(self, kind: EntryKind, body: Body) -> None:
        """The run is parked in the turn of this answer. Put it into the run's inbox: when the run goes on, the activity
        is not executed again. The answer of a transaction is not kept, for that is rolled back."""
        if kind not in ACTIVITY_ANSWERS or body.message_id or self.inbox.transactional is not None:
            return
        kept = Body(body.seq, body.name, body.value, body.error, body.attempts, body.started_at)
        message = Message(
            message_id=f"parked:{self.run_id}:{body.seq}",
            kind=MessageKind.ACTIVITY,
            name=str(self.run_id),
            body=json.encode(kept).decode(),
        )
        effects_of(self.open_change()).sends.append(Send(seq=body.seq, id=self.identity.id, message=message))

    def _send_again(self) -> None:
        """After a replay: send once more what the store may not have answered."""
        related = self.machine.related
        # Refusals go first, and a run is never further ahead of its durable entries: older sends were answered.
        again = None if related is None else related.unanswered(MOST_UNDURABLE)
        if related is not None and again is not None:
            commands = [Command(one.parent_seq, CommandKind.CHILD, one.name) for one in again.children]
            self.open_change().effects = again
            self.effects += [*commands, *related.sent.values()]

    # -- how it ends here

    def move(self, move: Move) -> None:
        """The next change is this run's last here."""
        change = self.change
        if change is None:
            change = self.open_change()
        change.move = move
        self.leaving = True

    def park(self, reason: str, said: str = "", raised: BaseException | None = None) -> None:
        """`said` is for the log, in place of the reason, with the traceback of `raised`."""
        reason = cut(reason)
        where = (self.identity.id, self.workflow.name)
        log.error(
            "run %s (%s) is parked as needs_code: %s",
            *where,
            said or reason,
            exc_info=raised,
            extra=self.machine.logged,
        )
        self.move(Move(RunState.NEEDS_CODE, None, readable(reason), self.workflow.fingerprint))

    def park_unread(self, head: int, reason: str) -> None:
        """It cannot be replayed: it is parked at the head that the store knows."""
        self.leaving, self.head, self.durable = False, head, head
        self.park(reason)

    def _close(self, outcome: Command) -> None:
        """The run's code has ended with this command."""
        move = self._closing_move(outcome)
        if move.state is _RUN_FAILED:
            self._add_letter(outcome)
        self.move(move)

    def _closing_move(self, outcome: Command) -> Move:
        """How the command that ends a run's code closes the run."""
        change, parent, related = self.change, self.parent, self.machine.related
        had_children = related is not None and related.had_children
        if change is not None and change.effects is not None and change.effects.successor is not None:
            return Move(RunState.CONTINUED, reason=self._why_again(outcome), children=had_children)
        state = CLOSING_COMMANDS[outcome.kind]
        reason = "" if outcome.error is UNSET else readable(summary_of(outcome.error))
        if parent is None:
            return Move(state, reason=reason, children=had_children) if had_children else Move(state, None, reason)
        if outcome.kind is CommandKind.COMPLETE:
            told = completed_outcome(parent[1], outcome.value)
        else:
            cause = outcome.error if outcome.error is not UNSET else None
            told = ended_outcome(parent[1], self.identity.id, state, cause=cause)
        if self.machine.start.options is not UNSET and change is not None and change.entries:
            told = with_attempts(told, change.entries[-1])
        return Move(state, reason=reason, outcome=told, children=had_children)

    def _ended_move(self, state: RunState, reason: str) -> Move:
        """How a run is closed that its code did not end."""
        parent, related = self.parent, self.machine.related
        told = ended_outcome(parent[1], self.identity.id, state, reason) if parent is not None else ""
        had_children = related is not None and related.had_children
        return Move(state, reason=reason, outcome=told, children=had_children)

    def _why_again(self, outcome: Command) -> str:
        if outcome.kind is not CommandKind.FAIL or outcome.error is UNSET:
            return ""
        return readable(f"attempt {self.machine.start.attempt} failed with {summary_of(outcome.error)}"[:1000])

    def _add_letter(self, outcome: Command) -> None:
        """The run fails: if it is to be a dead letter, the change that closes it says so."""
        if outcome.error is UNSET or (self.is_call and self.parent is not None):
            return  # an activity that was sent here: its caller is told
        letter = new_letter(self.machine, outcome.error, self.head, is_call=self.is_call)
        if letter is not None:
            letter.fingerprint = self._host.store.keyed(letter.fingerprint)  # else a guessed message could be checked
            effects_of(self.open_change()).letter = letter

    def _letter(self, change: Change, new: NewLetter) -> DeadLetter:
        at = change.entries[-1].at if change.entries else self.machine.at
        return letter_of(self.machine, at, new, RunKind.JOB if self.is_call else RunKind.WORKFLOW)

    def _parent_message(self, move: Move) -> Message | None:
        """The message that the store gave the parent of a closed run, for a parent in this process."""
        related, continued = self.machine.related, self.identity.chain_id != self.run_id
        if self.parent is None or not move.outcome or continued or (related is not None and related.has_sent):
            return None  # what it, or a run before it, sent must come first: the parent reads its inbox
        return Message(
            message_id=f"child:{self.run_id}", kind=MessageKind.CHILD, name=str(self.parent[0]), body=move.outcome
        )
