"""A request as the rules see it, without HTTP: which operation, which values of the path, what was sent."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from urllib.parse import unquote
from uuid import UUID

from msgspec import Struct

from pixdict.dict.operations import BASE, NON_PRIORITY_BASE, OPERATIONS, Operation
from pixdict.dict.problems import DirectoryRefused
from pixdict.directory.query import Parameters


class Request(Struct, frozen=True, kw_only=True):
    """What arrived."""

    method: str
    path: str
    """As sent, still with its escapes: a key may have a slash in it."""
    parameters: Parameters = {}
    headers: Mapping[str, str] = {}
    """Names in small letters."""
    body: bytes = b""
    peer: str | None = None
    """Whose certificate the connection has; None without mutual TLS."""

    def header(self, name: str) -> str | None:
        """The value of a header."""
        return self.headers.get(name.lower())


class Reply(Struct, frozen=True, kw_only=True):
    """What goes back."""

    status: int
    body: bytes
    content_type: str
    headers: Mapping[str, str] = {}


class Route(Struct, frozen=True):
    """The operation of a request and the value of the path's variable part, "" where there is none."""

    operation: Operation
    value: str


def route(method: str, path: str) -> Route | None:
    """What a request asks for; None when nothing is there."""
    for base in (BASE, NON_PRIORITY_BASE):
        if not path.startswith(f"{base}/"):
            continue
        for operation, pattern in _ROUTES[method]:
            found = pattern.fullmatch(path, len(base))
            if found and (base == BASE or operation.name == "checkKeys"):
                return Route(operation, unquote(found[1]) if found.groups() else "")
    return None


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{\w+\\}", "([^/]+)", re.escape(path)))


_ROUTES: dict[str, list[tuple[Operation, re.Pattern[str]]]] = defaultdict(list)
for _operation in OPERATIONS.values():
    _ROUTES[_operation.method].append((_operation, _pattern(_operation.path)))


def uuid_of_path(text: str) -> UUID:
    """The id of a claim. Raises DirectoryRefused."""
    try:
        return UUID(text)
    except ValueError:
        raise DirectoryRefused("BadRequest", f"{text[:100]!r} is not a UUID") from None
