"""When and whether to try again. A policy is data: it can be stored, compared and sent to another system."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf, isfinite
from typing import TYPE_CHECKING

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import force_setattr

from batuta.authoring.failures.error_details import class_name, look_up
from batuta.durations import Duration, fields_in_seconds, in_seconds
from batuta.errors import LONGEST_WAIT, InvalidInput
from batuta.journal.failures import Failure, is_named
from batuta.names import quoted

if TYPE_CHECKING:
    ErrorNames = Sequence[str | type[BaseException]]
else:
    ErrorNames = Sequence[str]  # as a policy is stored: classes become names when it is made
"""Errors, by class or by name."""

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*(\.([^\W\d]\w*|<locals>))*)?")
_MOST_WAITS = 100
_BOUNDS = {
    "attempts": (0, inf, "a whole number, not negative; 0 tries for ever"),
    "first": (0, inf, "a number of seconds or a timedelta, not negative"),
    "factor": (1, inf, "a number, at least 1"),
    "longest": (0, LONGEST_WAIT, "a number of seconds or a timedelta, not negative and at most 10 billion seconds"),
    "jitter": (0, 1, "a number from 0 to 1"),
}


class Retry(Struct, frozen=True):
    """How often an activity is tried, and how long to wait in between.

    The wait before attempt n + 1 is `first * factor ** (n - 1)` seconds, `longest` at most, or the n-th of `waits` if
    there are any (the last one for all that follow); made longer or shorter by up to `jitter` of itself. Times are
    seconds or timedeltas. `attempts` counts failures that were seen: a crash can execute an attempt again.
    """

    attempts: int = 3
    """How many tries in all; 0 tries for ever."""
    first: float = 1.0
    factor: float = 2.0
    longest: float = 30.0
    jitter: float = 0.1
    never: ErrorNames = ()
    """Errors that stop the retries: classes, or their names with or without the module. Subclasses match, too."""
    waits: tuple[float, ...] | UnsetType = UNSET  # journals of before have policies without this field
    """Instead of `first`, `factor` and `longest`."""

    if TYPE_CHECKING:

        def __init__(
            self,
            attempts: int = 3,
            first: Duration = 1.0,
            factor: float = 2.0,
            longest: Duration = 30.0,
            jitter: float = 0.1,
            never: ErrorNames = (),
            waits: Sequence[Duration] | UnsetType = UNSET,
        ) -> None: ...

    def __post_init__(self) -> None:
        if self.never != ():
            force_setattr(self, "never", error_names(self.never, "Retry(never=...)"))
        if self.waits is not UNSET:
            force_setattr(self, "waits", _waits(self.waits))
        fields_in_seconds(self, "first", "longest")
        for name, (least, most, words) in _BOUNDS.items():
            value = getattr(self, name)
            kind = int if name == "attempts" else int | float
            if (
                isinstance(value, bool)
                or not isinstance(value, kind)
                or not isfinite(value)
                or not least <= value <= most
            ):
                raise InvalidInput(f"Retry({name}={value!r}) must be {words}")

    def delay(self, failures: int, chance: float) -> float | None:
        """Seconds to wait after that many failures; None when that was the last. `chance` is in [0, 1)."""
        if self.attempts and failures >= self.attempts:
            return None
        if self.waits is not UNSET:
            return self.waits[min(failures, len(self.waits)) - 1] * (1 + self.jitter * (2 * chance - 1))
        try:
            wait = min(self.first * float(self.factor) ** (failures - 1), self.longest)
        except OverflowError:
            wait = self.longest
        return wait * (1 + self.jitter * (2 * chance - 1))

    def delay_after(self, failure: Failure, failures: int, chance: float) -> float | None:
        """The same after this failure, which may stop the retries, or set the delay itself."""
        wait = None if self.refuses(failure) else self.delay(failures, chance)
        return wait if wait is None or failure.retry_after is None else failure.retry_after

    def refuses(self, failure: Failure) -> bool:
        """Whether no other attempt is made after this failure, however many there were."""
        return not failure.retryable or any(failure.matches(str(name)) for name in self.never)


def _waits(given: object) -> tuple[float, ...]:
    """Raises InvalidInput."""
    found = tuple(map(in_seconds, given)) if isinstance(given, list | tuple) else ()
    if not 0 < len(found) <= _MOST_WAITS or not all(
        isinstance(one, int | float) and not isinstance(one, bool) and 0 <= one <= LONGEST_WAIT for one in found
    ):
        raise InvalidInput(
            f"Retry(waits={quoted(given)}) must be a list of up to {_MOST_WAITS} numbers of seconds or timedeltas, "
            f"none negative or over 10 billion seconds"
        )
    return found


def error_names(errors: object, what: str) -> tuple[str, ...]:
    """Errors that were given by class or by name, as names. Raises InvalidInput for what names no error."""
    if not isinstance(errors, list | tuple | set | frozenset):
        raise InvalidInput(f"{what} must be a list of exception classes or their names, not {errors!r}")
    names = [name for one in errors for name in _error_names(one, what)]
    return tuple(dict.fromkeys(sorted(names) if isinstance(errors, set | frozenset) else names))


def _error_names(error: object, what: str) -> list[str]:
    if isinstance(error, type) and issubclass(error, BaseException):
        return [class_name(error)]
    if isinstance(error, str) and _NAME.fullmatch(error):
        return [error, *_names_behind(error)]
    if isinstance(error, BaseException):
        raise InvalidInput(f"{what} got {error!r}, which is an instance: give its class, {type(error).__name__}")
    raise InvalidInput(
        f"{what} got {error!r}, which no error can match: give exception classes, or names such as 'Declined' or "
        f"'shop.errors.Declined'"
    )


def _names_behind(alias: str) -> list[str]:
    """The class's own name, if this is an alias such as `IOError` or `asyncio.TimeoutError`."""
    parts = alias.split(".")
    places = [alias] if ":" in alias or len(parts) == 1 else _places(parts)
    classes = [found for place in places if isinstance(found := look_up(place), type)]
    names = [class_name(one) for one in classes if issubclass(one, BaseException)]
    return [name for name in names if not is_named(name, alias)]


def _places(parts: list[str]) -> list[str]:
    return [f"{'.'.join(parts[:at])}:{'.'.join(parts[at:])}" for at in range(1, len(parts))]
