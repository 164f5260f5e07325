"""Selects one run by its id, or many by filters, for commands that change runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import click

from batuta.authoring.client.bulk_operations import Counts, Selection
from batuta.cli.common import inputs
from batuta.cli.common.listing import FILTERS, given_filters
from batuta.cli.common.options import REASON, with_options
from batuta.cli.common.redaction import say
from batuta.cli.common.target import CommonOptions
from batuta.errors import InvalidInput, MatchesEverything, NotConfirmed, NothingMatches
from batuta.journal.records import RunKind
from batuta.printable import number_of

_OPTIONS = (
    click.argument("id", required=False),
    REASON,
    click.option("--kind", type=click.Choice([*map(str, RunKind), "any"]), help="[default: workflow]"),
    *FILTERS,
    click.option("--all", "everything", is_flag=True, help="Every run of the namespace, instead of filters."),
    click.option("--yes", is_flag=True, help="Do it without asking; needed where there is no terminal."),
)


selecting = with_options(*_OPTIONS)
"""Gives a command an id, or the filters of a list in its place, and --yes."""


def is_one(id: str | None, which: dict[str, Any]) -> bool:
    """Whether one run is meant. Raises InvalidInput when both are said, MatchesEverything when neither is."""
    everything, confirmation = which["everything"], ("everything", "yes")
    filters = bool(inputs.filters({name: value for name, value in which.items() if name not in confirmation}))
    if id is not None and (filters or everything):
        raise InvalidInput("give the id of one run, or filters for many, not both")
    if id is None and not filters and not everything:
        raise MatchesEverything("no runs are selected: give an id, or filters, or --all for every run")
    return id is not None


def apply(
    common: CommonOptions, verb: str, which: dict[str, Any], do: Callable[[Selection], Awaitable[Counts]]
) -> None:
    """Do it to all that match, once the number is known and wanted."""
    everything, yes = which.pop("everything"), which.pop("yes")
    counts = asyncio.run(_apply(common, verb, yes, everything, given_filters(which), do))
    document = {"verb": verb, "matched": counts.matched, "done": counts.done, "refused": counts.refused}
    refused = "".join(f"; {count} refused ({error})" for error, count in sorted(counts.refused.items()))
    common.answer(document, lambda _: say(f"{verb}: {counts.done} of {number_of(counts.matched, 'run')}{refused}"))


async def _apply(
    common: CommonOptions,
    verb: str,
    yes: bool,
    everything: bool,
    where: dict[str, Any],
    do: Callable[[Selection], Awaitable[Counts]],
) -> Counts:
    async with common.client() as client:
        selection = client.select(everything=everything, **where)
        count = await selection.count(verb)
        if not count:
            raise NothingMatches(f"no matching run can be used with {verb}: check with `batuta runs list`")
        if not yes and not confirmed(f"{verb} {number_of(count, 'run')}?", common):
            matching = number_of(count, "run matches", "runs match")
            raise NotConfirmed(f"{matching}: add --yes to {verb} {'it' if count == 1 else 'them'}")
        return await do(selection)


def confirmed(question: str, common: CommonOptions) -> bool:
    """Only a person at a terminal is asked."""
    return not common.as_json and sys.stdin.isatty() and sys.stderr.isatty() and click.confirm(question, err=True)
