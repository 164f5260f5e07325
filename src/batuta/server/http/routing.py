"""One table of routes: what the server answers, for whom, and with which shapes. OpenAPI and tests are made from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from enum import Enum, IntEnum
from functools import partial
from typing import Any
from urllib.parse import unquote

from msgspec import Struct


class Scope(IntEnum):
    """The rights of a credential. Each scope includes those before it."""

    PUBLIC = 0
    """Without any credential."""
    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        return self.name.lower()


SCOPES = {scope.word: scope for scope in (Scope.VIEWER, Scope.OPERATOR, Scope.ADMIN)}


class Repeat(Enum):
    """The effect of an idempotency key on a POST."""

    KEPT = "kept"
    """The answer is kept, and given again."""
    SECRET = "secret"  # noqa: S105 - what it is about
    """It is done once; its answer holds a secret that is not kept."""
    FREE = "free"
    """It may be repeated as it is: it changes nothing, or has a key of its own."""
    OWN = "own"
    """Its handler takes the key and keeps the answer, whatever the method."""


class NoQuery(Struct, forbid_unknown_fields=True):
    """A route without query parameters."""


class Route(Struct, frozen=True, kw_only=True):
    """One line of the table."""

    method: str
    path: str
    """Segments in braces are parameters."""
    scope: Scope
    handler: Callable[[Any], Awaitable[Any]]
    summary: str
    query: type[Struct] = NoQuery
    body: Any = None
    """The struct of the request body; None: it has none."""
    answer: Any = None
    """The type of the answer's JSON."""
    media: str = ""
    """The media type of an answer that is no JSON."""
    status: int = 200
    later: bool = False
    """It may answer 202 as well: the work goes on."""
    namespaced: bool = True
    """It works in one namespace, which the credential decides."""
    payloads: bool = False
    """Its answer may hold payloads of users: redaction applies, and `reveal` shows them whole."""
    repeat: Repeat = Repeat.KEPT
    streams: bool = False
    """Its answer goes on: there is no HEAD for it."""
    shared: bool = False
    """It is read once for all who ask for the same at the same time. The answer must not depend on the caller."""
    many: bool = False
    """It changes many runs at once."""
    large: bool = False
    """Its body carries a payload: the larger limit of size applies."""

    @property
    def noun(self) -> str:
        """Its subject: the first segment after the version."""
        parts = [part for part in self.path.split("/") if part]
        if parts[0] == "api" and len(parts) > 1 and parts[1] != "v1":
            return "flows"
        return parts[2] if len(parts) > 2 and parts[0] in ("api", "admin") else "server"

    @property
    def parameters(self) -> list[str]:
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]

    @property
    def operation_id(self) -> str:
        parts = self.path.split("/")[2:] if self.noun == "flows" else self.path.split("/")[3:]
        words = [part.strip("{}").replace("-", "_") for part in parts if part]
        if self.noun == "flows":
            words.insert(0, "flows")
        return "_".join([self.method.lower(), *words]) if words else f"{self.method.lower()}_{self.path.strip('/')}"


def route(method: str, path: str, handler: Any, summary: str, answer: Any, **more: Any) -> Route:
    """A route that viewers may read with and operators may change with. `changes`: others may change with it; `scope`:
    who may ask at all."""
    changes = more.pop("changes", Scope.OPERATOR)
    scope = more.pop("scope", Scope.VIEWER if method == "GET" else changes)
    return Route(method=method, path=path, scope=scope, handler=handler, summary=summary, answer=answer, **more)


public = partial(route, "GET", scope=Scope.PUBLIC, namespaced=False)
"""A route that everybody may read."""


class _Node(Struct):
    children: dict[str, _Node] = {}
    parameter: _Node | None = None
    routes: dict[str, Route] = {}


class Found(Struct):
    """The route of a path."""

    routes: dict[str, Route]
    """By method; empty when there is no such path."""
    values: list[str]
    """The path's parameters, in order."""


class Router:
    """Finds routes by path. Words of a path win over parameters, and each segment is decoded by itself: an id may hold
    a slash, written as %2F."""

    def __init__(self, table: Iterable[Route]) -> None:
        self._root = _Node()
        for route in table:
            node = self._root
            for part in route.path.strip("/").split("/"):
                if part.startswith("{"):
                    node.parameter = node.parameter or _Node()
                    node = node.parameter
                else:
                    node = node.children.setdefault(part, _Node())
            if route.method in node.routes:
                raise ValueError(f"two routes for {route.method} {route.path}")
            node.routes[route.method] = route

    def find(self, path: str) -> Found:
        """`path`: as it came, still percent-encoded."""
        return _find(self._root, path.strip("/").split("/"), []) or Found({}, [])


def _find(node: _Node, parts: list[str], values: list[str]) -> Found | None:
    if not parts:
        return Found(node.routes, values) if node.routes else None
    child = node.children.get(parts[0])
    if child is not None and (found := _find(child, parts[1:], values)) is not None:
        return found
    if node.parameter is None or not parts[0]:
        return None
    return _find(node.parameter, parts[1:], [*values, unquote(parts[0])])
