"""Pages that an application adds to the dashboard: it gives tables, gauges and actions; the dashboard draws them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from batuta.authoring.schemas import Parameter
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


class Gauge(Struct, kw_only=True):
    """A level, such as a balance."""

    name: str
    value: float
    most: float
    """The value of a full gauge. A value below 0 shows as empty."""
    tone: Literal["done", "retry", "fail", "pause"] = "done"
    """Its colour: well, soon a trouble, a trouble, not known."""
    label: str = ""
    """A word in that colour."""
    note: str = ""
    history: list[float | None] = []
    """Values before, oldest first."""


class Gauges(Struct, kw_only=True):
    """Gauges side by side."""

    title: str
    gauges: list[Gauge]
    note: str = ""


class ActionView(Struct, kw_only=True):
    """An action, as the dashboard shows it."""

    name: str
    title: str
    about: str
    danger: bool
    form: list[Parameter]


class PageDocument(Struct, kw_only=True):
    """The content of a page of an application."""

    title: str
    tables: list[Table]
    gauges: list[Gauges] = []
    actions: list[ActionView] = []


class Done(Struct, kw_only=True):
    """The result of an action."""

    message: str


class Action(Struct, frozen=True, kw_only=True):
    """A button on a page. The dashboard makes a form of the fields of `form`, a msgspec Struct, and `act` is given the
    client and that struct; it returns a sentence for the person. Errors of Batuta it raises are shown."""

    title: str
    form: type[Struct]
    act: Callable[[Batuta, Any], Awaitable[str]]
    about: str = ""
    danger: bool = False
    """It can do harm: the button says so."""
    scope: Scope = Scope.OPERATOR

    @property
    def name(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    def view(self) -> ActionView:
        form = [
            Parameter(
                name=field.encode_name,
                schema=msgspec.json.schema(field.type),
                required=field.required,
                default=None if field.default is msgspec.NODEFAULT else msgspec.to_builtins(field.default),
            )
            for field in msgspec.structs.fields(self.form)
        ]
        return ActionView(name=self.name, title=self.title, about=self.about, danger=self.danger, form=form)

    def route(self, page: str) -> Route:
        """Where the dashboard sends its form."""

        async def run(call: Call) -> Done:
            await call.client.namespace.note_page_action(f"{page[1:]}/{self.name}")
            return Done(message=await self.act(call.client, call.body))

        return Route(
            method="POST",
            path=f"/api/v1/pages{page}/{self.name}",
            scope=self.scope,
            handler=run,
            summary=f"{self.title}.",
            body=self.form,
            answer=Done,
        )


class Page(Struct, frozen=True):
    """A page of an application: `dashboard(client, pages=[Page("Partners", "/partners", read)])`.

    `read` gets the client of the namespace and returns tables and gauges. It is asked again whenever runs change.
    `actions` are buttons for those who may use them.
    """

    title: str
    path: str
    read: Callable[[Batuta], Awaitable[Sequence[Table | Gauges]]]
    scope: Scope = Scope.VIEWER
    actions: Sequence[Action] = ()

    def __post_init__(self) -> None:
        if not _PATH.fullmatch(str(self.path)):
            raise InvalidInput(f"Page(path={self.path!r}) must be a slash and small letters, such as /partners")
        if not str(self.title).strip():
            raise InvalidInput(f"Page(title={self.title!r}) must be the text that the menu shows")
        names = [action.view().name for action in self.actions]
        if "" in names or len(set(names)) < len(names):
            raise InvalidInput(f"Page(actions=...) of {self.title!r} must have titles in letters, each one once")

    def routes(self) -> list[Route]:
        """Where the dashboard asks for it, and where it sends its forms."""

        async def show(call: Call) -> PageDocument:
            parts = await self.read(call.client)
            return PageDocument(
                title=self.title,
                tables=[part for part in parts if isinstance(part, Table)],
                gauges=[part for part in parts if isinstance(part, Gauges)],
                actions=[action.view() for action in self.actions if call.principal.scope >= action.scope],
            )

        shown = Route(
            method="GET",
            path=f"/api/v1/pages{self.path}",
            scope=self.scope,
            handler=show,
            summary=f"The content of the page {self.title}.",
            answer=PageDocument,
            payloads=True,
        )
        return [shown, *(action.route(self.path) for action in self.actions)]
