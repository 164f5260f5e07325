"""What `batuta runs list` and `batuta jobs list` have in common: filters, pages, and the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from batuta.cli import inputs
from batuta.cli.place import Place
from batuta.journal.states import RunState

if TYPE_CHECKING:
    from batuta.authoring.backend import RunPage

F = TypeVar("F", bound=Callable[..., Any])

FILTERS = (
    click.option(
        "--state", "states", multiple=True, type=click.Choice([str(state) for state in RunState]), help="Repeatable."
    ),
    click.option("--queue", "-q", metavar="NAME"),
    click.option("--id-prefix", metavar="TEXT"),
    click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="Repeatable."),
    click.option("--created-after", metavar="TIME", help="ISO 8601."),
    click.option("--created-before", metavar="TIME", help="ISO 8601."),
)
"""Which runs, but for their kind and name."""

_OPTIONS = (
    *FILTERS,
    click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True),
    click.option("--cursor", metavar="TEXT", help="Of the page before: gives the next one."),
)


def filtered(command: F) -> F:
    """Give a command the filters of a list."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def show_page(place: Place, table: str, tags: tuple[str, ...], where: dict[str, Any]) -> None:
    """Read a page with these filters, and print it with that table of `cli.tables`."""
    where["tags"] = inputs.tags(tags)
    for option in ("created_after", "created_before"):
        where[option] = inputs.moment(where[option], "--" + option.replace("_", "-"))
    page = asyncio.run(_read(place, where))

    def human(console: Any) -> None:
        from batuta.cli import tables

        console.print(getattr(tables, table)(page.runs))
        if page.cursor is not None:
            click.echo(f"there are more: --cursor {page.cursor}", err=True)

    place.answer(page, human)


async def _read(place: Place, where: dict[str, Any]) -> RunPage:
    async with place.client() as client:
        return await client.list(**where)
