"""Activities sent to another queue: each is a child run of its own, executed by a worker of that queue.

The child is a run of an internal workflow that calls the one activity, so that retries, timeouts, heartbeats and tokens
are those of any activity. Its end answers the call, as if the activity had been executed here.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, cast

from msgspec import UNSET, Raw, Struct, json
from msgspec.structs import replace

from batuta.authoring.context import current_runtime
from batuta.authoring.definitions import Activity, Workflow
from batuta.authoring.failures import to_failure
from batuta.authoring.options import ActivityOptions
from batuta.clock import SECOND
from batuta.engine.closing import close_from_outside
from batuta.errors import ActivityFailed, ActivityTimeout
from batuta.ids import RunId, derived_run_id, seed_of
from batuta.journal.entries import Body, Command, CommandKind, Entry, EntryKind, StartInfo, decode_body
from batuta.journal.failures import Failure
from batuta.journal.records import PAUSES, IfExists, NewRun, ParentPolicy, RunKind
from batuta.journal.states import CLOSED
from batuta.journal.store import Store
from batuta.serde import MAX_PAYLOAD

if TYPE_CHECKING:
    from batuta.engine.kin import Kin
    from batuta.engine.machine import Machine
    from batuta.engine.pending import PendingActivity

log = logging.getLogger("batuta.engine")

_LONGEST_ID = 500
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
        """When to look whether it is over its time: while nobody has it, nobody else does."""

    @property
    def codec(self) -> Any:
        return self.pending.codec


def routed_to(machine: Machine, options: ActivityOptions) -> str | None:
    """The id of the run that executes the call that is being issued; None: it stays here. In replay, as it was."""
    if machine.recorded is None:
        stays = options.queue is None or options.queue == machine.identity.queue
        return None if stays else default_id(machine, machine.last_seq + 1)
    return recorded_to(machine, CommandKind.ACTIVITY) or None


def recorded_to(machine: Machine, kind: CommandKind) -> str:
    """In replay: the id of the run that the command at this place of the turn had begun, if it is of that kind."""
    if machine.recorded is None:
        return ""
    place = len(machine.commands)
    found = machine.recorded[place] if place < len(machine.recorded) else None
    return found.to if found is not None and found.kind is kind else ""


async def call_routed(machine: Machine, pending: PendingActivity, id: str) -> Any:
    """Issue the call and wait for its answer. Cancelled while it waits: asks for the activity's end, too."""
    kin = machine.kinship()
    seq = machine.next_seq()
    machine.commands.append(Command(seq, CommandKind.ACTIVITY, pending.name, Raw(pending.data), to=id))
    machine.beyond = kin.had_children = True
    kin.routed[seq] = Route(pending, seq, id, machine.entries)
    try:
        return await pending.future
    except asyncio.CancelledError:
        if not machine.gone and kin.routed.pop(seq, None) is not None:
            why = Raw(json.encode("its caller does not wait for it any more"))
            command = Command(machine.next_seq(), CommandKind.CANCEL, pending.name, why, target=seq, to=id)
            machine.commands.append(command)
            machine.beyond = True
        raise


class Caller(Struct, frozen=True):
    """The call, in the run whose code made it."""

    id: str
    run_id: RunId
    seq: int


class Sent(Struct, kw_only=True, omit_defaults=True):
    """What goes with an activity to another queue. Nothing of it goes with a job, which has no caller."""

    options: ActivityOptions = ActivityOptions()
    issued_at: int = 0
    """Its times count from here."""
    caller: Caller | None = None


def routed_run_id(machine: Machine, route: Route) -> RunId:
    return derived_run_id(route.pending.issued_at, machine.mark(route.seq), route.seq)


def routed_run(machine: Machine, route: Route) -> NewRun:
    """The child, as the store is to insert it. The same every time it is asked for."""
    pending, run_id = route.pending, routed_run_id(machine, route)
    caller = Caller(machine.identity.id, machine.identity.run_id, route.seq)
    sent = Sent(options=replace(pending.options, queue=None), issued_at=pending.issued_at, caller=caller)
    start = StartInfo(
        pending.name,
        seed_of(run_id),
        machine.key(route.seq, pending.name),  # the call's key is the same wherever it is executed
        options=Raw(json.encode(sent)),
        trace=machine.start.trace,
        headers=machine.start.headers,
    )
    return NewRun(
        run_id=run_id,
        id=route.id,
        name=pending.name,
        kind=RunKind.ACTIVITY,
        queue=pending.options.queue or machine.identity.queue,
        parent_run_id=machine.identity.run_id,
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
    """Its run was ended by somebody else than its code."""
    said = failure.message.partition(" timed out: ")[2]
    if failure.kind != "RunTimedOut":
        return to_failure(ActivityFailed(failure.message, failure.type))
    return to_failure(ActivityTimeout(said or failure.message, "start" if _START in said else "total"))


def default_id(machine: Machine, seq: int) -> str:
    """Readable, and unlike that of any other child: also of a run that comes later under the parent's id."""
    mark = machine.mark(seq)
    id = f"{machine.identity.id}/{seq}-{mark[-6:]}"
    return id if len(id) <= _LONGEST_ID else f"{mark}/{seq}"


# -- time


def next_check(kin: Kin) -> int | None:
    """When to look after an activity that is elsewhere."""
    return min((route.check_at for route in kin.routed.values() if route.check_at is not None), default=None)


def due_checks(kin: Kin, now: int) -> list[Route]:
    """Those to look after now. Each is given once."""
    due = [route for route in kin.routed.values() if route.check_at is not None and route.check_at <= now]
    for route in due:
        total = route.pending.options.total_timeout
        ends = None if total is None else route.pending.issued_at + int(total * SECOND)
        route.check_at = ends if ends is not None and ends > now else None
    return due


async def end_overdue(store: Store, route: Route, run_id: RunId, now: int) -> None:
    """Close the child if nobody has begun it in time, or if all of its time is over. Time in which it was paused does
    not count: if it is to be looked after again, the route says when. Raises UnknownRun."""
    options = route.pending.options
    start, total = options.start_timeout, options.total_timeout
    while True:
        run, last = await store.outcome(run_id)
        if run.state in CLOSED:
            return
        pauses = await store.attempts(run_id, PAUSES)
        since = route.pending.issued_at + sum((one.ended_at or 0) - one.started_at for one in pauses)
        over = total is not None and now >= since + total * SECOND
        late = start is not None and now >= since + start * SECOND and run.head < 0
        if run.paused_at is not None or not (over or late):
            limits = [one for one in (start if run.head < 0 else None, total) if one is not None]
            if limits and (pauses or run.paused_at is not None):
                route.check_at = max(now + _LOOK_AGAIN, since + int(min(limits) * SECOND))
            return
        what, seconds = (_START, start) if late else (_TOTAL, total)
        reason = f"activity {route.pending.name!r} {what} {seconds:g} s (queue {run.queue!r})"
        if await close_from_outside(store, run, last, EntryKind.TIMED_OUT, reason):
            return


# -- the side of the worker that executes it


def activity_code(name: str) -> str:
    """What a worker must have to execute an activity that was sent to its queue."""
    return f"activity:{name}"


class _Called(Struct):
    """The one part of `Sent` that is asked for here: a job has other options, and nobody called it."""

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


class RoutedCall(Workflow[..., Any]):
    """The workflow of a run that is one call of one activity."""

    def __init__(self, activity: Activity[..., Any]) -> None:
        async def perform(arguments: Raw) -> Any:
            machine = cast("Machine", current_runtime.get())
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
        return sent.options, sent.issued_at


def with_attempts(told: str, last: Entry) -> str:
    """What the caller is told of the end, with how often it was tried and when, as its journal has of every call."""
    body, answer = json.decode(told, type=Body), decode_body(last)
    body.attempts, body.started_at = answer.attempts, answer.started_at
    return json.encode(body).decode()


def routed_calls(activities: dict[str, Activity[..., Any]]) -> dict[str, Workflow[..., Any]]:
    """What a worker can execute for others, by what their runs ask for."""
    return {activity_code(name): RoutedCall(activity) for name, activity in activities.items()}
