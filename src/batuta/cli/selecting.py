"""One run by its id, or many by filters: how commands that change runs are told which."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from batuta.cli import inputs
from batuta.cli.listing import FILTERS
from batuta.cli.place import Place
from batuta.errors import InvalidInput, MatchesEverything, NotConfirmed, NothingMatches
from batuta.journal.records import RunKind

if TYPE_CHECKING:
    from batuta.authoring.operating import Counts, Selection

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.argument("id", required=False),
    click.option("--reason", default="", help="Kept in the audit log, and of a fork in its journal."),
    click.option("--workflow", metavar="NAME"),
    click.option("--job", metavar="NAME"),
    click.option(
        "--kind", type=click.Choice([*map(str, RunKind), "any"]), help="[default: workflow, or job with --job]"
    ),
    *FILTERS,
    click.option("--key", metavar="TEXT", help="What limits per key count by."),
    click.option("--all", "everything", is_flag=True, help="Every run of the namespace, in place of filters."),
    click.option("--yes", is_flag=True, help="Do it; without this, it is only counted."),
)


def selecting(command: F) -> F:
    """Give a command an id, or the filters of a list in its place, and --yes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def is_one(id: str | None, which: dict[str, Any]) -> bool:
    """Whether one run is meant. Raises InvalidInput when both are said, MatchesEverything when neither is."""
    everything, confirmation = which["everything"], ("everything", "yes")
    filters = bool(inputs.filters({name: value for name, value in which.items() if name not in confirmation}))
    if id is not None and (filters or everything):
        raise InvalidInput("give the id of one run, or filters for many, not both")
    if id is None and not filters and not everything:
        raise MatchesEverything("nothing says which runs: give an id, or filters, or --all for every run")
    return id is not None


def apply(place: Place, verb: str, which: dict[str, Any], do: Callable[[Selection], Awaitable[Counts]]) -> None:
    """Do it to all that match, once the number is known and wanted."""
    tags, everything, yes = which.pop("tags"), which.pop("everything"), which.pop("yes")
    counts = asyncio.run(_apply(place, verb, yes, everything, _filters(tags, which), do))
    document = {"verb": verb, "matched": counts.matched, "done": counts.done, "refused": counts.refused}
    refused = "".join(f"; {count} refused ({error})" for error, count in sorted(counts.refused.items()))
    place.answer(document, lambda _: click.echo(f"{verb}: {counts.done} of {counts.matched} runs{refused}"))


def _filters(tags: tuple[str, ...], where: dict[str, Any]) -> dict[str, Any]:
    found = inputs.filters(where)
    for option in ("created_after", "created_before"):
        if option in found:
            found[option] = inputs.moment(found[option], "--" + option.replace("_", "-"))
    return found | ({"tags": inputs.tags(tags)} if tags else {})


async def _apply(
    place: Place,
    verb: str,
    yes: bool,
    everything: bool,
    where: dict[str, Any],
    do: Callable[[Selection], Awaitable[Counts]],
) -> Counts:
    async with place.client() as client:
        selection = client.select(everything=everything, **where)
        count = await selection.count(verb)
        if not count:
            raise NothingMatches(f"no run matches that could be had to {verb}: `batuta runs list` shows what there is")
        if not yes and not confirmed(f"{verb} {count} runs?", place):
            raise NotConfirmed(f"{count} runs match: say --yes to {verb} them")
        return await do(selection)


def confirmed(question: str, place: Place) -> bool:
    """Only a person at a terminal is asked."""
    return not place.as_json and sys.stdin.isatty() and sys.stderr.isatty() and click.confirm(question, err=True)
