"""Whether any live worker will take a run, and if not, why. Values only."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from batuta.errors import PayloadSealed, UnknownActivity, UnknownJob, UnknownWorkflow
from batuta.journal.queues import LIMITS, QueueInfo
from batuta.journal.records import Run, RunKind, WorkerInfo, WorkerView
from batuta.journal.states import CLAIMABLE, RunState

_SEALED = PayloadSealed.__name__


def needs_worker(run: Run) -> bool:
    """Whether it goes on only when a worker takes it. A poisoned run waits for a person instead."""
    return run.state in CLAIMABLE or run.state is RunState.NEEDS_CODE


def why_unclaimable(run: Run, workers: Sequence[WorkerView]) -> str:
    """Says so when no worker will take the run, however long it waits; else empty."""
    live = [worker for worker in workers if worker.live and run.queue in worker.queues]
    if not live:
        return f"no live worker serves queue {run.queue!r}"
    needed = run.code or run.name
    code = {worker.code[needed] for worker in live if needed in worker.code}
    if not code:
        return _nobody_has(run, {name for worker in live for name in worker.code})
    if code.issubset(run.failed_code):
        if run.reason.startswith(_SEALED):
            return "no live worker can read it: start one with its key or codec"
        again = ", or let the same code try again (`batuta runs retry`)" if run.state is RunState.NEEDS_CODE else ""
        return (
            f"needs code: every live worker with workflow {run.name!r} has code that this run was parked on: "
            f"deploy changed code{again}"
        )
    return ""


class Declared(Struct, frozen=True):
    """Work that code of a worker sends to a queue."""

    what: str
    """Such as "activity render"."""
    code: str
    """The code that a worker needs for it."""
    queue: str


Serving = WorkerInfo | WorkerView
"""A worker, as far as it says which runs it takes."""


def why_unserved(declared: Sequence[Declared], serving: Sequence[Serving]) -> list[str]:
    """A sentence for each queue to which work goes that none of these workers takes."""
    lost: dict[str, list[str]] = {}
    for one in declared:
        if not any(one.queue in worker.queues and one.code in worker.code for worker in serving):
            lost.setdefault(one.queue, []).append(one.what)
    return [_unserved(queue, ", ".join(what), serving) for queue, what in lost.items()]


def _unserved(queue: str, what: str, serving: Sequence[Serving]) -> str:
    if any(queue in worker.queues for worker in serving):
        return f"no live worker of queue {queue!r} has {what}, which goes there and waits: give it to such a worker"
    return (
        f"no live worker serves queue {queue!r}: {what} goes there and waits. Start a worker with `--queue {queue}`, "
        f"or add {queue!r} to queues= of one that runs"
    )


def why_held(run: Run, queue: QueueInfo) -> str:
    """Says so when its queue holds a run that is due; else empty."""
    if queue.paused:
        return f"queue {queue.name!r} is paused" + (f": {queue.reason}" if queue.reason else "")
    if queue.concurrency is not None and queue.running >= queue.concurrency:
        return f"queue {queue.name!r} has reached its concurrency ({queue.concurrency})"
    names = [name for name in LIMITS if getattr(queue, name) is not None]
    if not names:
        return ""
    keyed = f" of key {run.flow_key!r}" if run.flow_key and any(name.startswith("key") for name in names) else ""
    return f"queue {queue.name!r} has limits ({', '.join(names)}): it waits for its turn{keyed}"


def _nobody_has(run: Run, code: set[str]) -> str:
    if run.kind is RunKind.ACTIVITY:
        known = {name.removeprefix("activity:") for name in code if name.startswith("activity:")}
        return str(UnknownActivity(run.name, known))
    if run.kind is RunKind.JOB:
        known = {name.removeprefix("job:") for name in code if name.startswith("job:")}
        return str(UnknownJob(run.name, known))
    return str(UnknownWorkflow(run.name, {name for name in code if ":" not in name}, run.version))
