"""The errors of activities: what is worth another attempt, and what is not."""

from __future__ import annotations

from batuta import NonRetryable, RetryLater


class BridgeUnavailable(Exception):
    """The Bridge or the directory behind it is away, or took too long. Worth another attempt."""


class CircuitOpen(BridgeUnavailable):
    """The Bridge made no call: its breaker is open. Worth another attempt once it lets calls in."""


class BridgeError(Exception):
    """The Bridge failed in a way that says nothing else. Worth another attempt."""


class RateLimited(RetryLater):
    """A bucket of the directory is empty: worth another attempt when it has tokens again."""


class DatabaseTimeout(Exception):
    """The database is away, or took too long. Worth another attempt."""


class BusUnavailable(Exception):
    """The bus took no message. Worth another attempt."""


class InvalidArgument(NonRetryable):
    """What was sent cannot be accepted."""


class Refused(InvalidArgument):
    """The directory refused it as things are: the message begins with the name of its problem."""


class NotFound(NonRetryable):
    """What was asked for does not exist."""


class ConstraintViolation(NonRetryable):
    """The database refused a row."""


class InvalidPayload(NonRetryable):
    """The bus refused a message."""


PASSING = (
    BridgeError,
    BridgeUnavailable,
    ConstraintViolation,
    DatabaseTimeout,
    InvalidArgument,
    NotFound,
    RateLimited,
)
"""Errors that end one run of a schedule. The next slot begins another run, so they are no dead letters."""
