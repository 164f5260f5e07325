"""What the steps of a reconciliation take and give."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

AGREES = "AGREES"
"""The directory has the same verifier."""
BUSY = "BUSY"
"""Nothing differs but what changes just now."""
DIFFERS = "DIFFERS"
"""Something differs that could not be repaired."""
FAILED = "FAILED"
"""It did not come to its end."""

HERE, THERE = "HERE", "THERE"

TOPIC = "core-events"
ALERT = "reconciliation.alert"
ACTION = "ActionReconciliationAlert"


class Options(Struct, frozen=True, kw_only=True):
    """How a reconciliation goes about it."""

    settle: float = 600.0
    """Seconds in which an open request ends. What changed later than that is left alone."""
    pause: float = 600.0
    """Seconds between two rounds when nothing could be repaired: open requests end meanwhile."""
    rounds: int = 3
    """How often differences are repaired before they are told."""
    retire_most: int = 10
    retire_share: float = 0.05
    """The brake: a run that would end more rows of a type than this number, and more than this share of its active
    rows, repairs nothing of that type. A share of 1 allows all."""


class Snapshot(Struct, frozen=True, kw_only=True):
    """Our active entries of one type."""

    taken_at: datetime
    """By the clock of our tables."""
    entries: int
    verifier: str


class Walked(Struct, frozen=True, kw_only=True):
    """Pages of events that were read."""

    events: int
    is_more: bool
    wait: float = 0.0
    """Seconds until the directory has tokens again; 0 when it has."""
    verifier: str = ""
    """The directory's, after the last event."""
    adds_up: bool = True
    """Whether the identifiers that the events leave have that verifier."""
    now: datetime | None = None
    """The directory's clock."""


class Difference(Struct, frozen=True, kw_only=True):
    """An identifier that only one side has."""

    cid: str
    side: str
    """HERE or THERE: who has it."""


class Limits(Struct, frozen=True, kw_only=True):
    """What changed later is left alone."""

    here: datetime
    """By the clock of our tables."""
    there: datetime
    """By that of the directory."""


class Compared(Struct, frozen=True, kw_only=True):
    """Differences, in the order of their identifiers."""

    differences: list[Difference]
    young: int
    """How many more there are that changed just now."""
    after: str | None
    """Where to go on; None at the end."""


class Repaired(Struct, frozen=True, kw_only=True):
    """What became of some differences."""

    repaired: int = 0
    young: int = 0
    wait: float = 0.0
    """Seconds until the directory has tokens again; then the same ones are repaired again."""


class Asked(Struct, frozen=True, kw_only=True):
    """What the directory says of some differences."""

    count: int
    """Of ours: how many it does not have. Of its own: how many are rows of ours that changed."""
    done: int
    """How many were asked for."""
    wait: float = 0.0
    """Seconds until the directory has tokens again."""


class Found(Struct, frozen=True, kw_only=True):
    """All differences of one round."""

    repaired: int = 0
    young: int = 0
    left: int = 0
    """Neither repaired nor young."""
    sample: list[Difference] = []
    is_braked: bool = False
    """Nothing was repaired: it would end too many rows of ours."""


class Change(Struct, frozen=True, kw_only=True):
    """A repair of one of our rows: a row of `dict_reconciliation_changes`."""

    run_id: str
    key_type: str
    cid: str
    action: str
    """ADDED, RESTORED, CHANGED, DELETED or TRANSFERRED."""
    entry_id: str
    before: str
    """The status before; "" for a row that was not there."""
    at: datetime


class Report(Struct, frozen=True, kw_only=True):
    """How it ended for one type of keys: a row of `dict_reconciliations`."""

    run_id: str
    key_type: str
    outcome: str
    """AGREES, BUSY, DIFFERS or FAILED."""
    entries: int = 0
    verifier: str = ""
    rounds: int = 0
    repaired: int = 0
    """How many rows of ours were changed."""
    young: int = 0
    left_over: int = 0
    detail: str = ""
    ended_at: datetime
