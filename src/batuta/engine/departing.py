"""How a run leaves the memory of its worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batuta import failpoints
from batuta.engine.calls import DROPPED, ENDED
from batuta.engine.relations import parent_message
from batuta.failpoints import failpoint
from batuta.journal.records import Move
from batuta.journal.states import CLOSED

if TYPE_CHECKING:
    from batuta.engine.host import Host
    from batuta.engine.live import LiveRun


def depart(run: LiveRun, host: Host, move: Move) -> None:
    """Its last change here is durable."""
    machine, closed = run.machine, move.state in CLOSED
    if closed:
        if failpoints.armed is not None:
            failpoint("close.durable")
        end = (move.state, machine.outcome)
        if run.completion is not None:
            run.completion.settle(end)
        if host.waiters.waiting:
            host.waiters.settle(run.run_id, end)
        if run.parent is not None and (told := parent_message(run, move)) is not None:
            host.tell(run.parent[0], told)
    elif run.completion is not None:
        run.completion.lose()
    run.leaving = True
    if run.alarm is not None:
        host.disarm(run)
    if run.calls:
        host.executor.cancel_all(run, ENDED)
    machine.tear_down()
    host.forget(run, None if closed else move.wake_at)
    if not closed:
        host.waiters.look_for(run.run_id)
    if failpoints.armed is not None:
        failpoint("evict.after")


def drop(run: LiveRun, host: Host) -> None:
    """It is not ours any more: nothing is said to the store."""
    run.leaving = True
    run.change = None
    run.effects = []
    run.starting = None
    if run.completion is not None:
        run.completion.lose()
    host.disarm(run)
    host.executor.cancel_all(run, DROPPED)
    run.machine.tear_down()
    host.forget(run, None)
    host.waiters.look_for(run.run_id)
