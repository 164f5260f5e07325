"""A circuit breaker of one process, for one backend."""

from __future__ import annotations

from batuta.clock import Clock


class LocalBreaker:
    """Opens after so many failures in a row. When its time is over it lets one operation through, which decides."""

    def __init__(self, failures: int, retry_after: float, clock: Clock) -> None:
        self._most, self._retry_after, self._clock = failures, retry_after, clock
        self._failures = 0
        self._open_until: float | None = None
        self._trying = False

    @property
    def closed(self) -> bool:
        return self._open_until is None

    def allows(self) -> bool:
        """Whether an operation may begin. Each that may says later how it went: failed, succeeded or forget."""
        if self._open_until is None:
            return True
        if self._trying or self._clock.monotonic() < self._open_until:
            return False
        self._trying = True
        return True

    def failed(self) -> bool:
        """True if this failure opens it."""
        self._trying = False
        self._failures += 1
        was_closed = self._open_until is None
        if self._failures >= self._most or not was_closed:
            self._open_until = self._clock.monotonic() + self._retry_after
        return was_closed and self._open_until is not None

    def succeeded(self) -> bool:
        """True if this success closes it."""
        was_open = self._open_until is not None
        self._failures, self._open_until, self._trying = 0, None, False
        return was_open

    def forget(self) -> None:
        """The operation was cancelled: it says nothing."""
        self._trying = False
