"""Jobs: runs that are one call, which begins as soon as the run is claimed.

A job's journal is that of a workflow of one activity: its start, and the answer. But nothing is written before the
answer is there, and then all of it at once, unless there is something to say before: that an attempt failed, or takes
long, or has saved a checkpoint. A worker that dies before leaves the run as it was, unbegun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

from msgspec import UNSET, Raw, json
from msgspec.structs import replace

from batuta.authoring.checkpoints import BatchInfo
from batuta.authoring.definitions import Activity, Workflow
from batuta.authoring.enqueueing import JobOverrides
from batuta.authoring.failures import to_failure
from batuta.authoring.jobs import Job, job_code
from batuta.authoring.options import ActivityOptions
from batuta.engine.calls import Call, fatal
from batuta.engine.live import PYTHON, LiveRun
from batuta.engine.machine import Machine, PendingActivity, RunIdentity
from batuta.engine.replay import Replay
from batuta.engine.routes import RoutedCall
from batuta.errors import InvalidInput, WorkerError
from batuta.journal.entries import Body, Command, CommandKind, Entry, EntryKind, StartInfo, encode_entry
from batuta.journal.failures import Failure
from batuta.journal.records import (
    Attempt,
    Change,
    Effects,
    Message,
    MessageKind,
    Move,
    Output,
    OutputKind,
    RunFilter,
    Tape,
)
from batuta.journal.states import CLOSED, RunState
from batuta.journal.store import Store

if TYPE_CHECKING:
    from batuta.engine.host import Host

_STARTED, _DONE, _FAILED = EntryKind.STARTED, EntryKind.ACTIVITY_DONE, EntryKind.ACTIVITY_FAILED
_ACTIVITY, _COMPLETE = CommandKind.ACTIVITY, CommandKind.COMPLETE
_START, _COMPLETED = MessageKind.START, RunState.COMPLETED
_SEQ = 1
"""The command of a job's one call."""
_NULL = Raw(b"null")
_body_decoder = json.Decoder(Body)
_overrides_decoder = json.Decoder(JobOverrides)
_LISTED = 1_000
_COUNTS = "{}"
"""What a batch is told of an end: nothing, but that it is one."""


class JobWorkflow(RoutedCall):
    """What a worker runs for a job. The job's own options, but for what its run was enqueued with."""

    activity: Job[..., Any]

    def __init__(self, job: Job[..., Any]) -> None:
        super().__init__(job)
        self._options = replace(job.options, queue=None, start_timeout=None)
        self.begins_early = not job.options.once

    def options(self, start: StartInfo) -> tuple[ActivityOptions, int]:
        told = start.options
        if told is UNSET or bytes(told) == b"{}":
            return self._options, 0
        overrides = _overrides_decoder.decode(told)
        given = {name: getattr(overrides, name) for name in ("retry", "timeout", "total_timeout", "heartbeat")}
        return replace(self._options, **{name: value for name, value in given.items() if value is not None}), 0


def job_workflows(activities: dict[str, Activity[..., Any]]) -> dict[str, Workflow[..., Any]]:
    """What a worker can run of these, by what runs of jobs ask for."""
    return {job_code(name): JobWorkflow(one) for name, one in activities.items() if isinstance(one, Job)}


class CallRun(LiveRun):
    """A live run that is one call: of a job, or of an activity that was sent here from another queue."""

    is_call = True
    __slots__ = ("_began_at", "_failed", "_first", "_keeps", "_pending", "_said", "_start", "batched", "early")

    def __init__(self, host: Host, workflow: RoutedCall, identity: RunIdentity, epoch: int) -> None:
        super().__init__(host, workflow, identity, epoch)
        self.early = False
        """Its call is under way, and nothing of it is written."""
        self.batched = False
        """It belongs to a batch, which counts the ends of its jobs."""
        self._first: Entry | None = None
        """Written, but not given to the machine: which is only asked when there is an answer."""
        self._failed: Attempt | None = None
        self._said: str | None = None
        activity = workflow.activity
        self._keeps = not isinstance(activity, Job) or activity.keeps_result

    # -- beginning

    def may_begin_early(self, tape: Tape) -> bool:
        """Whether it is a job that nobody has begun, with nothing but its start in the inbox."""
        return (
            isinstance(self.workflow, JobWorkflow)
            and self.workflow.begins_early
            and tape.run.head < 0
            and len(tape.messages) == 1
            and tape.messages[0].kind is _START
            and not tape.attempts
            and self.deadline is None
            and not self._host.draining
            and not self._host.settings.always_replay
        )

    def begin_early(self, message: Message) -> None:
        """Call it now."""
        host = self._host
        body = self._start = _body_decoder.decode(message.body)
        start = self.machine.start = cast(StartInfo, body.start)
        workflow = cast(JobWorkflow, self.workflow)
        start.fingerprint, start.python, start.max_payload = workflow.fingerprint, PYTHON, host.settings.max_payload
        body.message_id = message.message_id
        self.seen.add(message.message_id)
        at = self._began_at = host.clock.latest()
        data = bytes(cast(Raw, body.value))
        self._pending = PendingActivity(workflow.name, None, None, data, workflow.options(start)[0], at, 0)
        self.ready = self.early = True
        host.executor.start(self, _SEQ, self._pending)

    def _opening(self) -> Entry:
        """The entry of its start."""
        body = self._start
        body.commands = [Command(_SEQ, _ACTIVITY, self._pending.name, Raw(self._pending.data))]
        return encode_entry(0, _STARTED, self._began_at, body, 0)

    def _begin_formally(self) -> None:
        """There is something to write before the answer: the start goes with it."""
        self.early = False
        entry = self._first = self._opening()
        change = self.open_change()
        change.entries.append(entry)
        change.consumed.append(self._start.message_id)
        self.head, self._crc, self.last = 0, entry.crc, _STARTED
        machine = self.machine
        machine.activities[_SEQ] = self._pending
        machine.at = machine.started_at = entry.at
        machine.entries = 1

    def _catch_up(self, entry: Entry) -> None:
        """Give the machine what was written without it. Not inside a task, as any turn."""
        self._first = None
        self.machine.tear_down()
        self.machine = Machine(self.workflow, self.identity)
        Replay(self.machine, [entry]).run()

    # -- what is asked of it while its call is under way

    def record_attempt(self, attempt: Attempt, then: Callable[[], None] | None = None) -> None:
        if self.early and not self.leaving:
            self._begin_formally()
        super().record_attempt(attempt, then)
        if self._said is not None and self.change is not None:
            self._publish(self.change, self._said)
            self._said = None

    def receive(self, messages: Sequence[Message]) -> None:
        if self.early:
            if all(message.message_id in self.seen for message in messages):
                return
            self._begin_formally()
        super().receive(messages)

    def consume(self, message_id: str) -> None:
        if self.early and not self.leaving:
            self._begin_formally()
        super().consume(message_id)

    def call_over(self) -> None:
        if self.early and not self.leaving:
            self._begin_formally()
        super().call_over()

    def go_back(self, entries: Sequence[Entry]) -> Replay:
        self._first = None
        return super().go_back(entries)

    def run_turn(self, kind: EntryKind, body: Body, at: int = 0) -> None:
        if self._first is not None:
            self._catch_up(self._first)
        super().run_turn(kind, body, at)

    # -- progress

    def say(self, progress: str) -> None:
        """Publish how far it is, with the next batch."""
        if self.leaving:
            return
        if self.early:
            self._begin_formally()
        self._publish(self.open_change(), progress)

    def say_last(self, progress: str) -> None:
        """The same, with the answer."""
        self._said = progress

    def _publish(self, change: Change, progress: str) -> None:
        if change.effects is None:
            change.effects = Effects()
        at = self._host.clock.now()
        output = Output(kind=OutputKind.PUBLISHED, name="progress", ord=max(self.head, 0), at=at, value=progress)
        change.effects.outputs[:] = [output]

    # -- the answer

    def gave_up(self, call: Call, failure: Failure, now: int) -> None:
        self._failed = call.row(ended_at=now, error=json.encode(failure).decode())

    def deliver(self, kind: EntryKind, body: Body) -> None:
        if kind is _DONE:
            kind = self._fitting(kind, body)
        if self.early and not self.leaving:
            if kind is _DONE:
                self._complete(body)
                return
            self._begin_formally()
        if not self.leaving and self.ready and kind in (_DONE, _FAILED):
            if self._said is not None:
                self._publish(self.open_change(), self._said)
            if self._failed is not None and kind is _FAILED:
                self.open_change().attempts.append(self._failed)
        super().deliver(kind, body)

    def _fitting(self, kind: EntryKind, body: Body) -> EntryKind:
        """A result that does not fit the job's annotation is its failure, as in a workflow. One that is not to be kept
        goes here."""
        if not isinstance(self.workflow, JobWorkflow):
            return kind
        if not self._keeps:
            body.value = _NULL
            return kind
        try:
            self.workflow.activity.codec.decode_result(body.value if body.value is not UNSET else _NULL)
        except InvalidInput as error:
            failure = body.error = fatal(to_failure(error))
            body.value = UNSET
            self._failed = Attempt(
                seq=_SEQ,
                number=body.attempts,
                started_at=body.started_at,
                ended_at=self._host.clock.now(),
                error=json.encode(failure).decode(),
            )
            return _FAILED
        return kind

    def _complete(self, body: Body) -> None:
        """The whole journal at once: it has begun, and it is done."""
        opening = self._opening()
        outcome = Command(_SEQ + 1, _COMPLETE, "", body.value)
        body.commands = [outcome]
        at = self._host.clock.latest()
        closing = encode_entry(1, _DONE, at if at > opening.at else opening.at, body, opening.crc)
        change = self.change = Change(self.run_id, self.epoch, -1, [opening, closing])
        change.consumed.append(self._start.message_id)
        change.move = Move(_COMPLETED, outcome=_COUNTS if self.batched else "")
        if self._said is not None:
            self._publish(change, self._said)
        self.machine.outcome = outcome
        self.head, self._crc, self.last = 1, closing.crc, _DONE
        self.early, self.leaving = False, True
        self._host.submit(self)

    # -- its batch

    def move(self, move: Move) -> None:
        if self.batched and move.state in CLOSED:
            move.outcome = _COUNTS
        super().move(move)

    def batch(self, loop: asyncio.AbstractEventLoop) -> Future[BatchInfo]:
        """What became of the runs whose end it was called for."""
        told = self.machine.start.options
        size = None if told is UNSET else _overrides_decoder.decode(told).batch
        if not isinstance(self.workflow, JobWorkflow) or size is None:
            raise WorkerError(
                "batch_info() was called in a job that no batch has called: give it to enqueue_many as on_done="
            )
        return asyncio.run_coroutine_threadsafe(_look_at_batch(self._host.store, self.identity), loop)


async def _look_at_batch(store: Store, after: RunIdentity) -> BatchInfo:
    counts = {
        state: await store.count_runs(RunFilter(parent=after.run_id, states=(state,)))
        for state in (
            RunState.COMPLETED,
            RunState.FAILED,
            RunState.CANCELLED,
            RunState.TIMED_OUT,
            RunState.TERMINATED,
        )
    }
    bad = tuple(state for state, count in counts.items() if count and state is not RunState.COMPLETED)
    listed: list[str] = []
    if bad:
        page = await store.list_runs(RunFilter(parent=after.run_id, states=bad), None, _LISTED)
        listed = [run.id for run in page.runs]
    return BatchInfo(
        total=sum(counts.values()),
        completed=counts[RunState.COMPLETED],
        failed=counts[RunState.FAILED],
        cancelled=counts[RunState.CANCELLED],
        timed_out=counts[RunState.TIMED_OUT],
        terminated=counts[RunState.TERMINATED],
        not_completed=listed,
    )
