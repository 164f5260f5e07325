"""Values in a run's row beside its journal."""

from __future__ import annotations

from typing import Any

from batuta.authoring.client.start import LARGEST_MEMO
from batuta.clock import SECOND
from batuta.errors import PayloadDamaged, TooLarge
from batuta.serde import decode_stored, encode


def small(value: Any, what: str) -> str:
    """JSON of tags or a memo. Raises InvalidInput when it has none, or is too large."""
    try:
        return encode(value, what, LARGEST_MEMO).decode()
    except TooLarge as error:
        advice = "every list of runs reads it; pass large values as arguments"
        raise TooLarge(what, error.size, error.limit, advice) from None


def read_tags(text: str) -> dict[str, str]:
    """For a list or a description, which shows the other rows and values whatever lies in this one."""
    try:
        found: dict[str, str] = decode_stored(text, "tags", dict[str, str])
    except PayloadDamaged as error:
        return {"damaged": str(error)}
    return found


def read_memo(text: str) -> Any:
    """The same for a memo."""
    try:
        return decode_stored(text, "the memo")
    except PayloadDamaged as error:
        return str(error)


def expiry(seconds: float | None, delay: int) -> int:
    """Microseconds from its creation until a run expires that waits for so many seconds at most, once it may begin."""
    return 0 if seconds is None else delay + max(1, round(seconds * SECOND))
