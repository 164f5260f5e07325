"""Documents that the command line and the server both give: one shape for each thing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from batuta.authoring.backend import Description
from batuta.authoring.client.handle import Handle
from batuta.authoring.client.workers import WorkerRow
from batuta.authoring.history.steps import StepKind, StepState
from batuta.authoring.history.timeline import Timeline
from batuta.errors import PayloadSealed, RunFailed, RunNotCompleted
from batuta.journal.queues import LIMITS, QueueInfo, is_rate
from batuta.journal.records import RunKind
from batuta.journal.retention import Retention, shown_age
from batuta.journal.states import CLOSED, RunState

STOPPED = (RunState.NEEDS_CODE, RunState.POISONED, RunState.PAUSED)
"""States of runs that wait for a person."""
_MOST = 1000
"""Stopped runs that are counted."""
_WAITS = (StepKind.ACTIVITY, StepKind.CHILD, StepKind.TIMER)


async def run_document(handle: Handle[Any]) -> tuple[Description, Timeline, dict[str, Any]]:
    """A run, its timeline, and what it was given, waits for, has published and ended with."""
    run, timeline = await handle.describe(), await handle.timeline()
    more = told(timeline)
    try:
        more["published"] = await handle.published()
        if run.state in CLOSED and run.state is not RunState.CONTINUED:
            more["result"] = await handle.result()
    except (RunNotCompleted, PayloadSealed) as error:
        more |= ended_with(error)
        if more.get("traceback"):
            more["traceback"] = _with_step(more["traceback"], timeline)
    return run, timeline, more


async def job_document(handle: Handle[Any], run: Description) -> tuple[Description, dict[str, Any]]:
    """A job with all its attempts, what it has said of its progress, and what it ended with."""
    run.attempts = await handle.attempts()
    more: dict[str, Any] = {"input": told(await handle.timeline())["input"]}
    if (progress := await handle.progress()) is not None:
        more["progress"] = progress
    if run.state in CLOSED:
        try:
            more["result"] = await handle.result()
        except RunNotCompleted as error:
            more |= ended_with(error)
    return run, more


def told(found: Timeline) -> dict[str, Any]:
    """A run's input, and the calls it waits for, as its steps show them."""
    given = next((step.input for step in found.steps if step.kind is StepKind.START), None)
    waits = [
        {"kind": str(step.kind), "name": step.name, "seq": step.seq, "tries": step.tries, "since": step.began_at}
        for step in found.steps
        if step.state is StepState.OPEN and step.kind in _WAITS
    ]
    return {"input": given, "waiting_for": waits}


def ended_with(error: Exception) -> dict[str, str]:
    """The error that a run ended with, and its traceback where there is one."""
    traceback = error.traceback if isinstance(error, RunFailed) else ""
    return {"error": str(error), "traceback": traceback} if traceback else {"error": str(error)}


def _with_step(traceback: str, timeline: Timeline) -> str:
    """The traceback of a run, after that of the step whose error it raised: the code that failed is there."""
    raised = traceback.rstrip().rpartition("\n")[2]
    for step in reversed(timeline.steps):
        error = step.error
        if step.kind is StepKind.ACTIVITY and error and error.traceback.rstrip().endswith(f"\n{raised}"):
            between = f"The workflow got this error from activity {step.name}:"
            return f"{error.traceback.rstrip()}\n\n{between}\n\n{traceback}"
    return traceback


def queue_document(queue: QueueInfo) -> dict[str, Any]:
    """As JSON: a rate is written as it is typed."""
    document: dict[str, Any] = msgspec.to_builtins(queue)
    return document | {name: document[name] and str(getattr(queue, name)) for name in LIMITS if is_rate(name)}


def retention_document(rules: Iterable[Retention]) -> dict[str, Any]:
    """Rules as they are typed; null stands for any."""
    shown = [{"workflow": r.workflow or None, "state": r.state or None, "keep": shown_age(r.seconds)} for r in rules]
    return {"retention": shown}


class Status(Struct, kw_only=True):
    """Workers, queues, and what needs a person."""

    workers: Sequence[WorkerRow]
    queues: Sequence[QueueInfo]
    stopped: dict[str, int]
    """Parked and paused runs by state."""
    more_stopped: bool
    """There are more than were counted."""
    retrying: int
    tries: int
    retrying_often: int
    """Runs that try something again which has failed more than `tries` times."""
    dead_letters: int

    def document(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in self.__struct_fields__}
        return found | {"queues": [queue_document(queue) for queue in self.queues]}


class _Client(Protocol):
    """The part of a client that a status is read with."""

    workers: Any
    namespace: Any

    async def queues(self) -> Sequence[QueueInfo]: ...
    async def list(self, /, **where: Any) -> Any: ...


async def read_status(client: _Client, tries: int) -> Status:
    """Each part is one bounded question."""
    stopped = {str(state): 0 for state in STOPPED}
    workers, queues, page, gauges = await asyncio.gather(
        client.workers.list(),
        client.queues(),
        client.list(kind="any", states=STOPPED, limit=_MOST),
        client.namespace.gauges(),
    )
    for run in page.runs:
        stopped[str(run.state)] += 1
    return Status(
        workers=workers,
        queues=queues,
        stopped=stopped,
        more_stopped=page.cursor is not None,
        retrying=sum(gauges.retrying.values()),
        tries=tries,
        retrying_often=sum(runs for failures, runs in gauges.retrying.items() if failures > tries),
        dead_letters=gauges.dead_letters,
    )


def is_job(run: Description) -> bool:
    return run.kind is RunKind.JOB
