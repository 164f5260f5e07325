"""One request as a handler sees it, and what a handler may answer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote
from uuid import UUID

from msgspec import Struct
from starlette.requests import Request

from batuta.authoring.backend import Description
from batuta.authoring.client.acting import acting_as
from batuta.authoring.client.handle import Handle
from batuta.client import Batuta
from batuta.clock import SECOND, SystemClock
from batuta.durations import parse_duration
from batuta.errors import InvalidInput, UnknownRun
from batuta.problems import Problem, title_of
from batuta.server.http.routing import Route, Scope

_TOO_LONG = 1e9
LONGEST_WAIT = 30.0
"""Seconds that a request may wait for a run, a worker or an operation."""


class Refused(Exception):
    """A handler's way to answer with a problem of the server's own."""

    def __init__(self, status: int, code: str, detail: str, *, retry_after: float | None = None, **more: Any) -> None:
        super().__init__(detail)
        self.problem = Problem(
            status=status, code=code, title=title_of(code), detail=detail, retry_after=retry_after, more=more
        )


class Principal(Struct, frozen=True, kw_only=True):
    """The caller: a key, a session or a user of the application."""

    name: str
    kind: str
    """`key`; `loopback`: this machine, while there is no key; `app`: the application that the server is mounted in
    decides."""
    scope: Scope
    namespace: str
    """`*`: every one."""
    key_id: str = ""

    @property
    def actor(self) -> str:
        """As the audit log names it."""
        return f"{self.kind}:{self.name}" if self.name else self.kind

    @property
    def caller(self) -> str:
        """Whose idempotency keys they are."""
        return f"{self.kind} {self.key_id or self.name}"


class Answer(Struct, kw_only=True):
    """An answer with more than a body."""

    body: Any = None
    status: int | None = None
    """None: the route's."""
    headers: Mapping[str, str] = {}


class RunAnswer(Struct, kw_only=True):
    """An answer about one run."""

    id: str
    run_id: UUID


class Call(Struct, kw_only=True):
    """A request that was let in: authenticated, authorised and decoded."""

    server: Any
    """The `batuta.server.app.Server` that it came to."""
    route: Route
    client: Batuta
    principal: Principal
    values: list[str]
    """The path's parameters."""
    query: Any
    body: Any
    trace_id: str
    root: str
    """The path that the server is mounted at, without a slash at its end."""
    traceparent: str
    request: Request

    @property
    def id(self) -> str:
        """The first parameter of the path."""
        return self.values[0]

    async def run(self) -> Handle[Any]:
        """The run that the path names: the last one of the id, else the run of that run id."""
        return await find_run(self.client, self.id)

    def because(self, reason: str) -> AbstractContextManager[None]:
        """Around acts that take no reason of their own: the audit log has it with them."""
        return acting_as(self.principal.actor, reason)

    def located(self, *parts: str) -> dict[str, str]:
        """The header that names the new resource."""
        return {"Location": "/".join([f"{self.root}/api/v1", *(quote(part, safe="") for part in parts)])}


async def find_run(client: Batuta, id: str) -> Handle[Any]:
    """The last run of the id or, if no run has it, the run of that run id. Raises UnknownRun."""
    if not id.isprintable():
        raise UnknownRun(id[:100])
    try:
        return await client.get(id)
    except UnknownRun:
        with suppress(UnknownRun, InvalidInput):
            return await client.get_run(id)
        raise


async def described(client: Batuta, run_id: UUID | str | None) -> Description | None:
    """None: there is no such run, or not any more."""
    try:
        return None if run_id is None else await (await client.get_run(run_id)).describe()
    except UnknownRun:
        return None


def check_wait(name: str, seconds: float, advice: str = "ask again for longer") -> None:
    """Raises InvalidInput."""
    if not 0 <= seconds <= LONGEST_WAIT:
        raise InvalidInput(f"{name}={seconds} must be from 0 to {LONGEST_WAIT:g} seconds: {advice}")


def now() -> datetime:
    return datetime.fromtimestamp(SystemClock().now() / SECOND, UTC)


def ago(text: str | None, name: str) -> datetime | None:
    """A time of a query: `1h` is an hour ago; else RFC 3339, UTC when it names no zone."""
    if text is None:
        return None
    seconds = parse_duration(text)
    if seconds is not None and 0 <= seconds <= _TOO_LONG:
        return datetime.fromtimestamp(SystemClock().now() / SECOND - seconds, UTC)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"{name}={text[:100]!r} must be a time such as 2031-05-17T14:30:00Z, or 1h, 30min or 2d for so long ago"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def moment(text: str | None, name: str) -> str | None:
    """A time of a filter, such as `1h`, that stays the same when it is read later."""
    found = ago(text, name)
    return None if found is None else found.isoformat()
