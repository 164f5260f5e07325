"""Exceptions to values for the journal, and back to the same exceptions."""

from __future__ import annotations

import builtins
import logging
import sys
import traceback
from types import CodeType, TracebackType
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct

from batuta.errors import ActivityFailed, NonRetryable, NotSerialisable
from batuta.journal.failures import Failure
from batuta.serde import encode

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
_LARGEST_DETAILS = 64 * 1024


class _Details(Struct):
    args: list[Any]
    fields: dict[str, Any] = {}


def to_failure(error: BaseException, told: str | None = None) -> Failure:
    """What of an exception is kept: class, message, arguments and attributes that have a JSON form, its cause, and the
    members of a group. `told`: its traceback, where that is known."""
    return _to_failure(error, 0, _Room(_MOST_MEMBERS), told)


class _Room:
    """How many more members may be kept: a group of thousands would be an entry of megabytes."""

    def __init__(self, left: int) -> None:
        self.left = left


def _to_failure(error: BaseException, depth: int, room: _Room, told: str | None = None) -> Failure:
    cause = error.__cause__
    members = _members(error, depth, room) if isinstance(error, BaseExceptionGroup) else []
    return Failure(
        type=_type_name(type(error)),
        message=_text(error),
        details=_details(error),
        retryable=not isinstance(error, NonRetryable) and all(member.retryable for member in members),
        traceback=_traceback(error) if told is None else told,
        cause=_to_failure(cause, depth + 1, room) if cause is not None and depth < _DEEPEST_CAUSE else None,
        members=members,
    )


def _members(group: BaseExceptionGroup[Any], depth: int, room: _Room) -> list[Failure]:
    kept: list[Failure] = []
    for error in group.exceptions:
        if room.left <= 0 or depth >= _DEEPEST_CAUSE:
            left_out = ActivityFailed(f"{len(group.exceptions) - len(kept)} more errors of the group were left out")
            return [*kept, _to_failure(left_out, depth, room)]
        room.left -= 1
        kept.append(_to_failure(error, depth + 1, room))
    return kept


def to_exception(failure: Failure) -> Exception:
    """The same error again, when its class is loaded here; otherwise ActivityFailed with the original's words.

    A group is a group again, of its own class or else a plain ExceptionGroup; its members are made in the same way.
    """
    error = _rebuild_group(failure) if failure.members else _rebuild(failure)
    if failure.cause is not None:
        error.__cause__ = to_exception(failure.cause)
    return error


def _rebuild_group(failure: Failure) -> Exception:
    details = None if failure.details is UNSET else msgspec.json.decode(failure.details, type=_Details)
    message = str(details.args[0]) if details and details.args else failure.message
    members = [to_exception(member) for member in failure.members]
    found = _find_class(failure.type)
    if found is not None and issubclass(found, ExceptionGroup):
        try:
            rebuilt = found.__new__(found, message, members)
            rebuilt.__dict__.update(details.fields if details else {})
            return rebuilt
        except Exception as error:  # noqa: BLE001 - as in _rebuild
            log.debug("cannot rebuild %s: %r", failure.type, error)
    return ExceptionGroup(message, members)


def _rebuild(failure: Failure) -> Exception:
    details = None if failure.details is UNSET else msgspec.json.decode(failure.details, type=_Details)
    found = _find_class(failure.type)
    if found is not None:
        try:
            # Not called: an __init__ with other parameters than `args` would refuse or wrap the message twice.
            rebuilt: Exception = found.__new__(found, *(details.args if details else [failure.message]))
            rebuilt.__dict__.update(details.fields if details else {})
            if not str(rebuilt) and details:  # an OSError with an __init__ of its own leaves its arguments to that
                rebuilt.args = tuple(details.args)
            if str(rebuilt) or not failure.message:  # some classes are empty without their __init__
                return rebuilt
        except Exception as error:  # noqa: BLE001 - a class that cannot be made without its own __init__
            log.debug("cannot rebuild %s: %r", failure.type, error)
    return ActivityFailed(failure.message, failure.type, details.args if details else None)


def _details(error: BaseException) -> Raw | msgspec.UnsetType:
    for details in (_Details(_args(error), _fields(error)), _Details([_text(error)])):
        try:
            return Raw(encode(details, "an error", _LARGEST_DETAILS))
        except NotSerialisable:
            continue
        except ValueError:
            return UNSET
    return UNSET


def _text(error: BaseException) -> str:
    """Its message, whatever is in it: this must not fail."""
    try:
        return _clean(str(error))
    except Exception:  # noqa: BLE001 - an exception with a broken __str__
        return f"<{type(error).__qualname__} without a readable message>"


def _clean(text: str) -> str:
    """Lone surrogates, as from undecodable bytes, have no place in JSON."""
    return text.encode("utf-8", "backslashreplace").decode()


def _traceback(error: BaseException) -> str:
    try:
        return _clean("".join(_traceback_lines(error))[-_LONGEST_TRACEBACK:])
    except Exception:  # noqa: BLE001 - as in _text
        return ""


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


def _fields(error: BaseException) -> dict[str, Any]:
    kept = {}
    for name, value in vars(error).items():
        if name.startswith("__"):
            continue
        try:
            encode(value, name, _LARGEST_DETAILS)
        except ValueError:
            continue
        kept[name] = value
    return kept


def _type_name(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}:{kind.__qualname__}"


def _find_class(name: str) -> type[Exception] | None:
    """The class, if its module is loaded. Nothing is imported: a journal must not decide what code runs."""
    module, _, path = name.rpartition(":")
    found: Any = sys.modules.get(module) if module else builtins
    for part in path.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or not issubclass(found, Exception) or issubclass(found, StopIteration):
        return None  # a StopIteration could not be raised where somebody awaits it
    return found
