"""When and whether to try again. A policy is data: it can be stored, compared and sent to another system."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from msgspec import Struct

from batuta.errors import InvalidInput

_FAR = 1e10


class Retry(Struct, frozen=True):
    """How often an activity is tried, and how long to wait in between.

    The wait before attempt n + 1 is `first * factor ** (n - 1)` seconds, `longest` at most, made longer or shorter by
    up to `jitter` of itself. `attempts` counts failures that were seen: a crash can execute an attempt again.
    """

    attempts: int = 3
    """How many tries in all; 0 tries for ever."""
    first: float = 1.0
    factor: float = 2.0
    longest: float = 30.0
    jitter: float = 0.1
    never: Sequence[str] = ()
    """Class names of errors after which no other attempt is made."""

    def __post_init__(self) -> None:
        if isinstance(self.never, str):
            raise InvalidInput(f"Retry(never={self.never!r}) must be a list of class names, not one string")
        numbers = (self.attempts, self.first, self.factor, self.longest, self.jitter)
        if not all(map(_is_number, numbers)) or (
            self.attempts < 0
            or self.first < 0
            or self.factor < 1
            or not 0 <= self.longest <= _FAR
            or not 0 <= self.jitter <= 1
        ):
            raise InvalidInput(
                f"{self!r} cannot be followed: attempts, first and longest must be numbers and not negative, longest "
                f"at most {_FAR:g}, factor at least 1, jitter between 0 and 1"
            )

    def delay(self, failures: int, chance: float) -> float | None:
        """Seconds to wait after that many failures; None when that was the last. `chance` is in [0, 1)."""
        if self.attempts and failures >= self.attempts:
            return None
        try:
            wait = min(self.first * float(self.factor) ** (failures - 1), self.longest)
        except OverflowError:
            wait = self.longest
        return wait * (1 + self.jitter * (2 * chance - 1))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and isfinite(value)
