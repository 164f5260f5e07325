"""The end of a child, as its parent gets it."""

from __future__ import annotations

from msgspec import Raw, UnsetType, json

from batuta.journal.entries import Body
from batuta.journal.failures import Failure
from batuta.journal.states import RunState

_CLASSES = {
    RunState.FAILED: "RunFailed",
    RunState.CANCELLED: "RunCancelled",
    RunState.TERMINATED: "RunTerminated",
    RunState.TIMED_OUT: "RunTimedOut",
}


def completed_outcome(seq: int, value: Raw | UnsetType) -> str:
    """The body of the CHILD message of a child that gave a result. `seq` is the parent's command."""
    return json.encode(Body(seq=seq, value=value)).decode()


def ended_outcome(seq: int, id: str, state: RunState, reason: str = "", cause: Failure | None = None) -> str:
    """The end of a child that did not complete: the parent gets the error that `handle.result()` raises.

    `reason` is why it was ended from outside; `cause` the error that it ended with itself.
    """
    return json.encode(Body(seq=seq, error=not_completed(id, state, reason, cause))).decode()


def not_completed(id: str, state: RunState, reason: str = "", cause: Failure | None = None) -> Failure:
    """RunFailed, RunCancelled, RunTerminated or RunTimedOut, as a value."""
    said = cause.words if cause is not None else reason
    message = f"run {id!r} {state.replace('_', ' ')}" + (f": {said}" if said else "")
    details = json.encode({"args": [message], "fields": {"id": id, "state": str(state)}})
    return Failure(f"batuta.errors:{_CLASSES[state]}", message, Raw(details), cause=cause)
