"""Whether any live worker will take a run, and if not, why. Values only."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.errors import UnknownActivity, UnknownWorkflow
from batuta.journal.records import Run, RunKind, WorkerView
from batuta.journal.states import CLAIMABLE, RunState


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
        again = ", or let the same code try again (`batuta runs retry`)" if run.state is RunState.NEEDS_CODE else ""
        return (
            f"needs code: every live worker with workflow {run.name!r} has code that failed to replay this run: "
            f"deploy code that does{again}"
        )
    return ""


def _nobody_has(run: Run, code: set[str]) -> str:
    if run.kind is RunKind.ACTIVITY:
        known = {name.removeprefix("activity:") for name in code if name.startswith("activity:")}
        return str(UnknownActivity(run.name, known))
    return str(UnknownWorkflow(run.name, {name for name in code if ":" not in name}, run.version))
