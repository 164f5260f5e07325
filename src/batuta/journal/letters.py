"""Dead letters: what was given up, and waits for a person."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from batuta.ids import RunId


class LetterReason(StrEnum):
    """Why it was given up."""

    EXHAUSTED = "exhausted"
    """Every attempt failed."""
    REFUSED = "refused"
    """The error is one that is never tried again."""
    TIMED_OUT = "timed_out"
    """The last attempt, or all of them together, took too long."""
    INTERRUPTED = "interrupted"
    """It was to be done once, and its worker died: it may or may not have happened."""
    RAISED = "raised"
    """The workflow's own error, where its definition says `dead_letter=True`."""


class LetterState(StrEnum):
    OPEN = "open"
    """D-02 calls it PENDING: somebody must look at it."""
    REPROCESSED = "reprocessed"
    DISCARDED = "discarded"


class NewLetter(Struct, kw_only=True, gc=False):
    """What the change that closes a run says of it. The store adds the run's id, kind, name, queue, tags and time."""

    reason: LetterReason
    error: str
    """The bare class name."""
    message: str
    """At most 2,000 characters of it."""
    fingerprint: str
    """The same for errors of the same origin: see `engine.letters.fingerprint`."""
    activity: str = ""
    """What failed; empty: the workflow's own code."""
    seq: int = 0
    attempts: int = 0
    keep: int = -1
    """The last entry before the failure: what a reprocessing from the failed step keeps."""
    trace: str = ""
    """The trace id."""


class DeadLetter(Struct, kw_only=True):
    """A row of `dead_letters`: one for each run, by its run id."""

    run_id: RunId
    id: str
    kind: str
    name: str
    queue: str
    flow_key: str = ""
    state: LetterState
    at: int
    reason: LetterReason
    error: str
    message: str
    fingerprint: str
    activity: str = ""
    seq: int = 0
    attempts: int = 0
    keep: int = -1
    trace: str = ""
    resolved_at: int | None = None
    note: str = ""
    """Why it was discarded."""
    successor: RunId | None = None
    """The run that it was reprocessed by."""


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
    """Of the time that they arrived."""


class LetterPage(Struct):
    """Some of them, newest first, and the cursor of the next page (None: that was the last)."""

    letters: list[DeadLetter]
    cursor: str | None


class LetterGroup(Struct, kw_only=True):
    """Dead letters of one fingerprint: "312 runs, same error"."""

    fingerprint: str
    count: int
    first_at: int
    last_at: int
    example: DeadLetter
    """The newest."""


class GroupPage(Struct):
    """Some groups, those with the newest letters first, and the cursor of the next page."""

    groups: list[LetterGroup]
    cursor: str | None
