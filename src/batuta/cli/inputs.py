"""What people type, read with care: JSON, files, tags, times. Each mistake is an InvalidInput that says where."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from batuta.errors import InvalidInput


def read_json(text: str, what: str) -> Any:
    """The value of a JSON text, of `@file`, or of stdin for `@-`."""
    source = what
    if text.startswith("@"):
        text, source = _read_file(text[1:], what), f"{what} from {text[1:]!r}"
    try:
        return json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        where = f" (line {error.lineno}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise InvalidInput(
            f"{source} is not JSON: {reason}{where}; strings need double quotes: '\"text\"', and '@path' reads a file"
        ) from error


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


def filters(where: Mapping[str, Any]) -> dict[str, Any]:
    """Those that were given. An empty one is a mistake, often of a variable that is not set: it would match more."""
    found = {name: value for name, value in where.items() if value not in (None, ())}
    for name, value in found.items():
        if value == "":
            raise InvalidInput(f"--{name.replace('_', '-')} is empty: leave it out, or say what it must be")
    return found


def moment(text: str | None, option: str) -> datetime | None:
    """An ISO 8601 time; UTC when it names no zone."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{option} {text!r} is not a time: write 2031-05-17 or 2031-05-17T14:30:00+00:00") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
