"""Operators' actions, and the audit log of them."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

from msgspec import Struct, json

from batuta.errors import AuditKeyMissing


class Verb(StrEnum):
    """The operations that the audit log records."""

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
    SET_MARK = "set mark"
    CLEAR_MARK = "clear mark"
    ROTATE_KEYS = "rotate keys"
    REVEAL = "reveal"
    CREATE_API_KEY = "create api key"
    REVOKE_API_KEY = "revoke api key"
    DELETE_IDEMPOTENCY_KEY = "delete idempotency key"
    FORCE_BREAKER = "force breaker"
    CHANGE_LIMIT = "change limit"
    FORGET_PARTNER = "forget partner"
    CREATE_FLOW = "create flow"
    CHANGE_FLOW = "change flow"
    PUBLISH_FLOW = "publish flow"
    ACTIVATE_FLOW = "activate flow"
    DEACTIVATE_FLOW = "deactivate flow"
    SET_SECRET = "set secret"  # noqa: S105 - a verb
    DELETE_SECRET = "delete secret"  # noqa: S105 - a verb
    CREATE_WEBHOOK = "create webhook"
    CHANGE_WEBHOOK = "change webhook"
    ROTATE_WEBHOOK = "rotate webhook secret"
    DELETE_WEBHOOK = "delete webhook"
    DROP_SUBSCRIPTION = "drop subscription"
    PAGE_ACTION = "page action"


class Act(Struct, kw_only=True, gc=False):
    """An operator action: who, what, why. A store method records it together with its change, or not at all."""

    actor: str
    verb: Verb
    reason: str = ""
    detail: str = "null"
    """JSON of the request, where the effect does not show it."""
    before: str = "null"
    after: str = "null"
    """JSON. For actions on runs the store fills them in: `{"state": ...}` before and after."""
    salt: str = ""
    """Names the key that its rows are hashed with; empty: none."""
    secret: bytes = b""
    """That key: 32 bytes, good for this act alone. The database sees it, and keeps it nowhere."""

    def __repr__(self) -> str:
        return f"<{self.verb} by {self.actor}>"


class Recorded(Struct, kw_only=True, gc=False):
    """A row of the audit log: one action on one run, queue, schedule or dead letter."""

    number: int
    """From 1 without gaps, in each namespace."""
    at: int
    actor: str
    verb: str
    target: str
    """The id of the run, or the name of the queue or schedule."""
    run_id: str = ""
    """For an act on a run."""
    reason: str = ""
    detail: str = "null"
    before: str = "null"
    after: str = "null"
    hash: str = ""
    """Of this row and the hash before: no row can be changed, left out or put in without all later ones changing."""
    salt: str = ""
    """Identifies the key of the hash; empty if it has none, and anybody can compute it."""


def chained(namespace: str, previous: str, row: Recorded, secret: bytes = b"") -> str:
    """The hash of a row that follows the one whose hash is `previous` ("" for the first).

    SHA-256, or HMAC-SHA256 for an action with a key, as hex, of the compact JSON array of these texts, with minimal
    escaping.
    """
    said = [previous, namespace, str(row.number), str(row.at), row.actor, row.verb, row.target, row.run_id]
    said += [row.reason, row.detail, row.before, row.after]
    text = json.encode(said)
    return hmac.digest(secret, text, "sha256").hex() if secret else hashlib.sha256(text).hexdigest()


class Changed(Struct, kw_only=True, gc=False):
    """One thing that an act was done to."""

    target: str
    run_id: str = ""
    before: str | None = None
    after: str | None = None
    """None: use the action's own."""


class ActFilter(Struct, kw_only=True, frozen=True):
    """Which rows of the audit log. None does not restrict."""

    target: str | None = None
    actor: str | None = None
    verb: str | None = None
    since: int | None = None
    until: int | None = None


def state_json(state: str) -> str:
    """The state of a run before and after an action, as the audit log shows it."""
    return f'{{"state":"{state}"}}'


def record(
    namespace: str,
    last: tuple[int, str, str],
    at: int,
    act: Act,
    changed: Iterable[Changed],
    is_taken: Callable[[int], bool] | None = None,
) -> list[Recorded]:
    """The rows that follow the one with this number, hash and salt. A number that is taken was put in by hand: it is
    passed over, for `first_break` to find. Raises AuditKeyMissing."""
    rows: list[Recorded] = []
    number, previous, salt = last
    for each in changed:
        if salt and not act.salt:
            raise AuditKeyMissing(namespace)
        number += 1
        while is_taken is not None and is_taken(number):
            number += 1
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
            salt=act.salt,
        )
        row.hash = previous = chained(namespace, previous, row, act.secret)
        rows.append(row)
    return rows


SecretOf = Callable[[Recorded], bytes | None]


def keyless(row: Recorded) -> bytes | None:
    """For a log without keys."""
    return None if row.salt else b""


def first_break(
    namespace: str, last: tuple[int, str], rows: Sequence[Recorded], secret_of: SecretOf = keyless, salt: str = ""
) -> str | None:
    """The first problem of rows that should follow the one with this number, hash and salt; None if there is none.

    `secret_of`: the key of a row, b"" when it has none, None when this process does not have it.
    """
    first, previous = last
    for number, row in enumerate(rows, first + 1):
        secret = secret_of(row)
        if row.number != number:
            return f"row {number} is missing"
        if salt and not row.salt:
            return f"row {number} has no key, but the row before it has one"
        if secret is None:
            name = row.salt.rpartition(".")[0]
            return f"row {number} cannot be checked without key {name!r}: set BATUTA_AUDIT_KEY, or BATUTA_KEYS"
        if not hmac.compare_digest(row.hash.encode(), chained(namespace, previous, row, secret).encode()):
            return f"row {number} differs from what was written"
        previous, salt = row.hash, row.salt
    return None
