"""What operators do, and the record that is kept of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from enum import StrEnum

from msgspec import Struct, json


class Verb(StrEnum):
    """What was done."""

    CANCEL = "cancel"
    TERMINATE = "terminate"
    RETRY = "retry"
    PAUSE = "pause"
    RESUME = "resume"
    FORK = "fork"
    RESET = "reset"
    DELETE = "delete"
    REPROCESS = "reprocess"
    DISCARD = "discard"
    PAUSE_QUEUE = "pause queue"
    RESUME_QUEUE = "resume queue"
    LIMIT_QUEUE = "limit queue"
    PUT_SCHEDULE = "put schedule"
    PAUSE_SCHEDULE = "pause schedule"
    RESUME_SCHEDULE = "resume schedule"
    TRIGGER_SCHEDULE = "trigger schedule"
    BACKFILL_SCHEDULE = "backfill schedule"
    DELETE_SCHEDULE = "delete schedule"
    SET_RETENTION = "set retention"
    PRUNE = "prune"
    SET_QUOTA = "set quota"
    CLEAR_QUOTA = "clear quota"
    ROTATE_KEYS = "rotate keys"
    REVEAL = "reveal"


class Act(Struct, kw_only=True, gc=False):
    """Who does what, and why: given to a verb of the store, which records it with what it changes, or not at all."""

    actor: str
    verb: Verb
    reason: str = ""
    detail: str = "null"
    """JSON: what the verb was given, where its effect does not show that."""
    before: str = "null"
    after: str = "null"
    """JSON. Of acts on runs the store fills them in: `{"state": ...}` as it was and as it is."""


class Recorded(Struct, kw_only=True, gc=False):
    """A row of the audit log: what was done to one run, queue, schedule or dead letter."""

    number: int
    """From 1 without gaps, in each namespace."""
    at: int
    actor: str
    verb: str
    target: str
    """The id of the run, or the name of the queue or schedule."""
    run_id: str = ""
    """Of an act on a run."""
    reason: str = ""
    detail: str = "null"
    before: str = "null"
    after: str = "null"
    hash: str = ""
    """Of this row and the hash before: no row can be changed, left out or put in without all later ones changing."""


def chained(namespace: str, previous: str, row: Recorded) -> str:
    """The hash of a row that follows the one whose hash is `previous` ("" for the first).

    SHA-256, as hex, of the JSON array of these texts, without spaces and with no character escaped that need not be."""
    said = [previous, namespace, str(row.number), str(row.at), row.actor, row.verb, row.target, row.run_id]
    said += [row.reason, row.detail, row.before, row.after]
    return hashlib.sha256(json.encode(said)).hexdigest()


class Changed(Struct, kw_only=True, gc=False):
    """One thing that an act was done to."""

    target: str
    run_id: str = ""
    before: str | None = None
    after: str | None = None
    """None: what the act says."""


class ActFilter(Struct, kw_only=True, frozen=True):
    """Which rows of the audit log. None does not restrict."""

    target: str | None = None
    actor: str | None = None
    verb: str | None = None
    since: int | None = None
    until: int | None = None


def state_json(state: str) -> str:
    """What the audit log says of a run before and after an act."""
    return f'{{"state":"{state}"}}'


def record(namespace: str, last: tuple[int, str], at: int, act: Act, changed: Iterable[Changed]) -> list[Recorded]:
    """The rows that follow the one with this number and hash."""
    rows: list[Recorded] = []
    first, previous = last
    for number, each in enumerate(changed, first + 1):
        row = Recorded(
            number=number,
            at=at,
            actor=act.actor,
            verb=act.verb.value,
            target=each.target,
            run_id=each.run_id,
            reason=act.reason,
            detail=act.detail,
            before=act.before if each.before is None else each.before,
            after=act.after if each.after is None else each.after,
        )
        row.hash = previous = chained(namespace, previous, row)
        rows.append(row)
    return rows


def first_break(namespace: str, last: tuple[int, str], rows: Sequence[Recorded]) -> str | None:
    """What is wrong with rows that should follow the one with this number and hash; None when nothing is."""
    first, previous = last
    for number, row in enumerate(rows, first + 1):
        if row.number != number:
            return f"row {number} is missing"
        if row.hash != chained(namespace, previous, row):
            return f"row {number} is not as it was written"
        previous = row.hash
    return None
