"""Checks of a run's row against its journal: I1, I6 and I12. Values only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from batuta.journal.kinds import ends_as
from batuta.journal.records import Run
from batuta.journal.states import CLOSED, PARKED, RunState
from batuta.verify.journal import JournalCheck

Tell = Callable[[str, str], None]


def check_end(run: Run, journal: JournalCheck, tell: Tell) -> None:
    """I1 and I4: the journal is as long as the row says, and ends as the row says."""
    if journal.entries != run.head + 1:
        tell("I4", f"the journal has {journal.entries} entries, the run's head is {run.head}")
    if journal.name is not None and journal.name != run.name:
        tell("I1", f"the journal is one of workflow {journal.name!r}, the run one of {run.name!r}")
    if not ends_as(journal.end, run.state):
        tell("I1", f"the run is {run.state}, and its journal ends with {journal.end or 'nothing that closes a run'}")
    if (run.closed_at is not None) is not (run.state in CLOSED):
        tell("I1", f"the run is {run.state}, and closed_at is {run.closed_at}")


def check_epochs(run: Run, epochs: Sequence[int], tell: Tell) -> None:
    """I6: ownership only moved forward. I5: no entry follows a closed run's head."""
    if run.state in CLOSED and len(epochs) > run.head + 1:
        tell("I5", f"{len(epochs) - run.head - 1} entries follow the run's head, after its end")
    epochs = epochs[: run.head + 1]
    for place, (before, after) in enumerate(pairwise(epochs), start=1):
        if after < before:
            tell("I6", f"entry {place} was written in epoch {after}, after one of epoch {before}")
    if epochs and epochs[-1] > run.epoch:
        tell("I6", f"the last entry was written in epoch {epochs[-1]}, the run is at {run.epoch}")


def check_liveness(run: Run, waits_for_activity: bool, unread: int, tell: Tell) -> None:
    """I12: a worker, a timer or a message will move the run on, or a person can see why not."""
    if run.state is RunState.RUNNING and run.owner is None:
        tell("I12", "the run is running, but has no owner")
    if run.state is not RunState.RUNNING and run.owner is not None:
        tell("I12", f"the run is {run.state}, and owned by {run.owner}")
    if run.state not in (RunState.PENDING, RunState.WAITING):
        if run.wake_at is not None:
            tell("I12", f"the run is {run.state}, and yet due")
    elif run.wake_at is None and run.state is RunState.PENDING:
        if not run.awaits:
            tell("I12", "the run is pending and never due")
    elif run.wake_at is None:
        if waits_for_activity:
            tell("I12", "the run waits for an activity without a worker, and is never due")
        elif unread:
            tell("I12", f"the run has {unread} unread messages, and is never due")
    if (run.state is RunState.PAUSED) is not (run.paused_at is not None):
        tell("I12", f"the run is {run.state}, and paused_at is {run.paused_at}")
    if run.state in PARKED and not run.reason:
        tell("I12", f"the run is parked as {run.state} without a reason")
