"""Runs that a command means: one by its id or run id, or many by filters; and the pages and changes of many."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from batuta.authoring.backend import Description, RunPage
from batuta.authoring.client.bulk_operations import Counts, Selection
from batuta.authoring.client.handle import Handle
from batuta.authoring.definitions import Workflow
from batuta.authoring.jobs import Job
from batuta.cli import output
from batuta.cli.common import inputs
from batuta.cli.common.inputs import POSITIVE
from batuta.cli.common.options import NAME, REASON, SINCE, UNTIL, CommonOptions, with_options
from batuta.errors import InvalidInput, MatchesEverything, NotConfirmed, NothingMatches, UnknownRun
from batuta.ids import RunId
from batuta.journal.records import RunKind
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.printable import number_of

if TYPE_CHECKING:
    from batuta.client import Batuta

R = TypeVar("R")

FILTERS = (
    NAME,
    click.option(
        "--state", "states", multiple=True, type=click.Choice([str(state) for state in RunState]), help="Repeatable."
    ),
    click.option("--queue", "-q", metavar="NAME", help="The name of the queue."),
    click.option("--id-prefix", metavar="TEXT", help="Only ids with this prefix."),
    click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="Repeatable."),
    click.option("--key", metavar="TEXT", help="Only runs with this key."),
    click.option("--parent", metavar="RUN_ID", help="Only children of this run."),
    SINCE,
    UNTIL,
    click.option(
        "--older-than", type=POSITIVE, metavar="DURATION", help="Only runs created longer ago, such as 1h or 2d."
    ),
    click.option("--retrying", is_flag=True, help="Only runs with an activity that failed and is tried again."),
    click.option(
        "--tries",
        type=click.IntRange(1, 1_000_000),
        metavar="N",
        help="Only runs with an activity that failed N times or more.",
    ),
)
"""Which runs, but for their kind."""

WAITING_FOR = click.option("--waiting-for", metavar="NAME", help="Only open runs that wait for this activity or child.")
"""For lists alone."""

KIND = click.option(
    "--kind", type=click.Choice([*map(str, RunKind), "any"]), default=str(RunKind.WORKFLOW), show_default=True
)

selecting = with_options(
    click.argument("id", required=False),
    REASON,
    click.option("--kind", type=click.Choice([*map(str, RunKind), "any"]), help="[default: workflow]"),
    *FILTERS,
    click.option("--all", "everything", is_flag=True, help="Every run of the namespace, instead of filters."),
    click.option("--yes", is_flag=True, help="Do it without asking; needed where there is no terminal."),
)
"""Gives a command an id, or the filters of a list in its place, and --yes."""


async def id_of(store: Store, target: str) -> str:
    """The id under which the audit log names a run that is given by its id or run id; else `target` itself."""
    with suppress(UnknownRun):
        return (await store.get(target)).id
    with suppress(UnknownRun, ValueError):
        return (await store.get_run(RunId(target))).id
    return target


def ask_run(common: CommonOptions, id: str, work: Callable[[Handle[Any]], Awaitable[R]], *, exact: bool = False) -> R:
    """The result of work with the run of an id or run id."""

    async def ask(client: Batuta) -> R:
        return await work(await find_run(client, id, exact=exact))

    return common.ask(ask)


async def find_run(
    client: Batuta, id: str, code: Workflow[..., Any] | Job[..., Any] | None = None, *, exact: bool = False
) -> Handle[Any]:
    """The last run of the id or, if there is none, the run of that run id. `exact`: only the latter."""
    if exact:
        return await client.get_run(id, code)
    try:
        return await client.get(id, code)
    except UnknownRun:
        with suppress(UnknownRun, InvalidInput):
            return await client.get_run(id, code)
        raise


def given_filters(where: dict[str, Any]) -> dict[str, Any]:
    """The given FILTERS, as arguments of `client.list`. Raises InvalidInput for an empty one."""
    tags = inputs.tags(where.get("tags") or ())
    found = inputs.filters({name: value for name, value in where.items() if name != "tags"})
    longer = found.pop("older_than", None)
    if "tries" in found:
        found["retrying"] = found.pop("tries")
    renamed = {"name": "workflow", "since": "created_after", "until": "created_before"}
    if longer is not None:
        until = inputs.ago(f"{longer}s", "--older-than")
        found["until"] = min(filter(None, (found.get("until"), until)))
    return {renamed.get(name, name): value for name, value in found.items()} | ({"tags": tags} if tags else {})


def read_page(common: CommonOptions, where: dict[str, Any]) -> RunPage:
    """The page of runs that these options ask for."""
    paging = {"cursor": where.pop("cursor"), "limit": where.pop("limit")}
    return common.ask(lambda client: client.list(**given_filters(where), **paging))


def show_run(common: CommonOptions, run: Description, more: dict[str, Any], what: str) -> None:
    """Print one run, and the attempts of its activities that it keeps."""
    common.show({**msgspec.to_builtins(run), **more}, lambda: output.tables.run_view(run, more, what))


def show_count(common: CommonOptions, where: dict[str, Any]) -> None:
    """Count the runs that match these filters, and print the number."""
    number = common.ask(lambda client: client.count(**given_filters(where)))
    common.tell({"count": number}, str(number))


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
    common.tell(document, f"{verb}: {counts.done} of {number_of(counts.matched, 'run')}{refused}")


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
        if not yes and not common.confirms(f"{verb} {number_of(count, 'run')}?"):
            matching = number_of(count, "run matches", "runs match")
            raise NotConfirmed(f"{matching}: add --yes to {verb} {'it' if count == 1 else 'them'}")
        return await do(selection)
