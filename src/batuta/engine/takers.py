"""Whether any live worker will take a run, and if not, why. Values only."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.errors import PayloadSealed, UnknownActivity, UnknownJob, UnknownWorkflow
from batuta.journal.queues import QueueView
from batuta.journal.records import Run, RunKind, WorkerView
from batuta.journal.states import CLAIMABLE, RunState

_SEALED = PayloadSealed.__name__


def needs_taker(run: Run) -> bool:
    """Whether it goes on only when a worker takes it. A poisoned run waits for a person instead."""
    return run.state in CLAIMABLE or run.state is RunState.NEEDS_CODE


def why_nobody_takes(run: Run, workers: Sequence[WorkerView]) -> str:
    """Says so when no worker will take the run, however long it waits; else empty."""
    live = [worker for worker in workers if worker.live and run.queue in worker.queues]
    if not live:
        return f"no live worker works on queue {run.queue!r}"
    needed = run.code or run.name
    code = {worker.code[needed] for worker in live if needed in worker.code}
    if not code:
        return _nobody_has(run, {name for worker in live for name in worker.code})
    if code.issubset(run.failed_code):
        if run.reason.startswith(_SEALED):
            return "no live worker can read it: one with its key, or its codec, takes it up"
        again = ", or let the same code try again (`batuta runs retry`)" if run.state is RunState.NEEDS_CODE else ""
        return (
            f"needs code: every live worker with workflow {run.name!r} has code that failed to replay this run: "
            f"deploy code that does{again}"
        )
    return ""


def why_held(run: Run, queue: QueueView) -> str:
    """Says so when its queue holds a run that is due; else empty."""
    if queue.paused:
        return f"queue {queue.name!r} is paused" + (f": {queue.note}" if queue.note else "")
    limits = queue.limits
    if limits.concurrency is not None and queue.running >= limits.concurrency:
        return f"queue {queue.name!r} has as many running as it may at once ({limits.concurrency})"
    if not limits.any:
        return ""
    names = [name for name in limits.__struct_fields__ if getattr(limits, name) is not None]
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
