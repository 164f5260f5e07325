"""`batuta retention` and `batuta prune`: how long closed runs are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from batuta.cli.lazy import LazyGroup
from batuta.cli.place import Place, placed

if TYPE_CHECKING:
    from batuta.authoring.retention import Retention
    from batuta.client import Batuta

retention = LazyGroup(
    "retention",
    {
        "drop": ("batuta.cli.retention:drop_rule", "Take a rule away."),
        "list": ("batuta.cli.retention:list_rules", "All rules."),
        "set": ("batuta.cli.retention:set_rule", "Add a rule, or replace one."),
    },
    help="How long closed runs are kept: list, set and drop the rules.",
)

_workflow = click.option("--workflow", default="", metavar="NAME", help="Of this workflow or job.  [default: any]")
_state = click.option("--state", default="", metavar="STATE", help="That ended so, such as failed.  [default: any]")


@click.command("list")
@placed
def list_rules(place: Place) -> None:
    """All rules. The most specific one holds: of the workflow and state, of the workflow, of the state, of all."""
    _answer(place, place.ask(lambda client: client.retention.list()))


@click.command("set")
@click.argument("keep")
@_workflow
@_state
@placed
def set_rule(place: Place, keep: str, workflow: str, state: str) -> None:
    """Keep closed runs for KEEP, such as 30d, 12h or 90min (from a minute on), or forever, and delete them then.

    It replaces the rule of the same workflow and state. A worker that declares rules in its code sets them again when
    it starts.
    """

    async def work(client: Batuta) -> Sequence[Retention]:
        await client.retention.set(keep, workflow=workflow, state=state)
        return await client.retention.list()

    _answer(place, place.ask(work))


@click.command("drop")
@_workflow
@_state
@placed
def drop_rule(place: Place, workflow: str, state: str) -> None:
    """Take the rule of exactly this workflow and state away."""

    async def work(client: Batuta) -> tuple[bool, Sequence[Retention]]:
        return await client.retention.drop(workflow=workflow, state=state), await client.retention.list()

    found, rules = place.ask(work)
    if not found:
        click.echo("there was no such rule", err=True)
    _answer(place, rules)


@click.command()
@click.option("--dry-run", is_flag=True, help="Count only; nothing is deleted.")
@placed
def prune(place: Place, dry_run: bool) -> None:
    """Delete now what the rules no longer keep. Workers do it by themselves, in their time.

    It works in short steps, beside live workers, and may be stopped at any time.
    """
    deleted = place.ask(lambda client: client.retention.prune(dry_run=dry_run))
    word = "would be deleted" if dry_run else "were deleted"
    place.answer({"runs": deleted, "dry_run": dry_run}, lambda console: console.print(f"{deleted} runs {word}"))


def _answer(place: Place, rules: Sequence[Retention]) -> None:
    from batuta.authoring.retention import shown_age

    shown = [(rule.workflow, rule.state, shown_age(rule.seconds)) for rule in rules]

    def human(console: Any) -> None:
        from batuta.cli.tables import table

        made = table("workflow", "state", "keep")
        for workflow, state, keep in shown:
            made.add_row(workflow or "(any)", state or "(any)", keep)
        console.print(made)
        if not shown:
            click.echo("there are no rules: closed runs are kept for ever", err=True)

    documents = [{"workflow": w or None, "state": s or None, "keep": keep} for w, s, keep in shown]
    place.answer({"retention": documents}, human)
