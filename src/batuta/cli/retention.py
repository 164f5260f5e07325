"""`batuta retention` and `batuta prune`: how long closed runs are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from batuta.authoring.client.documents import retention_document
from batuta.cli.common.lazy import LazyGroup
from batuta.cli.common.options import REASON, YES, CommonOptions, with_common_options
from batuta.cli.common.redaction import say
from batuta.durations import human_duration
from batuta.errors import NotConfirmed
from batuta.journal.retention import Retention
from batuta.printable import number_of

if TYPE_CHECKING:
    from batuta.client import Batuta

retention = LazyGroup(
    "retention",
    {
        "delete": ("batuta.cli.retention:delete_rule", "Delete a rule."),
        "list": ("batuta.cli.retention:list_rules", "All rules."),
        "set": ("batuta.cli.retention:set_rule", "Add a rule, or replace one."),
    },
    help="List, set and delete rules for how long closed runs are kept.",
)

_name = click.option("--name", default="", metavar="NAME", help="The name of a workflow or job.  [default: any]")
_state = click.option("--state", default="", metavar="STATE", help="A closed state, such as failed.  [default: any]")


@click.command("list")
@with_common_options
def list_rules(common: CommonOptions) -> None:
    """List all rules. The most specific one applies: workflow and state, then workflow, then state, then all."""
    _answer(common, common.ask(lambda client: client.retention.list()))


@click.command("set")
@click.argument("keep")
@_name
@_state
@REASON
@with_common_options
def set_rule(common: CommonOptions, keep: str, name: str, state: str, reason: str) -> None:
    """Keep closed runs for KEEP, such as 30d, 12h or 90min (at least a minute), or forever. Workers delete them after
    that.

    This replaces the rule of the same workflow and state. A worker that declares rules in its code sets them again when
    it starts.
    """
    _, rules = common.because(reason).ask_both(
        lambda client: client.retention.set(keep, workflow=name, state=state), lambda client: client.retention.list()
    )
    _answer(common, rules)


@click.command("delete")
@_name
@_state
@REASON
@with_common_options
def delete_rule(common: CommonOptions, name: str, state: str, reason: str) -> None:
    """Delete the rule of exactly this name and state."""
    found, rules = common.because(reason).ask_both(
        lambda client: client.retention.delete(workflow=name, state=state), lambda client: client.retention.list()
    )
    if not found:
        say("there was no such rule", err=True)
    _answer(common, rules)


@click.command()
@click.option("--dry-run", is_flag=True, help="Only count; delete nothing.")
@REASON
@YES
@with_common_options
def prune(common: CommonOptions, dry_run: bool, reason: str, yes: bool) -> None:
    """Delete runs whose retention is over, now. Workers also do it by themselves.

    It counts them first, and asks. It works in short steps, beside live workers, and you can stop it at any time.
    """
    count = common.because(reason).ask(lambda client: _prune(client, common, dry_run, yes))
    said = f"{number_of(count, 'run')} would be deleted"
    if not dry_run:
        said = number_of(count, "run was deleted", "runs were deleted")
    common.answer({"runs": count, "dry_run": dry_run}, lambda console: console.print(said))


async def _prune(client: Batuta, common: CommonOptions, dry_run: bool, yes: bool) -> int:
    if dry_run or yes:
        return await client.retention.prune(dry_run=dry_run)
    count = await client.retention.prune(dry_run=True)
    if not count:
        return 0
    runs = number_of(count, "run")
    if not common.confirms(f"delete {runs}?"):
        raise NotConfirmed(
            f"{runs} would be deleted: add --yes to delete {'it' if count == 1 else 'them'}, or --dry-run to count"
        )
    return await client.retention.prune(dry_run=False)


def _answer(common: CommonOptions, rules: Sequence[Retention]) -> None:
    def row(rule: Retention) -> tuple[str, ...]:
        keep = "forever" if rule.seconds is None else human_duration(rule.seconds)
        return rule.workflow or "(any)", rule.state or "(any)", keep

    none = "there are no rules: closed runs are kept for ever"
    common.show_rows(retention_document(rules), ("name", "state", "keep"), map(row, rules), none=none)
