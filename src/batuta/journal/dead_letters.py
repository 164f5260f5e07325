"""Dead letters: failed work that waits for a person."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import asdict

from batuta.clock import as_datetime
from batuta.ids import RunId
from batuta.journal.codec_envelope import Payload
from batuta.journal.records import LetterReason, NewLetter, RunKind


class LetterState(StrEnum):
    OPEN = "open"
    """It waits for an operator. Requirement D-02 calls it PENDING."""
    REPROCESSED = "reprocessed"
    DISCARDED = "discarded"


class LetterFilter(Struct, kw_only=True, frozen=True):
    """Which dead letters. None and empty do not restrict."""

    states: tuple[LetterState, ...] = (LetterState.OPEN,)
    fingerprint: str | None = None
    reason: LetterReason | None = None
    name: str | None = None
    kind: str | None = None
    queue: str | None = None
    flow_key: str | None = None
    error: str | None = None
    activity: str | None = None
    id_prefix: str | None = None
    after: int | None = None
    before: int | None = None
    """By time of arrival."""


class DeadLetter(Struct, kw_only=True):
    """A run that failed for good, and its resolution. Each run has at most one."""

    id: str
    run_id: RunId
    kind: RunKind
    name: str
    """The name of the job or workflow."""
    queue: str
    key: str = ""
    state: LetterState
    at: datetime
    """When it failed."""
    reason: LetterReason
    error: str
    """The class of the error."""
    message: Payload
    fingerprint: str
    """The same for errors of the same origin."""
    activity: str = ""
    """The activity that failed; empty: the workflow's own code."""
    seq: int = 0
    """The number of the call that failed in its run; 0: the workflow's own code."""
    attempts: int = 0
    keep: int = -1
    """The last journal entry before the failure: reprocessing from the failed step keeps all up to it."""
    trace: str = ""
    """The trace id, if the run was traced."""
    resolved_at: datetime | None = None
    note: str = ""
    """Why it was discarded."""
    successor: RunId | None = None
    """The run that it was reprocessed by."""


def open_letter(
    new: NewLetter, at: int, *, run_id: RunId, id: str, kind: RunKind, name: str, queue: str, key: str = ""
) -> DeadLetter:
    """The dead letter of a run that has failed at that time."""
    return DeadLetter(
        run_id=run_id,
        id=id,
        kind=kind,
        name=name,
        queue=queue,
        key=key,
        state=LetterState.OPEN,
        at=as_datetime(at),
        **asdict(new),
    )


class DeadLetterPage(Struct):
    """Some dead letters, newest first. `cursor` gets the next page; None: that was the last."""

    letters: list[DeadLetter]
    cursor: str | None


class DeadLetterGroup(Struct, kw_only=True):
    """Dead letters of one fingerprint: "312 runs, same error"."""

    fingerprint: str
    count: int
    first_at: datetime
    last_at: datetime
    example: DeadLetter
    """The newest."""


class DeadLetterGroups(Struct):
    """Some groups, those with the newest letters first. `cursor` gets the next page; None: that was the last."""

    groups: list[DeadLetterGroup]
    cursor: str | None
