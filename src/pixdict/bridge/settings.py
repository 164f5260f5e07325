"""What a Bridge is told."""

from __future__ import annotations

from collections.abc import Mapping

from cryptography.x509 import Certificate
from msgspec import Struct

from pixdict.dict.buckets import Refill
from pixdict.dict.headers import ISPB
from pixdict.dict.signatures import Signer
from pixdict.dict.tls import Tls
from pixdict.errors import InvalidArgument

_MOST_BRIDGES = 5


class Thresholds(Struct, frozen=True):
    """Remaining per cent at or below which a policy is WARNING, and CRITICAL."""

    warning: float = 25.0
    critical: float = 10.0

    def __post_init__(self) -> None:
        if not self.critical <= self.warning <= 100:
            raise InvalidArgument(
                f"thresholds: critical={self.critical:g} must be at most warning={self.warning:g}, and that at most 100"
            )


class BridgeSettings(Struct, frozen=True, kw_only=True):
    """One Bridge speaks for one participant. Times are seconds."""

    directory: str
    """Where the directory is, such as `http://127.0.0.1:8290`."""
    participant: str
    """The ISPB."""
    attempts: int = 3
    first_wait: float = 1.0
    """Before the second attempt; each later one is twice as long."""
    timeout: float = 5.0
    """Of one attempt."""
    call_timeout: float = 20.0
    """Of a call that comes without a deadline."""
    connections: int = 16
    """To the directory, kept open. The pool looks at each of them for every request: many make it slow."""
    keep_answers: float = 24 * 3600.0
    lock: float = 5.0
    """Seconds after the death of a Bridge until another one carries out what it had begun."""
    failures: int = 5
    """In a row, that open the breaker `bacen`."""
    open_for: float = 60.0
    bridges: int = 1
    """How many Bridges speak for the participant: each uses its share of every bucket."""
    refill: Refill = Refill.STEPPED
    """How the directory gives tokens back. Stepped is never too much."""
    thresholds: Thresholds = Thresholds()
    by_policy: Mapping[str, Thresholds] = {}
    """Other thresholds for some policies."""
    tls: Tls | None = None
    """The certificate that is shown to the directory, and which of its certificates are trusted."""
    signer: Signer | None = None
    """With it, writes are signed."""
    trusted: Certificate | None = None
    """The directory's. With it, every answer must carry its signature."""

    def __post_init__(self) -> None:
        if not ISPB.fullmatch(self.participant):
            raise InvalidArgument(f"participant {self.participant!r} is not an ISPB: eight letters or digits")
        if not self.directory.startswith(("http://", "https://")):
            raise InvalidArgument(f"directory {self.directory!r} must begin with http:// or https://")
        if self.tls is not None and not self.directory.startswith("https://"):
            raise InvalidArgument(
                f"directory {self.directory!r} must begin with https://: a certificate is shown there"
            )
        if not 1 <= self.bridges <= _MOST_BRIDGES:
            why = "a look-up may cost 20 of the 100 tokens of a payer"
            raise InvalidArgument(f"bridges={self.bridges}: 1 to {_MOST_BRIDGES} can share a participant, for {why}")
        if self.connections < 1:
            raise InvalidArgument(f"connections={self.connections}: without one nothing can be asked")
        if self.attempts < 1 or min(self.timeout, self.call_timeout, self.keep_answers, self.lock) <= 0:
            raise InvalidArgument("attempts, timeout, call_timeout, keep_answers and lock must be more than 0")
