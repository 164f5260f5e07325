"""Pages that an application adds to the dashboard: it gives tables, and the dashboard draws them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct

from batuta.client import Batuta
from batuta.errors import InvalidInput
from batuta.server.http.call import Call
from batuta.server.http.routing import Route, Scope

_PATH = re.compile(r"/[a-z0-9]+(-[a-z0-9]+)*")


class Table(Struct, kw_only=True):
    """A table on a page. A cell is any JSON: a number stands to the right, a datetime is shown as its distance from
    now, and `{"run": "order-1"}` is a link to that run."""

    title: str
    columns: list[str]
    rows: list[list[Any]]
    note: str = ""
    """A sentence below the title; of an empty table: what to do next."""


class PageDocument(Struct, kw_only=True):
    """What a page of an application shows."""

    title: str
    tables: list[Table]


class Page(Struct, frozen=True):
    """A page of an application: `dashboard(client, pages=[Page("Partners", "/partners", read)])`.

    `read` gets the client of the namespace and returns tables. It is asked again whenever runs change.
    """

    title: str
    path: str
    read: Callable[[Batuta], Awaitable[Sequence[Table]]]
    scope: Scope = Scope.VIEWER

    def __post_init__(self) -> None:
        if not _PATH.fullmatch(str(self.path)):
            raise InvalidInput(f"Page(path={self.path!r}) must be a slash and small letters, such as /partners")
        if not str(self.title).strip():
            raise InvalidInput(f"Page(title={self.title!r}) must be the text that the menu shows")

    def route(self) -> Route:
        """Where the dashboard asks for it."""

        async def show(call: Call) -> PageDocument:
            return PageDocument(title=self.title, tables=list(await self.read(call.client)))

        return Route(
            method="GET",
            path=f"/api/v1/pages{self.path}",
            scope=self.scope,
            handler=show,
            summary=f"What the page {self.title} shows.",
            answer=PageDocument,
            payloads=True,
        )
