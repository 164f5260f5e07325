"""Exceptions to values for the journal, and back to the same exceptions."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from types import CodeType, TracebackType
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from batuta.authoring.failures.error_details import NotLoaded, class_name, fields_apart, look_up, opened, told
from batuta.errors import (
    LONGEST_WAIT,
    LONGEST_WORDS,
    ActivityFailed,
    ErrorNotLoaded,
    NonRetryable,
    RetryLater,
    TooLarge,
    cut,
    words_of,
)
from batuta.journal.failures import Failure

log = logging.getLogger("batuta.engine")

_DEEPEST_CAUSE = 5
_MOST_MEMBERS = 100
"""Errors that are kept of a group, those in groups inside it included."""
_LONGEST_TRACEBACK = 4_000
_DEEPEST_TRACEBACK = 30
_REPEATED = 3
"""Frames that are the same: Python may count them instead of repeating them."""
_MOST_FRAMES = 1_000
_frames: dict[tuple[str, CodeType, int], str] = {}
"""Frames of tracebacks as text: the same place fails again and again, and its source need not be read each time."""
_MOST_NOTES = 20
_LONGEST_SAID = 1_000
"""Characters of the message in a traceback: there must be room for the frames."""
_LARGEST_DETAILS = 64 * 1024
_LARGEST = 256 * 1024
"""Characters of messages, details and tracebacks of one failure, with all of its causes and members."""
_SHORTEST = 200
_ROOTS = (Exception, BaseException, object)
STAND_IN = "batuta.errors:ActivityFailed"
"""Stands in for an error that cannot be raised as itself."""


def to_failure(error: BaseException) -> Failure:
    """The stored form of an exception: class, message, arguments and attributes that have a JSON form, its cause,
    and the members of a group."""
    return _to_failure(error, 0, _Room())


def answerable(error: BaseException) -> BaseException:
    """The error itself. ActivityFailed in its place if its class refuses to be looked at: `isinstance` would raise."""
    try:
        isinstance(error, _Room)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - a `__class__` or `__getattribute__` of the user's own
        return ActivityFailed(_text(error), class_name(type(error)))
    return error


class _Room:
    """How much more may be kept: a group of thousands, or of long messages, would be an entry of megabytes."""

    def __init__(self) -> None:
        self.left = _MOST_MEMBERS
        self._size = _LARGEST

    def share(self, most: int) -> int:
        """Characters that one text may have: there is always room for the beginning."""
        return max(_SHORTEST, min(most, self._size))

    def take(self, text: str | Raw | msgspec.UnsetType) -> None:
        self._size -= 0 if text is UNSET else len(bytes(text) if isinstance(text, Raw) else text)


def _to_failure(error: BaseException, depth: int, room: _Room) -> Failure:
    """Never fails: if the error's own code raises when its attributes are read, only class and message are kept."""
    try:
        return _with_details(error, depth, room)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - `__getattribute__`, a property or a metaclass of the user's own
        kind = type(error)
        return Failure(
            type=class_name(kind),
            message=_text(error, room.share(LONGEST_WORDS)),
            retryable=NonRetryable not in kind.__mro__,
            bases=_bases(kind),
        )


def _with_details(error: BaseException, depth: int, room: _Room) -> Failure:
    cause = error.__cause__
    message = _text(error, room.share(LONGEST_WORDS))
    room.take(message)
    details = _details(error, room.share(_LARGEST_DETAILS))
    room.take(details)
    trace = _traceback(error, room.share(_LONGEST_TRACEBACK))
    room.take(trace)
    members = _members(error, depth, room) if isinstance(error, BaseExceptionGroup) else []
    return Failure(
        type=class_name(type(error)),
        message=message,
        details=details,
        retryable=not isinstance(error, NonRetryable) and all(member.retryable for member in members),
        traceback=trace,
        cause=_to_failure(cause, depth + 1, room) if cause is not None and depth < _DEEPEST_CAUSE else None,
        members=members,
        bases=_bases(type(error)),
        notes=_notes(error, room),
        retry_after=_retry_after(error, members),
    )


def _notes(error: BaseException, room: _Room) -> list[str]:
    notes = BaseException.__getattribute__(error, "__dict__").get("__notes__", [])  # whatever its class answers
    found = [_clean(cut(str(note), room.share(_LONGEST_SAID))) for note in notes[:_MOST_NOTES]]
    for note in found:
        room.take(note)
    return found


def _bases(kind: type[BaseException]) -> list[str]:
    return [class_name(one) for one in kind.__mro__[1:] if one not in _ROOTS]


def _retry_after(error: BaseException, members: Sequence[Failure]) -> float | None:
    """Of a group, the longest that a member asks for."""
    if isinstance(error, RetryLater):
        asked: object = error.seconds  # which a class that derives from it may have set to anything
        return asked if isinstance(asked, int | float) and 0 <= asked <= LONGEST_WAIT else None
    return max((one.retry_after for one in members if one.retry_after is not None), default=None)


def _members(group: BaseExceptionGroup[Any], depth: int, room: _Room) -> list[Failure]:
    kept: list[Failure] = []
    for error in group.exceptions:
        if room.left <= 0 or depth >= _DEEPEST_CAUSE:
            left_out = ActivityFailed(f"{len(group.exceptions) - len(kept)} more errors of the group were left out")
            return [*kept, _to_failure(left_out, depth, room)]
        room.left -= 1
        kept.append(_to_failure(error, depth + 1, room))
    return kept


def to_exception(failure: Failure, *, strict: bool = False) -> Exception:
    """Restore the error, as the class that was decided when it was recorded.

    If that class is not loaded, or cannot be built, it becomes ActivityFailed with the original's message; with
    `strict` ErrorNotLoaded is raised. Without a decision, as in an old journal, its own class is used if it is loaded.
    A group becomes a group again, and its members are restored in the same way.
    """
    known = failure.raised_as
    if known == STAND_IN != failure.type:
        error = _stand_in(failure)
    else:
        rebuilt = _rebuild(failure, known or failure.type, strict=strict and bool(known))
        error = _stand_in(failure) if rebuilt is None else rebuilt
    if failure.cause is not None:
        error.__cause__ = to_exception(failure.cause, strict=strict)
    for note in failure.notes:
        error.add_note(note)
    return error


def can_be(failure: Failure, name: str) -> bool:
    """Whether it can be raised here as the class of that name."""
    return _rebuild(failure, name, strict=False) is not None


def _stand_in(failure: Failure) -> Exception:
    if failure.members:
        return ExceptionGroup(_words_of_group(failure), [to_exception(member) for member in failure.members])
    details = None if failure.details is UNSET else opened(failure.details, strict=False)
    return ActivityFailed(failure.message, failure.type, details.args if details else None)


def _words_of_group(failure: Failure) -> str:
    details = None if failure.details is UNSET else opened(failure.details, strict=False)
    return str(details.args[0]) if details and details.args else failure.message


def _rebuild(failure: Failure, name: str, *, strict: bool) -> Exception | None:
    """An error of that class; None when it can't be made. With `strict`, ErrorNotLoaded says why."""
    found = find_error(name)
    try:
        rebuilt = None if found is None else _made(failure, found, strict=strict)
        if rebuilt is not None:
            return rebuilt
    except NotLoaded as missing:
        raise ErrorNotLoaded(missing.name, name) from None
    except ErrorNotLoaded:  # of a member
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a class that cannot be made without its own __init__
        log.debug("cannot rebuild %s: %r", name, error)
    if strict:
        raise ErrorNotLoaded(name, loaded=found is not None)
    return None


def _made(failure: Failure, found: type[Exception], *, strict: bool) -> Exception | None:
    details = None if failure.details is UNSET else opened(failure.details, strict=strict)
    rebuilt: Exception
    if failure.members:
        if not issubclass(found, ExceptionGroup):
            return None
        members = [to_exception(member, strict=strict) for member in failure.members]
        rebuilt = found.__new__(found, _words_of_group(failure), members)
        rebuilt.__dict__.update(details.attributes() if details else {})
        return rebuilt
    # Not called: an __init__ with other parameters than `args` would refuse or wrap the message twice.
    rebuilt = found.__new__(found, *(details.args if details else [failure.message]))
    rebuilt.__dict__.update(details.attributes() if details else {})
    if not str(rebuilt) and details:  # an OSError with its own __init__ leaves its arguments to that
        rebuilt.args = tuple(details.args)
    return rebuilt if str(rebuilt) or not failure.message else None  # some are empty without their __init__


def _details(error: BaseException, most: int) -> Raw | msgspec.UnsetType:
    text = [_text(error)]
    known = fields_apart({k: v for k, v in vars(error).items() if not k.startswith("__")}, most)
    for args, fields in ((_args(error), known), (text, known), (text, ({}, {}))):
        try:
            return told(args, fields, most)
        except TooLarge:
            return UNSET
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001, S112 - a value may have no JSON form, and its class may raise anything
            continue
    return UNSET


def _text(error: BaseException, most: int = LONGEST_WORDS) -> str:
    """Its message. This must not fail, whatever it contains."""
    return _clean(words_of(error, most))


def _clean(text: str) -> str:
    """Lone surrogates, as from undecodable bytes, have no place in JSON."""
    return text.encode("utf-8", "backslashreplace").decode()


def _traceback(error: BaseException, most: int) -> str:
    said = _text(error, _LONGEST_SAID)
    try:
        lines = _traceback_lines(error) if len(said) <= _LONGEST_SAID else []
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - Python asks its class for attributes, such as notes, which may refuse
        lines = []
    if not lines:
        frames = traceback.extract_tb(error.__traceback__, limit=-_DEEPEST_TRACEBACK).format()
        lines = ["Traceback (most recent call last):\n", *frames, f"{class_name(type(error))}: {said}\n"]
    text = "".join(lines)
    left = len(text) - most
    return _clean(text if left <= 0 else f"({left:,} characters before this were cut)\n{text[left:]}")


def _traceback_lines(error: BaseException) -> list[str]:
    """As `traceback.format_exception` gives them."""
    frames: list[str] = []
    place = error.__traceback__
    while place is not None and len(frames) < _DEEPEST_TRACEBACK:
        frames.append(_frame(place))
        place = place.tb_next
    recurs = place is not None or len(frames) - len(set(frames)) >= _REPEATED
    if recurs or not frames or isinstance(error, BaseExceptionGroup):
        return traceback.format_exception(error, chain=False)
    said = traceback.TracebackException(type(error), error, error.__traceback__, limit=0, compact=True)
    return ["Traceback (most recent call last):\n", *frames, *said.format_exception_only()]


def _frame(place: TracebackType) -> str:
    code = place.tb_frame.f_code
    key = (code.co_filename, code, place.tb_lasti)
    text = _frames.get(key)
    if text is None:
        if len(_frames) >= _MOST_FRAMES:
            _frames.clear()
        text = _frames[key] = "".join(traceback.extract_tb(place, limit=1).format())
    return text


def _args(error: BaseException) -> list[Any]:
    if isinstance(error, OSError) and error.filename is not None:  # its `args` leave the file out
        return [error.errno, error.strerror, error.filename]
    if isinstance(error, BaseExceptionGroup):
        return [error.message]
    return list(error.args)


def find_error(name: str) -> type[Exception] | None:
    """The class, if its module is loaded."""
    found = look_up(name)
    if not isinstance(found, type) or not issubclass(found, Exception) or issubclass(found, StopIteration):
        return None  # a StopIteration could not be raised where somebody awaits it
    return found
