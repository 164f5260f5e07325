"""Activities sent to another queue: each is a child run of its own, executed by a worker of that queue.

The child is a run of an internal workflow that calls the one activity, so that retries, timeouts, heartbeats and tokens
are those of any activity. Its end answers the call, as if the activity had been executed here.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol, cast

from msgspec import UNSET, Raw, Struct, json
from msgspec.structs import replace

from batuta.authoring.call_options import ActivityOptions
from batuta.authoring.definitions import Activity, Workflow
from batuta.authoring.failures.conversion import to_failure
from batuta.authoring.workflow.context import current_runtime
from batuta.clock import SECOND
from batuta.durations import human_duration
from batuta.engine.machine.core import PendingActivity
from batuta.engine.machine.identity import RunIdentity
from batuta.errors import ActivityFailed, ActivityTimeout
from batuta.ids import RunId, derived_seed, made_traceparent
from batuta.journal.entries import Body, Entry, EntryKind, StartInfo, decode_body, encode_entry
from batuta.journal.failures import Failure
from batuta.journal.records import PAUSES, IfExists, NewRun, ParentPolicy, Run, RunKind
from batuta.journal.states import CLOSED, RunState
from batuta.journal.store import Store
from batuta.serde import MAX_PAYLOAD, Decoder

_LOOK_AGAIN = 10 * SECOND
"""Until a child that was paused is looked after once more."""
_START = "did not start within"
_TOTAL = "took longer than its"
_ENDINGS = ("RunTimedOut", "RunTerminated", "RunCancelled")


# -- the side of the workflow that calls it


class Route:
    """A call of an activity that another queue executes."""

    __slots__ = ("check_at", "entry", "id", "pending", "seq")

    def __init__(self, pending: PendingActivity, seq: int, id: str, entry: int) -> None:
        self.pending, self.seq, self.id, self.entry = pending, seq, id, entry
        options = pending.options
        limits = [one for one in (options.start_timeout, options.total_timeout) if one is not None]
        self.check_at = pending.issued_at + int(min(limits) * SECOND) if limits else None
        """When to look whether it is over its time: while no worker has it, no worker looks."""

    @property
    def codec(self) -> Any:
        return self.pending.codec

    def is_due(self, now: int) -> bool:
        """Whether to look after it now. Says so once for each of its limits."""
        if self.check_at is None or self.check_at > now:
            return False
        total = self.pending.options.total_timeout
        ends = None if total is None else self.pending.issued_at + int(total * SECOND)
        self.check_at = ends if ends is not None and ends > now else None
        return True

    def look_again(self, at: int) -> None:
        """It could not be looked after, or was paused: once more then."""
        self.check_at = at

    def settle(self, entry: int) -> None:
        """The store has it since that entry, and it is another run's to look after."""
        self.entry, self.check_at = entry, None


class Caller(Struct, frozen=True):
    """The call, in the run whose code made it."""

    id: str
    run_id: RunId
    seq: int


class Sent(Struct, kw_only=True, omit_defaults=True):
    """The data that goes with an activity to another queue. Nothing of it goes with a job, which has no caller."""

    options: ActivityOptions = ActivityOptions()
    issued_at: int = 0
    """Its times count from here."""
    caller: Caller | None = None


def routed_run(route: Route, run_id: RunId, key: str, parent: RunIdentity, began: StartInfo) -> NewRun:
    """The run of a routed call. `key`: of the call; `parent`: the run that makes it; `began`: what that began with."""
    pending, caller = route.pending, Caller(parent.id, parent.run_id, route.seq)
    sent = Sent(options=replace(pending.options, queue=None, gates=()), issued_at=pending.issued_at, caller=caller)
    start = StartInfo(
        pending.name,
        derived_seed(began.seed, run_id),
        key,
        options=Raw(json.encode(sent)),
        trace=began.trace or made_traceparent(parent.chain_id),
        headers=began.headers,
        slot=began.slot,
    )
    return NewRun(
        run_id=run_id,
        id=route.id,
        name=pending.name,
        kind=RunKind.ACTIVITY,
        queue=pending.options.queue or parent.queue,
        parent_run_id=parent.run_id,
        parent_seq=route.seq,
        parent_policy=ParentPolicy.CANCEL,
        code=activity_code(pending.name),
        if_exists=IfExists.RESTART,
        start=json.encode(Body(value=Raw(pending.data), start=start)).decode(),
    )


def routed_answer(route: Route, body: Body) -> tuple[EntryKind, Body]:
    """The end of the child as the answer to the call, with the errors that it would have had here."""
    body.name = route.pending.name
    if body.error is UNSET:
        return EntryKind.ACTIVITY_DONE, body
    failure = body.error
    if failure.kind == "RunFailed" and failure.cause is not None:
        body.error = failure.cause
    elif failure.kind in _ENDINGS:
        body.error = _ended(failure)
    return EntryKind.ACTIVITY_FAILED, body


def _ended(failure: Failure) -> Failure:
    """Its run was ended from outside, not by its code."""
    said = failure.message.partition(" timed out: ")[2]
    if failure.kind != "RunTimedOut":
        return to_failure(ActivityFailed(failure.message, failure.type))
    return to_failure(ActivityTimeout(said or failure.message, "start" if _START in said else "total"))


async def end_overdue(store: Store, route: Route, run_id: RunId, now: int) -> bool:
    """Close the child if it has not begun in time, or if all of its time is over; whether it did. Time in which it was
    paused does not count: if it is to be looked after again, the route says when. Raises UnknownRun."""
    options = route.pending.options
    start, total = options.start_timeout, options.total_timeout
    while True:
        run, last = await store.outcome(run_id)
        if run.state in CLOSED:
            return False
        pauses = await store.attempts(run_id, PAUSES)
        since = route.pending.issued_at + sum((one.ended_at or 0) - one.started_at for one in pauses)
        over = total is not None and now >= since + total * SECOND
        late = start is not None and now >= since + start * SECOND and run.head < 0
        if run.paused_at is not None or not (over or late):
            limits = [one for one in (start if run.head < 0 else None, total) if one is not None]
            if limits and (pauses or run.paused_at is not None):
                route.look_again(max(now + _LOOK_AGAIN, since + int(min(limits) * SECOND)))
            return False
        what, seconds = (_START, start) if late else (_TOTAL, total)
        reason = f"activity {route.pending.name!r} {what} {human_duration(seconds or 0)} (queue {run.queue!r})"
        if await _time_out(store, run, last, reason):
            return True


async def _time_out(store: Store, run: Run, last: Entry | None, reason: str) -> bool:
    """Close the run after its last entry. False when it has moved on meanwhile: look at it again."""
    at = max(await store.now(), last.at if last is not None else 0)
    entry = encode_entry(
        run.head + 1, EntryKind.TIMED_OUT, at, Body(reason=reason), last.crc if last is not None else 0
    )
    return await store.close_run(run.run_id, run.head, entry, RunState.TIMED_OUT, reason)


# -- the side of the worker that executes it


def activity_code(name: str) -> str:
    """The code a worker needs for an activity that was sent to its queue."""
    return f"activity:{name}"


class _Called(Struct):
    """The one part of `Sent` that is asked for here: a job has other options, and no caller."""

    caller: Caller | None = None


def caller_of(start: StartInfo) -> Caller | None:
    """Who called the activity that a run executes for another one."""
    return None if start.options is UNSET else json.decode(start.options, type=_Called).caller


class _Through:
    """Arguments and results of a routed call pass as they are: the activity's own codec reads them."""

    result_decoder = json.Decoder(Raw)

    def decode_args(self, data: bytes | Raw) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (Raw(bytes(data)),), {}

    def encode_result(self, value: Raw, limit: int = MAX_PAYLOAD) -> bytes:
        return bytes(value)

    def decode_result(self, data: bytes | Raw) -> Any:
        return data


class CallingRuntime(Protocol):
    """The run as the engine's own workflows see it: those of routed calls and of compensations."""

    start: StartInfo

    def call_activity(
        self,
        name: str,
        codec: None,
        decoder: Decoder,
        args: Any,
        kwargs: dict[str, Any],
        options: ActivityOptions,
        issued_at: int = 0,
        key: str = "",
    ) -> Coroutine[Any, Any, Any]: ...


class RoutedCall(Workflow[..., Any]):
    """The workflow of a run that is one call of one activity."""

    def __init__(self, activity: Activity[..., Any]) -> None:
        async def perform(arguments: Raw) -> Any:
            machine = cast(CallingRuntime, current_runtime.get())
            options, issued_at = self.options(machine.start)
            return await machine.call_activity(
                activity.name, None, _Through.result_decoder, arguments, {}, options, issued_at
            )

        super().__init__(perform, name="routed")
        self.activity = activity
        self.name = activity.name
        self.codec = cast(Any, _Through())
        self.fingerprint = "routed"  # the activity's code is not replayed

    def options(self, start: StartInfo) -> tuple[ActivityOptions, int]:
        """How it is to be called, and the time from which its limits count; 0: from when its run begins."""
        sent = json.decode(start.options if start.options is not UNSET else b"{}", type=Sent)
        return replace(sent.options, gates=self.activity.options.gates), sent.issued_at


def with_attempts(told: str, last: Entry) -> str:
    """The answer for the caller, with the number and times of its attempts, as for every call."""
    body, answer = json.decode(told, type=Body), decode_body(last)
    body.attempts, body.started_at = answer.attempts, answer.started_at
    return json.encode(body).decode()


def routed_calls(activities: dict[str, Activity[..., Any]]) -> dict[str, Workflow[..., Any]]:
    """What a worker can execute for others, by what their runs ask for."""
    return {activity_code(name): RoutedCall(activity) for name, activity in activities.items()}
