"""The options that commands share, and how they answer: the same word means the same everywhere."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click
import msgspec

from batuta.authoring.middleware import Middleware
from batuta.cli import output
from batuta.cli.common.inputs import DURATION
from batuta.cli.common.lazy import AS_JSON, COMMAND
from batuta.cli.common.redaction import may_show_whole, redact, redactor, reveals, say, shown
from batuta.connect import connect, store_for
from batuta.errors import SchemaMismatch
from batuta.journal.audit import Verb
from batuta.journal.marks import REDACT
from batuta.printable import printable_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from batuta.client import Batuta
    from batuta.journal.store import Store

P = ParamSpec("P")
Q = TypeVar("Q")
F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")
S = TypeVar("S", bound="Store")

_NARROWEST = 200
"""Columns of a table that does not go to a terminal."""
_RUNS = ("id", "left", "right")
"""Arguments of commands that name a run."""


SINCE = click.option("--since", metavar="TIME", help="From this time on: 1h (ago), 2d, or ISO 8601.")
UNTIL = click.option("--until", metavar="TIME", help="Before this time: 1h (ago), 2d, or ISO 8601.")
LIMIT = click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Rows per page.")
CURSOR = click.option("--cursor", metavar="TEXT", help="The cursor that the previous page printed.")
NAME = click.option("--name", metavar="NAME", help="The name of the workflow or job.")
REASON = click.option("--reason", default="", metavar="TEXT", help="Why you do it; recorded in the audit log.")
YES = click.option("--yes", is_flag=True, help="Do not ask.")


def app_option(text: str, *, required: bool = False) -> Callable[[F], F]:
    """Code: a module, or an App in it."""
    return click.option("--app", metavar="MODULE[:ATTR]", required=required, help=text)


def duration_option(name: str, text: str, *, required: bool = False) -> Callable[[F], F]:
    """Seconds, or a text such as 5min."""
    return click.option(name, type=DURATION, metavar="DURATION", required=required, help=text)


def with_options(*options: Any) -> Callable[[F], F]:
    """Give a command these options, in this order."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


class Answers:
    """The form of a command's answer: one JSON document, or what people read."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def answer(self, document: Any, human: Callable[[Console], None]) -> None:
        """Print the document as JSON, or let `human` print it."""
        if self.as_json:
            print_json(document)
        else:
            human(console())

    def tell(self, document: Any, text: str) -> None:
        """Print the document as JSON, or a text for people."""
        self.answer(document, lambda _: say(text))

    def show(
        self, document: Any, view: Callable[[], RenderableType], *, note: str = "", cursor: str | int | None = None
    ) -> None:
        """Print the document as JSON, or what `view` makes, such as a table. Then, on stderr, a note and the cursor of
        the next page."""
        if self.as_json:
            print_json(document)
            return
        console().print(view())
        if note:
            say(note, err=True)
        if cursor is not None:
            say(f"there are more: --cursor {cursor}", err=True, whole=True)

    def show_rows(
        self,
        document: Any,
        columns: Sequence[str],
        rows: Iterable[Iterable[str]],
        *,
        none: str,
        cursor: str | int | None = None,
    ) -> None:
        """Print the document as JSON, or the rows as a table; `none` tells that there are no rows."""
        cells = [] if self.as_json else [*rows]
        self.show(
            document,
            lambda: output.tables.table(*columns, rows=cells),
            note="" if cells else none,
            cursor=cursor,
        )

    def show_secret(self, document: Any, secret: str, note: str = "") -> None:
        """Print a secret that is shown once: redaction would hide it."""
        if self.as_json:
            print_json(document, whole=True)
            return
        say(secret, whole=True)
        if note:
            say(note, err=True)


class CommonOptions(Answers):
    """The database that a command talks to, and the form of its answer."""

    def __init__(self, url: str | None, namespace: str | None, as_json: bool) -> None:
        super().__init__(as_json)
        self.url, self.namespace = url, namespace
        self._reason = ""

    def because(self, reason: str) -> CommonOptions:
        """The same target, with a `reason` for the audit log."""
        self._reason = reason
        return self

    def client(self, *, migrate: bool = False, middleware: Sequence[Middleware] = ()) -> Batuta:
        """A client. Commands that only look must not make tables: a mistyped path would give an empty database."""
        return connect(self.url, namespace=self.namespace, migrate=migrate, middleware=middleware, reason=self._reason)

    def ask(self, work: Callable[[Batuta], Awaitable[R]], *, migrate: bool = False) -> R:
        """The result of work with a client."""

        async def ask() -> R:
            async with self.client(migrate=migrate) as client:
                return await work(client)

        return asyncio.run(ask())

    def ask_both(self, first: Callable[[Batuta], Awaitable[R]], then: Callable[[Batuta], Awaitable[Q]]) -> tuple[R, Q]:
        """The results of two works with one client, one after the other: of a change, and of a look at what is then."""

        async def both(client: Batuta) -> tuple[R, Q]:
            return await first(client), await then(client)

        return self.ask(both)

    def store(self) -> Store:
        return store_for(self.url, namespace=self.namespace)

    def confirms(self, question: str) -> bool:
        """Whether a person says yes. Only one at a terminal is asked."""
        return not self.as_json and sys.stdin.isatty() and sys.stderr.isatty() and click.confirm(question, err=True)

    async def note_reveal(self, runs: Iterable[str], command: str) -> None:
        """Before anything is shown: record who reveals redacted values, of these runs or of all."""
        from batuta.cli.common.runs import id_of
        from batuta.engine.backend.actor import Actor

        async with opened(self.store()) as store:
            for target in [await id_of(store, run) for run in runs] or [command]:
                await store.note_act(target, Actor().act(Verb.REVEAL, detail={"command": command}))

    async def requires_redaction(self) -> bool:
        """Whether the namespace is marked for redaction. One without tables is not."""
        try:
            async with opened(self.store()) as store:
                return REDACT in await store.marks()
        except SchemaMismatch:  # the command says it, or makes the tables
            return False


@asynccontextmanager
async def opened(store: S) -> AsyncIterator[S]:
    """The store, open until the end of the block."""
    try:
        await store.open()
        yield store
    finally:
        await store.close()


def print_json(document: Any, *, whole: bool = False) -> None:
    """One document on stdout: redacted, unless it must be `whole`."""
    data = msgspec.json.encode(document)
    if not whole and redactor() is not None:
        data = msgspec.json.encode(shown(msgspec.json.decode(data)))
    click.echo(printable_json(msgspec.json.format(data, indent=2 if sys.stdout.isatty() else 0).decode()))


def console(*, stderr: bool = False) -> Console:
    """A console for people, with redacted texts.

    Colours follow the terminal and NO_COLOR; piped output is not squeezed into 80 columns.
    """
    found = output.tables.Paper(stderr=stderr, highlight=False, soft_wrap=False, emoji=False, markup=False)
    if not found.is_terminal:
        found.width = max(found.width, _NARROWEST)
    return found


def _note_json(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
    ctx.meta[AS_JSON], ctx.meta[COMMAND] = value, ctx.command
    return value


json_option = click.option(
    "--json", "as_json", is_flag=True, callback=_note_json, help="Print one JSON document on stdout."
)


def with_common_options(command: Callable[Concatenate[CommonOptions, P], R]) -> Callable[..., R]:
    """Give a command the common options, as its first argument."""

    @click.option(
        "--url",
        envvar="BATUTA_DATABASE_URL",
        show_envvar=True,
        metavar="URL",
        help="sqlite:///file.db or postgresql://user@host/database.  [default: sqlite:///batuta.db]",
    )
    @click.option("--namespace", envvar="BATUTA_NAMESPACE", show_envvar=True, metavar="NAME", help="[default: default]")
    @json_option
    @functools.wraps(command)
    def wrapped(*args: Any, url: str | None, namespace: str | None, as_json: bool, **kwargs: Any) -> R:
        common = CommonOptions(url, namespace, as_json)
        if may_show_whole() and asyncio.run(common.requires_redaction()):
            redact()
        if reveals():
            path = click.get_current_context().command_path.partition(" ")[2]
            runs = dict.fromkeys(one for name in _RUNS if (one := kwargs.get(name)))
            asyncio.run(common.note_reveal(runs, path))
        return command(common, *args, **kwargs)

    return wrapped
