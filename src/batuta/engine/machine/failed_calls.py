"""Errors that workflow code meets, and where each comes from: a call, a child, or the code itself."""

from __future__ import annotations

from contextlib import suppress
from enum import Enum
from typing import Any

from msgspec import Struct

from batuta.authoring.call_options import ActivityOptions
from batuta.authoring.failures.conversion import to_exception
from batuta.errors import ActivityFailed
from batuta.journal.entries import Body
from batuta.journal.failures import Failure
from batuta.journal.records import LetterReason

_MARK = "__batuta_call__"
_CHILD = "__batuta_child__"


class FailedCall(Struct, frozen=True):
    """An activity that failed for good, and what of the journal came before."""

    seq: int
    name: str
    attempts: int
    entry: int
    """The entry of its failure."""
    failure: Failure
    reason: LetterReason


class Origin(Enum):
    """Where an error that a run failed with comes from. Of a group, each member has its own."""

    MEANT = "meant"
    """The workflow declares it: `Failed`, or a class in `fails`."""
    CALL = "call"
    """An activity failed for good."""
    CHILD = "child"
    """A child did not complete."""
    CODE = "code"
    """None of these: taken for a bug in the workflow's code."""


def origins(error: BaseException, meant: tuple[type[BaseException], ...]) -> set[Origin]:
    """Where the error comes from. `meant`: the classes that the workflow declares."""
    with suppress(Exception):  # a metaclass of the user's own is asked
        if isinstance(error, meant):
            return {Origin.MEANT}
    marks = _marks(error)
    if _MARK in marks:
        return {Origin.CALL}
    if _CHILD in marks:
        return {Origin.CHILD}
    if isinstance(error, BaseExceptionGroup):
        return {origin for member in error.exceptions for origin in origins(member, meant)}
    return {Origin.CODE}


def _marks(error: BaseException) -> dict[str, Any]:
    """Its own attributes, with our marks. Not by `getattr`: its class may have a `__getattr__` that raises."""
    found: dict[str, Any] = BaseException.__getattribute__(error, "__dict__")
    return found


def error_of(
    body: Body, failure: Failure, options: ActivityOptions, entry: int, *, as_recorded: bool = False
) -> Exception:
    """The error that the code is to meet, which remembers the call that it comes from. `as_recorded`: no code meets
    it, so its class need not be here. Raises ErrorNotLoaded."""
    error = ActivityFailed(failure.message, failure.type) if as_recorded else to_exception(failure, strict=True)
    call = FailedCall(body.seq, body.name, body.attempts, entry, failure, _reason(failure, options))
    BaseException.__setattr__(error, _MARK, call)  # whatever its class thinks of attributes
    return error


def child_error(failure: Failure) -> Exception:
    """The same of a child that did not complete."""
    error = to_exception(failure, strict=True)
    BaseException.__setattr__(error, _CHILD, True)
    return error


def same_origin(error: Exception, before: BaseException) -> Exception:
    """The error, as if it came from the call that `before` comes from."""
    error.__dict__.update({name: value for name, value in _marks(before).items() if name in (_MARK, _CHILD)})
    return error


def failed_call(error: BaseException) -> FailedCall | None:
    """The call that the error comes from, unless it is the code's own. Of a group: the member that failed first."""
    found: FailedCall | None = _marks(error).get(_MARK)
    if found is not None or not isinstance(error, BaseExceptionGroup):
        return found
    members = [call for call in map(failed_call, error.exceptions) if call is not None]
    return min(members, key=lambda call: call.entry, default=None)


def _reason(failure: Failure, options: ActivityOptions) -> LetterReason:
    if failure.kind == "Interrupted":
        return LetterReason.INTERRUPTED
    if failure.kind == "ActivityTimeout":
        return LetterReason.TIMED_OUT
    if options.retry.refuses(failure):
        return LetterReason.REFUSED
    return LetterReason.EXHAUSTED
