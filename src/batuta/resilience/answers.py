"""Reads from an error whether the partner is away, and when to call it again."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any

from batuta.errors import ActivityTimeout, InvalidInput, ProcessDied, RetryLater

Errors = type[BaseException] | Collection[type[BaseException]]
"""As users give them."""
STATUSES = frozenset({500, 503})
"""HTTP statuses that count as failures of the partner."""
_NETWORK = frozenset(
    {
        "TransportError",  # httpx
        "TimeoutException",
        "ConnectError",
        "ClientConnectionError",  # aiohttp
        "ServerTimeoutError",
        "NetworkError",
    }
)
"""Classes of HTTP clients that do not derive from OSError, by name: none of them need be installed."""
_GRPC = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL"})


def error_classes(name: str, given: object) -> tuple[type[BaseException], ...]:
    """Classes of errors as users give them: one, or a list. Raises InvalidInput."""
    found = tuple(given) if isinstance(given, Collection) else (given,)
    if any(not isinstance(one, type) or not issubclass(one, BaseException) for one in found):
        raise InvalidInput(f"{name}={given!r} must be exception classes, such as [ConnectionError]")
    return found


def check_statuses(name: str, given: object) -> Collection[int]:
    """HTTP statuses as users give them. Raises InvalidInput."""
    if not isinstance(given, Collection) or not all(isinstance(one, int) and 100 <= one <= 599 for one in given):
        raise InvalidInput(f"{name}={given!r} must be a list of HTTP statuses, such as [500, 503]")
    return given


def status_of(error: BaseException) -> int | None:
    """The HTTP status that the partner answered with."""
    for holder in (getattr(error, "response", None), error):
        for name in ("status_code", "status", "code"):
            value = getattr(holder, name, None)
            if type(value) is int and 100 <= value <= 599:
                return value
    return None


def is_failure(error: BaseException, statuses: Collection[int] = STATUSES) -> bool | None:
    """Whether the partner is to blame. False: it answered, and refused; None: the error says nothing of it."""
    status = status_of(error)
    if status is not None:
        return status in statuses
    word = _grpc_code(error)
    if word:
        return word in _GRPC
    if isinstance(error, TimeoutError | ActivityTimeout | ConnectionError):
        return True
    if isinstance(error, OSError):
        return not isinstance(error, FileNotFoundError | PermissionError | FileExistsError | IsADirectoryError)
    if isinstance(error, ProcessDied):
        return None
    return True if any(kind.__name__ in _NETWORK for kind in type(error).__mro__) else None


def _grpc_code(error: BaseException) -> str:
    code = getattr(error, "code", None)
    try:
        name = getattr(code(), "name", "") if callable(code) else ""
    except Exception:  # noqa: BLE001 - not gRPC, whatever it is
        return ""
    return name if isinstance(name, str) else ""


def retry_after_of(error: BaseException, now: float) -> object:
    """The partner's word on when to call again, as it gave it: None, seconds, or a text. `now`: seconds since
    1970."""
    if isinstance(error, RetryLater):
        return error.seconds
    for holder in (getattr(error, "response", None), error):
        headers: Any = getattr(holder, "headers", None)
        for name in ("Retry-After", "retry-after"):
            try:
                value = headers.get(name) if headers is not None else None
            except Exception:  # noqa: BLE001 - headers of some other kind
                value = None
            if value is not None:
                return parse_retry_after(value, now) if isinstance(value, str) else value
    return getattr(error, "retry_after", None)


def parse_retry_after(text: str, now: float) -> float | None:
    """Seconds; the text is a number or an HTTP date. None when it is neither, or in the past."""
    try:
        seconds = float(text.strip())
    except ValueError:
        try:
            moment = parsedate_to_datetime(text)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        seconds = (moment - datetime.fromtimestamp(now, UTC)).total_seconds()
    return seconds if isfinite(seconds) and seconds > 0 else None


def pause_after(error: BaseException, now: float, longest: float) -> float | None:
    """Seconds without calls to the partner, as it asked; at most `longest`. None: it said nothing that
    can be used."""
    said = retry_after_of(error, now)
    if isinstance(said, bool) or not isinstance(said, int | float) or not isfinite(said) or said <= 0:
        return None
    return min(float(said), longest)
