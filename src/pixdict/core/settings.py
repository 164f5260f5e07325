"""What core is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from pixdict.caches.limits import LIMITS
from pixdict.dict.headers import ISPB
from pixdict.errors import InvalidArgument


class CoreSettings(Struct, frozen=True, kw_only=True):
    """One core speaks for one participant. Times are seconds."""

    participant: str
    """The ISPB."""
    wait: float = 25.0
    """For so long a request waits for its outcome. Then it gets 202, and the work goes on."""
    poll: float = 0.25
    """Between two looks at the rows of requests that wait: an outcome may have come to another process."""
    limits: Mapping[str, Sequence[str]] = field(default_factory=lambda: LIMITS)
    """Without an operation, it has no limit."""
    keep: float = 24 * 3600.0
    """For so long the answer to an idempotency key is kept."""
    lock: float = 30.0
    """For so long after its process died a request with a key is in progress."""

    def __post_init__(self) -> None:
        if not ISPB.fullmatch(self.participant):
            raise InvalidArgument(f"participant {self.participant!r} is not an ISPB: eight letters or digits")
        if self.wait < 0 or min(self.poll, self.keep, self.lock) <= 0:
            raise InvalidArgument("wait must not be negative; poll, keep and lock must be more than 0")
