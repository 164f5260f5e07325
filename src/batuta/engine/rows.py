"""What stands in a run's row beside its journal."""

from __future__ import annotations

from typing import Any

from batuta.authoring.starting import LARGEST_MEMO
from batuta.clock import SECOND
from batuta.errors import TooLarge
from batuta.serde import encode


def small(value: Any, what: str) -> str:
    """JSON of tags or a memo. Raises InvalidInput when it has none, or is too large."""
    try:
        return encode(value, what, LARGEST_MEMO).decode()
    except TooLarge as error:
        advice = "it is read with every list of runs; give what is large as an argument"
        raise TooLarge(what, error.size, error.limit, advice) from None


def expiry(seconds: float | None, delay: int) -> int:
    """Microseconds from its creation until a run expires that waits for so many seconds at most, once it may begin."""
    return 0 if seconds is None else delay + max(1, round(seconds * SECOND))
