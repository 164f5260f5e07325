"""Shared by `batuta runs list` and `batuta jobs list`: filters, pages, and the answer."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from batuta.authoring.backend import Description, RunPage
from batuta.cli import output
from batuta.cli.common import inputs
from batuta.cli.common.inputs import POSITIVE
from batuta.cli.common.options import NAME, SINCE, UNTIL
from batuta.cli.common.redaction import say
from batuta.cli.common.target import CommonOptions
from batuta.journal.records import RunKind
from batuta.journal.states import RunState

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
    common.answer({"count": number}, lambda _: say(str(number)))
