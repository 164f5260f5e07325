"""What a run's row must say, given its journal: I1, I6 and I12. Values only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from batuta.journal.entries import CommandKind, EntryKind
from batuta.journal.records import Run
from batuta.journal.states import CLOSED, PARKED, RunState
from batuta.verify.tape import TapeCheck

Tell = Callable[[str, str], None]

_ENDS_OF: dict[RunState, tuple[CommandKind | EntryKind | None, ...]] = {
    RunState.COMPLETED: (CommandKind.COMPLETE,),
    RunState.FAILED: (CommandKind.FAIL,),
    RunState.CANCELLED: (CommandKind.CANCELLED, EntryKind.CANCELLED),
    RunState.TERMINATED: (EntryKind.TERMINATED,),
    RunState.TIMED_OUT: (EntryKind.TIMED_OUT,),
}

_FOLLOWED = (CommandKind.CONTINUE, CommandKind.FAIL)
"""Ends after which another run of the chain goes on: it asked for it, or it failed and is tried again."""


def check_end(run: Run, tape: TapeCheck, tell: Tell) -> None:
    """I1 and I4: the journal is as long as the row says, and ends as the row says."""
    if tape.entries != run.head + 1:
        tell("I4", f"the journal has {tape.entries} entries, the run's head is {run.head}")
    if tape.name is not None and tape.name != run.name:
        tell("I1", f"the journal is one of workflow {tape.name!r}, the run one of {run.name!r}")
    follows = run.state is RunState.CONTINUED and tape.end in _FOLLOWED
    if tape.end not in _ENDS_OF.get(run.state, (None,)) and not follows:
        tell("I1", f"the run is {run.state}, and its journal ends with {tape.end or 'nothing that closes a run'}")
    if (run.closed_at is not None) is not (run.state in CLOSED):
        tell("I1", f"the run is {run.state}, and closed_at is {run.closed_at}")


def check_epochs(run: Run, epochs: Sequence[int], tell: Tell) -> None:
    """I6: ownership only ever moved forward. I5: no entry lies beyond a closed run's head, where nobody reads."""
    if run.state in CLOSED and len(epochs) > run.head + 1:
        tell("I5", f"{len(epochs) - run.head - 1} entries lie beyond the run's head, after its end")
    epochs = epochs[: run.head + 1]
    for place, (before, after) in enumerate(pairwise(epochs), start=1):
        if after < before:
            tell("I6", f"entry {place} was written in epoch {after}, after one of epoch {before}")
    if epochs and epochs[-1] > run.epoch:
        tell("I6", f"the last entry was written in epoch {epochs[-1]}, the run is at {run.epoch}")


def check_liveness(run: Run, waits_for_activity: bool, unread: int, tell: Tell) -> None:
    """I12: somebody or something will move the run on, or a person can see why not."""
    if run.state is RunState.RUNNING and run.owner is None:
        tell("I12", "the run is running, and owned by nobody")
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
            tell("I12", "the run waits for an activity that nobody executes: it is never due")
        elif unread:
            tell("I12", f"the run has {unread} unread messages, and is never due")
    if (run.state is RunState.PAUSED) is not (run.paused_at is not None):
        tell("I12", f"the run is {run.state}, and paused_at is {run.paused_at}")
    if run.state in PARKED and not run.reason:
        tell("I12", f"the run is parked as {run.state} without a reason")
