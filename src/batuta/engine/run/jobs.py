"""Jobs: runs that are one call, which begins as soon as the run is claimed.

A job's journal is that of a workflow of one activity: its start, and the answer. But nothing is written before the
answer is there, and then all of it at once, unless there is something to say before: that an attempt failed, or takes
long, or has saved a checkpoint. A worker that dies before leaves the run as it was, unbegun.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, cast

from msgspec import UNSET, Raw, json
from msgspec.structs import replace

from batuta.authoring.activity.attempt import BatchInfo
from batuta.authoring.call_options import ActivityOptions
from batuta.authoring.client.enqueue import JobOverrides
from batuta.authoring.definitions import Activity, ExecutionMode, Workflow
from batuta.authoring.failures.conversion import to_failure
from batuta.authoring.jobs import Job, job_code
from batuta.clock import SECOND
from batuta.engine.activities.call import SHORT_WAIT, Effect, fatal
from batuta.engine.machine.core import NULL, PendingActivity
from batuta.engine.machine.identity import RunIdentity
from batuta.engine.machine.replay import Replay
from batuta.engine.machine.routing import RoutedCall
from batuta.engine.run.effects import effects_of
from batuta.engine.run.owned_run import PYTHON, Host, OwnedRun
from batuta.errors import InvalidInput, WorkerError
from batuta.failpoints import failpoint
from batuta.ids import RunId
from batuta.journal.entries import Body, Command, CommandKind, Entry, EntryKind, StartInfo, encode_entry
from batuta.journal.records import (
    Attempt,
    Change,
    Message,
    MessageKind,
    Move,
    Output,
    OutputKind,
    Refusal,
    Run,
    RunFilter,
    RunKind,
    StoredRun,
)
from batuta.journal.states import CLOSED, RunState
from batuta.journal.store import Store
from batuta.telemetry import RunFacts

_STARTED, _DONE, _FAILED = EntryKind.STARTED, EntryKind.ACTIVITY_DONE, EntryKind.ACTIVITY_FAILED
_ACTIVITY, _COMPLETE = CommandKind.ACTIVITY, CommandKind.COMPLETE
_START, _COMPLETED = MessageKind.START, RunState.COMPLETED
_SEQ = 1
"""The command of a job's one call."""
_body_decoder = json.Decoder(Body)
_overrides_decoder = json.Decoder(JobOverrides)
_LISTED = 1_000
_COUNTS = "{}"
"""The message to a batch about one ended run."""


class JobWorkflow(RoutedCall):
    """The workflow that a worker runs for a job, with the job's options, unless its run was enqueued with others."""

    activity: Job[..., Any]

    def __init__(self, job: Job[..., Any]) -> None:
        super().__init__(job)
        self._options = replace(job.options, queue=None, start_timeout=None)
        self.begins_early = not job.options.once and job.execution_mode is not ExecutionMode.STORE
        """Whether an attempt may begin before anything is written of it."""

    def options(self, start: StartInfo) -> tuple[ActivityOptions, int]:
        told = start.options
        if told is UNSET or bytes(told) == b"{}":
            return self._options, 0
        overrides = _overrides_decoder.decode(told)
        given = {name: getattr(overrides, name) for name in ("retry", "timeout", "total_timeout", "heartbeat")}
        return replace(self._options, **{name: value for name, value in given.items() if value is not None}), 0


def job_workflows(activities: dict[str, Activity[..., Any]]) -> dict[str, Workflow[..., Any]]:
    """The jobs that a worker can run, by the names that runs ask for."""
    return {job_code(name): JobWorkflow(one) for name, one in activities.items() if isinstance(one, Job)}


class CallRun(OwnedRun):
    """A live run that is one call: of a job, or of an activity that was sent here from another queue."""

    is_call = True
    __slots__ = ("_failed", "_said", "batched")

    def __init__(self, host: Host, workflow: RoutedCall, identity: RunIdentity, epoch: int) -> None:
        super().__init__(host, workflow, identity, epoch)
        self.batched = False
        """It belongs to a batch, which counts the ends of its jobs."""
        self._failed: Attempt | None = None
        self._said: str | None = None

    def claimed(self, row: Run) -> None:
        super().claimed(row)
        self.batched = row.kind is RunKind.JOB and row.parent_run_id is not None

    def begun_facts(self) -> RunFacts:
        return self._facts(self.started_with.trace)

    @property
    def _kind(self) -> RunKind:
        return RunKind.JOB if isinstance(self.workflow, JobWorkflow) else RunKind.ACTIVITY

    # -- progress

    def record_attempt(self, attempt: Attempt, then: Callable[[], None] | None = None) -> None:
        super().record_attempt(attempt, then)
        if self._said is not None and self.change is not None:
            self._publish(self.change, self._said)
            self._said = None

    def say(self, progress: str) -> None:
        """Publish how far it is, with the next batch."""
        if not self.leaving:
            self._publish(self.open_change(), progress)

    def say_last(self, progress: str) -> None:
        """The same, with the answer."""
        self._said = progress

    def _publish(self, change: Change, progress: str) -> None:
        at = self._host.clock.now()
        output = Output(kind=OutputKind.PUBLISHED, name="progress", ord=max(self.head, 0), at=at, value=progress)
        effects_of(change).outputs[:] = [output]

    # -- the answer

    def gave_up(self, attempt: Attempt) -> None:
        """The last attempt failed: it is kept like those before."""
        self._failed = attempt

    def deliver(self, kind: EntryKind, body: Body) -> None:
        if kind is _DONE:
            kind = self._fitting(kind, body)
        if not self.leaving and self.ready and kind in (_DONE, _FAILED):
            if self._said is not None:
                self._publish(self.open_change(), self._said)
            if self._failed is not None and kind is _FAILED:
                self.open_change().attempts += (self._failed,)
        super().deliver(kind, body)

    def answer(self, body: Body) -> None:
        if isinstance(self.workflow, JobWorkflow) and not self.workflow.activity.keeps_result:
            body.value = NULL
        if self._said is not None:
            self._publish(self.open_change(), self._said)
        super().answer(body)

    def _fitting(self, kind: EntryKind, body: Body) -> EntryKind:
        """A result that does not fit the job's annotation is its failure, as in a workflow. A result that is not to be
        kept is dropped here."""
        if not isinstance(self.workflow, JobWorkflow):
            return kind
        job = self.workflow.activity
        if not job.keeps_result:
            body.value = NULL
            return kind
        try:
            job.codec.decode_result(body.value if body.value is not UNSET else NULL)
        except InvalidInput as error:
            failure = body.error = fatal(to_failure(error))
            body.value = UNSET
            self._failed = Attempt(
                seq=_SEQ,
                number=body.attempts,
                started_at=body.started_at,
                ended_at=self.now(),
                error=json.encode(failure).decode(),
            )
            return _FAILED
        return kind

    def call_waits(self) -> None:
        """Sooner than a workflow: there is nothing in memory that is worth keeping, and others may have its place."""
        if not (self.draining or self.leaving or self.reading) and self.ready and self._only_waits():
            when = self._next_wake()
            if (when is None or when > self.now() + int(SHORT_WAIT * SECOND)) and not self.lingers(when):
                self.evict_until(when)
                return
        super().call_waits()

    # -- its batch

    def move(self, move: Move) -> None:
        if self.batched and move.state in CLOSED:
            move.outcome = _COUNTS
        super().move(move)

    def batch(self, loop: asyncio.AbstractEventLoop) -> Future[BatchInfo]:
        """The outcomes of the batch that this run was called for."""
        told = self.machine.start.options
        size = None if told is UNSET else _overrides_decoder.decode(told).batch
        if not isinstance(self.workflow, JobWorkflow) or size is None:
            raise WorkerError(
                "batch_info() was called in a job that no batch has called: give it to enqueue_many as on_done="
            )
        return asyncio.run_coroutine_threadsafe(_look_at_batch(self._host.store, self.machine.first_run_id), loop)


def may_begin_early(workflow: JobWorkflow, stored: StoredRun) -> bool:
    """Whether the run has not begun, and its inbox holds nothing but its start."""
    run, messages = stored.run, stored.messages
    return (
        run.head < 0
        and workflow.begins_early
        and len(messages) == 1
        and not stored.more
        and messages[0].kind is _START
        and not stored.attempts
        and run.deadline is None
    )


class _Grown:
    """A field that an EarlyRun creates only when needed: the first read or write makes it a full live run.

    Not `__getattr__`: in a class that has one, Python looks up every attribute and method more slowly.
    """

    __slots__ = ("_slot",)

    def __init__(self, slot: Any) -> None:
        self._slot = slot

    def __get__(self, run: EarlyRun, kind: type | None = None) -> Any:
        if not run._grown:
            run._grow()
        return self._slot.__get__(run)

    def __set__(self, run: EarlyRun, value: Any) -> None:
        if not run._grown:
            run._grow()
        self._slot.__set__(run, value)


class EarlyRun(CallRun):
    """A job whose call begins before anything of the job is written.

    Most jobs need only a few fields of a live run. Reading or setting any other field makes it a full live run.
    """

    __slots__ = ("_began_at", "_first", "_grown", "_outcome", "_pending", "_start", "early", "message", "row")

    def __init__(self, host: Host, workflow: JobWorkflow, stored: StoredRun) -> None:
        row = self.row = stored.run
        self._host, self.workflow = host, workflow
        self.run_id, self.epoch = row.run_id, row.epoch
        self.message = stored.messages[0]
        """Its start."""
        self.batched = row.parent_run_id is not None
        self._grown = self.leaving = False
        self.early = self.ready = True
        """Nothing of it is written."""
        self._start: Body | None = None
        self._first: Entry | None = None
        """Written, but not yet given to the machine: that happens when there is an answer."""
        self._failed = self._said = self.change = self.told = self.prepare = None
        self.head = self.durable = -1
        self.ahead = 0
        self.created_at = row.created_at
        self.calls = {}
        self.effects = []
        self.pauses = ()

    def _grow(self) -> None:
        """Become a whole live run, in the same place."""
        self._grown = True
        row, before = self.row, {name: getattr(self, name) for name in _LEAN}
        identity = RunIdentity(row.run_id, row.id, row.queue, self._host.store.namespace, row.chain_id)
        super().__init__(self._host, cast(JobWorkflow, self.workflow), identity, self.epoch)
        for name, value in before.items():
            setattr(self, name, value)
        if self._start is not None:
            self.machine.started_by(cast(StartInfo, self._start.start))
        self.inbox.see(self.message)

    @property
    def named(self) -> tuple[str, str]:
        return self.row.id, self.row.queue

    @property
    def started_with(self) -> StartInfo:
        return cast(StartInfo, cast(Body, self._start).start)

    def facts(self, change: Change) -> RunFacts:
        begun = change.head + len(change.entries) >= 0
        return self._facts(self.started_with.trace if begun else "")

    @property
    def chain_id(self) -> RunId:
        return self.row.chain_id

    # -- beginning

    def begin_early(self) -> None:
        """Call it now."""
        host, workflow, message = self._host, cast(JobWorkflow, self.workflow), self.message
        body = self._start = _body_decoder.decode(message.body)
        start = cast(StartInfo, body.start)
        start.fingerprint, start.python, start.max_payload = workflow.fingerprint, PYTHON, host.settings.max_payload
        if host.begins is not None:
            host.begins(self, start)
        body.message_id = message.message_id
        at = self._began_at = host.clock.latest()
        data = bytes(cast(Raw, body.value))
        pending = self._pending = PendingActivity(
            workflow.name, None, workflow.codec.result_decoder, data, workflow.options(start)[0], at, 0
        )
        host.executor.start(self, _SEQ, pending)

    def _opening(self) -> Entry:
        """The entry of its start."""
        body, pending = cast(Body, self._start), self._pending
        body.commands = [Command(_SEQ, _ACTIVITY, pending.name, Raw(pending.data))]
        return encode_entry(0, _STARTED, self._began_at, body, 0)

    def _begin_formally(self) -> None:
        """There is something to write before the answer: the start goes with it. Once, and not when the run is gone."""
        if not self.early or self.leaving:
            return
        if not self._grown:
            self._grow()
        self.early = False
        entry = self._first = self._opening()
        change = self.open_change()
        change.entries.append(entry)
        change.told = False
        change.consumed += (self.message.message_id,)
        self.head, self._crc, self.last = 0, entry.crc, _STARTED
        self.machine.call_at_start(entry.at, _SEQ, self._pending)

    def _catch_up(self, entry: Entry) -> None:
        """Give the machine what was written without it. Not inside a task, as any turn."""
        self._first = None
        self._renew_machine()
        Replay(self.machine, [entry]).run()

    # -- while its call is under way

    def record_attempt(self, attempt: Attempt, then: Callable[[], None] | None = None) -> None:
        self._begin_formally()
        super().record_attempt(attempt, then)

    def say(self, progress: str) -> None:
        self._begin_formally()
        super().say(progress)

    def receive(self, messages: Sequence[Message]) -> None:
        if self.early:
            if all(message.message_id == self.message.message_id for message in messages):
                return
            self._begin_formally()
        super().receive(messages)

    def expect_more(self, more: bool) -> None:
        if more or not self.early:
            super().expect_more(more)

    def consume(self, message_id: str) -> None:
        self._begin_formally()
        super().consume(message_id)

    def call_over(self) -> None:
        self._begin_formally()
        super().call_over()

    def call_waits(self) -> None:
        self._begin_formally()
        super().call_waits()

    def go_back(self, entries: Sequence[Entry]) -> Replay:
        self._first = None
        return super().go_back(entries)

    def run_turn(self, kind: EntryKind, body: Body, at: int = 0) -> None:
        if self._first is not None:
            self._catch_up(self._first)
        super().run_turn(kind, body, at)

    # -- the answer

    def deliver(self, kind: EntryKind, body: Body) -> None:
        if self.early and not self.leaving:
            if kind is _DONE and self._fitting(kind, body) is _DONE:
                self._complete(body)
                return
            kind = _FAILED if kind is _DONE else kind
            self._begin_formally()
        super().deliver(kind, body)

    def _complete(self, body: Body) -> None:
        """The whole journal at once: it has begun, and it is done."""
        opening = self._opening()
        body.commands = [Command(_SEQ + 1, _COMPLETE, "", body.value)]
        at = self._host.clock.latest() + self.ahead
        closing = encode_entry(1, _DONE, at if at > opening.at else opening.at, body, opening.crc)
        move = Move(_COMPLETED, None, "", "", _COUNTS if self.batched else "")
        change = Change(self.run_id, self.epoch, -1, [opening, closing], None, (self.message.message_id,), (), move)
        self.change = change
        if self._said is not None:
            self._publish(change, self._said)
        self.head = 1
        self.early, self.leaving = False, True
        if self._grown:
            self._crc, self.last = closing.crc, _DONE
            self.machine.closed_by(body.commands[0])
        else:
            self._outcome = body.commands[0]
        if self.batched or change.effects is not None:
            self._host.committer.submit(self)
        else:
            self._host.submit_end(self)

    def settled(self, change: Change, effects: list[Effect], refusals: Sequence[Refusal] = ()) -> None:
        if self._grown:
            super().settled(change, effects, refusals)
            return
        failpoint("close.durable")
        self.durable = 1
        self._host.finished(self, self._outcome)

    def unread(self, change: Change, effects: list[Effect]) -> None:
        if not self._grown:
            self._grow()
        super().unread(change, effects)


_LEAN = (
    "ahead",
    "batched",
    "calls",
    "change",
    "created_at",
    "durable",
    "effects",
    "head",
    "leaving",
    "prepare",
    "ready",
    "_failed",
    "_said",
)
"""Fields that `EarlyRun.__init__` sets, and that stay when it becomes an owned run."""
_GIVEN = ("_host", "epoch", "pauses", "run_id", "told", "workflow")
"""The same, but growing gives it anew."""
for _kind in OwnedRun.__mro__[:-1]:
    for _name in set(_kind.__dict__["__slots__"]).difference(_LEAN, _GIVEN):
        setattr(EarlyRun, _name, _Grown(vars(_kind)[_name]))


_ENDS = (RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED, RunState.TIMED_OUT, RunState.TERMINATED)


async def _look_at_batch(store: Store, after: RunId) -> BatchInfo:
    """`after` is the first run of the job that was called: it may have been tried again."""
    counts = Counter(await store.count_states(RunFilter(parent=after, states=_ENDS)))
    bad = tuple(state for state in _ENDS if counts[state] and state is not RunState.COMPLETED)
    listed: list[str] = []
    if bad:
        page = await store.list_runs(RunFilter(parent=after, states=bad), None, _LISTED)
        listed = [run.id for run in page.runs]
    return BatchInfo(
        total=counts.total(),
        completed=counts[RunState.COMPLETED],
        failed=counts[RunState.FAILED],
        cancelled=counts[RunState.CANCELLED],
        timed_out=counts[RunState.TIMED_OUT],
        terminated=counts[RunState.TERMINATED],
        not_completed=listed,
    )
