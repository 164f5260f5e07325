"""Reads what people type: JSON, files, tags, times. Each mistake is an InvalidInput that says where."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from batuta.clock import SECOND, SystemClock
from batuta.durations import parse_duration
from batuta.errors import InvalidInput

_TOO_LONG = 1e9
"""Seconds: no option takes more than some thirty years."""


def read_json(text: str, what: str) -> Any:
    """The value of a JSON text, of `@file`, or of stdin for `@-`."""
    source = what
    if text.startswith("@"):
        text, source = _read_file(text[1:], what), f"{what} from {text[1:]!r}"
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise InvalidInput(f"{source} is nested too deeply") from None
    except ValueError as error:
        where = f" (line {error.lineno}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise InvalidInput(
            f"{source} is not JSON: {reason}{where}; strings need double quotes: '\"text\"', and '@path' reads a file"
        ) from error


def read_token(text: str) -> str:
    """A token, or what is in `@file`, or on stdin for `@-`: arguments of a command are visible to other users."""
    return _read_file(text[1:], "the token").strip() if text.startswith("@") else text


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def _read_file(path: str, what: str) -> str:
    try:
        if path == "-":
            return sys.stdin.read()
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidInput(f"{what} cannot be read from {path!r}: {reason}") from error


def arguments(text: str | None) -> list[Any]:
    """A workflow's arguments: an array is the list of them, any other value is the only one."""
    if text is None:
        return []
    value = read_json(text, "--input")
    return value if isinstance(value, list) else [value]


def tags(pairs: Sequence[str]) -> dict[str, str]:
    """`key=value` pairs."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise InvalidInput(f"--tag {pair!r} must be KEY=VALUE")
        found[key] = value
    return found


def run_options(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a command that begins runs, as arguments of the client: those that are given."""
    given["tags"] = tags(given["tags"]) or None
    given["memo"] = None if given["memo"] is None else read_json(given["memo"], "--memo")
    return {name: value for name, value in given.items() if value is not None}


if TYPE_CHECKING:
    FloatType = click.ParamType[float]
else:
    FloatType = click.ParamType  # no generic before click 8.2


class Duration(FloatType):
    """Seconds, of a number or of a text such as `90s`, `5min`, `1h` or `30d`."""

    name = "duration"

    def __init__(self, *, above: float | None = None) -> None:
        self._above = above

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = _seconds(value)
        if seconds is None or not -_TOO_LONG <= seconds <= _TOO_LONG:
            self.fail(f"{value!r} is not a duration: write seconds, or 90s, 5min, 1h or 30d", param, ctx)
        if seconds < 0 or (self._above is not None and seconds <= self._above):
            limit = "0 or more" if self._above is None else f"more than {self._above:g}"
            self.fail(f"{value!r} is too short: it must be {limit}", param, ctx)
        return seconds


def _seconds(value: Any) -> float | None:
    try:
        return float(value)
    except ValueError:
        return parse_duration(value)


DURATION = Duration()
POSITIVE = Duration(above=0)


def filters(where: Mapping[str, Any]) -> dict[str, Any]:
    """The given options, and --since and --until as times. An empty one is a mistake, often an unset variable: it would
    match more."""
    found = {name: value for name, value in where.items() if value is not False and value not in (None, ())}
    for name, value in found.items():
        if value == "":
            raise InvalidInput(f"--{name.replace('_', '-')} is empty: leave it out, or give a value")
    return found | {name: ago(found[name], f"--{name}") for name in ("since", "until") if name in found}


def ago(text: str | None, option: str) -> datetime | None:
    """For --since and --until: `1h` is an hour ago; else an ISO 8601 time, UTC when it names no zone."""
    if text is None:
        return None
    seconds = parse_duration(text)
    if seconds is not None and seconds <= _TOO_LONG:
        return datetime.fromtimestamp(SystemClock().now() / SECOND - seconds, UTC)
    try:
        return moment(text, option)
    except InvalidInput:
        raise InvalidInput(
            f"{option} {text!r} is not a time: write 1h, 30min or 2d (ago), or 2031-05-17 or 2031-05-17T14:30:00+00:00"
        ) from None


def moment(text: str | None, option: str) -> datetime | None:
    """An ISO 8601 time; UTC when it names no zone."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{option} {text!r} is not a time: write 2031-05-17 or 2031-05-17T14:30:00+00:00") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
