"""`batuta dead-letters`: look at dead letters, reprocess and discard them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
import msgspec

from batuta.authoring.client.dead_letters import Reprocessed
from batuta.authoring.definitions import activities_of
from batuta.cli import output
from batuta.cli.common import inputs
from batuta.cli.common.app_loading import load_app
from batuta.cli.common.lazy import LazyGroup
from batuta.cli.common.options import (
    CURSOR,
    LIMIT,
    NAME,
    REASON,
    SINCE,
    UNTIL,
    CommonOptions,
    app_option,
    with_common_options,
    with_options,
)
from batuta.cli.common.redaction import revealing, say
from batuta.errors import (
    InvalidInput,
    MatchesEverything,
    NotConfirmed,
    NothingMatches,
    PayloadSealed,
    UnknownRun,
)
from batuta.journal.dead_letters import DeadLetter, LetterState
from batuta.journal.records import LetterReason, RunKind
from batuta.journal.tracebacks import traceback_of
from batuta.printable import number_of

if TYPE_CHECKING:
    from batuta.client import Batuta

dead_letters = LazyGroup(
    "dead-letters",
    {
        "count": ("batuta.cli.dead_letters:count", "Count dead letters."),
        "discard": ("batuta.cli.dead_letters:discard", "Resolve dead letters without a new run, with a reason."),
        "groups": ("batuta.cli.dead_letters:groups", "Count dead letters by error."),
        "list": ("batuta.cli.dead_letters:list_letters", "List dead letters, newest first."),
        "reprocess": ("batuta.cli.dead_letters:reprocess", "Start failed work again, one or many."),
        "show": ("batuta.cli.dead_letters:show", "Show one dead letter."),
    },
    help="List, group, show, reprocess and discard dead letters: failed work that waits for a person.",
)

_WHICH = (
    click.option("--fingerprint", metavar="TEXT", help="The fingerprint of a group."),
    click.option("--cause", type=click.Choice([str(one) for one in LetterReason]), help="Why it failed."),
    NAME,
    click.option("--kind", type=click.Choice([str(RunKind.JOB), str(RunKind.WORKFLOW)])),
    click.option("--queue", "-q", metavar="NAME", help="The name of the queue."),
    click.option("--key", metavar="TEXT", help="Only runs with this key."),
    click.option("--error", metavar="CLASS", help="The class of the error."),
    click.option("--activity", metavar="NAME", help="The activity that failed."),
    click.option("--id-prefix", metavar="TEXT", help="Only ids with this prefix."),
    SINCE,
    UNTIL,
)
_STATE = click.option(
    "--state",
    type=click.Choice([*(str(state) for state in LetterState), "any"]),
    default=str(LetterState.OPEN),
    show_default=True,
)
_BULK = (
    click.argument("ids", nargs=-1, metavar="[ID]..."),
    click.option("--all", "everything", is_flag=True, help="All open dead letters."),
    click.option("--dry-run", is_flag=True, help="Only count."),
    click.option("--yes", is_flag=True, help="Do it without asking; needed where there is no terminal."),
)


@click.command("list")
@with_options(*_WHICH, _STATE, LIMIT, CURSOR)
@revealing
@with_common_options
def list_letters(common: CommonOptions, /, limit: int, cursor: str | None, **where: Any) -> None:
    """List dead letters, newest first."""
    chosen = _filters(where)
    page = common.ask(lambda client: client.dead_letters.list(cursor=cursor, limit=limit, **chosen))
    common.show(page, lambda: output.tables.letters_table(page.letters), cursor=page.cursor)


@click.command()
@with_options(*_WHICH, _STATE, LIMIT, CURSOR)
@revealing
@with_common_options
def groups(common: CommonOptions, /, limit: int, cursor: str | None, **where: Any) -> None:
    """Count dead letters by error, the group with the newest one first."""
    chosen = _filters(where)
    page = common.ask(lambda client: client.dead_letters.groups(cursor=cursor, limit=limit, **chosen))
    common.show(page, lambda: output.tables.letter_groups_table(page.groups), cursor=page.cursor)


@click.command()
@with_options(*_WHICH, _STATE)
@with_common_options
def count(common: CommonOptions, /, **where: Any) -> None:
    """Count dead letters that match the filters."""
    chosen = _filters(where)
    number = common.ask(lambda client: client.dead_letters.count(**chosen))
    common.tell({"count": number}, str(number))


@click.command()
@click.argument("id")
@revealing
@with_common_options
def show(common: CommonOptions, id: str) -> None:
    """Show the dead letter ID: a run id, or the id of a run (its newest dead letter)."""
    letter, traceback = common.ask(lambda client: _one(client, id))
    document = {**msgspec.to_builtins(letter), "traceback": traceback}
    common.show(document, lambda: output.tables.letter_table(letter, traceback))


async def _one(client: Batuta, id: str) -> tuple[DeadLetter, str]:
    """The letter, and the traceback that its run has kept."""
    letter = await client.dead_letters.get(id)
    try:
        lines = await (await client.get_run(letter.run_id)).journal()
    except (UnknownRun, PayloadSealed):
        return letter, ""
    errors = [command.error for command in lines[-1].body.commands[-1:] if command.error] if lines else []
    return letter, "".join(map(traceback_of, errors))


@click.command()
@with_options(*_BULK)
@click.option(
    "--mode",
    type=click.Choice(["failed_step", "start"]),
    default="failed_step",
    show_default=True,
    help="failed_step: keep finished steps and retry the failed activity with the same key; start: begin at the start.",
)
@click.option(
    "--input",
    "arguments",
    metavar="JSON",
    help="New arguments, as a list: of the failed activity, or with --mode start of the run.",
)
@app_option("Its code, to check --input and to find the steps that can be kept.")
@click.option("--rate", type=float, metavar="N", help="The most to start per second.")
@REASON
@with_options(*_WHICH)
@with_common_options
def reprocess(common: CommonOptions, /, ids: tuple[str, ...], **given: Any) -> None:
    """Start failed work again: the dead letters with these IDs, or all that match the filters.

    Each is reprocessed once, by a new run under its id, however often you interrupt and repeat this command.
    """
    dry_run = given["dry_run"]
    done = asyncio.run(_reprocess(common, ids, given))
    common.tell(done, _said(done, dry_run=dry_run))


@click.command()
@with_options(*_BULK)
@click.option(
    "--reason", required=True, metavar="TEXT", help="Why you do it; kept with it and recorded in the audit log."
)
@with_options(*_WHICH)
@with_common_options
def discard(common: CommonOptions, /, ids: tuple[str, ...], **given: Any) -> None:
    """Resolve dead letters without a new run: those with these IDs, or all that match the filters."""
    dry_run = given["dry_run"]
    count = asyncio.run(_discard(common, ids, given))
    said = f"{count} would be discarded" if dry_run else f"discarded {count}"
    common.tell({"discarded": 0 if dry_run else count, "matched": count}, said)


# -- carrying it out


async def _reprocess(common: CommonOptions, ids: tuple[str, ...], given: dict[str, Any]) -> Reprocessed:
    text = given.pop("arguments")
    how = {"mode": given.pop("mode"), "rate": given.pop("rate"), "reason": given.pop("reason")}
    how["input"] = None if text is None else inputs.read_json(text, "--input")
    app, dry_run = given.pop("app"), given["dry_run"]
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(common.client())
        if app is not None:
            how["code"] = await _code_of(client, stack, app, ids, given)
        if ids:
            return await client.dead_letters.reprocess(_alone_or_all(ids, given), dry_run=dry_run, **how)
        where, everything = await _confirmed(common, client, given, "reprocess")
        return await client.dead_letters.reprocess(dry_run=dry_run, everything=everything, **how, **where)


async def _discard(common: CommonOptions, ids: tuple[str, ...], given: dict[str, Any]) -> int:
    reason, dry_run = given.pop("reason"), given["dry_run"]
    async with common.client() as client:
        if ids:
            return await client.dead_letters.discard(_alone_or_all(ids, given), reason=reason, dry_run=dry_run)
        where, everything = await _confirmed(common, client, given, "discard")
        return await client.dead_letters.discard(reason=reason, dry_run=dry_run, everything=everything, **where)


def _alone_or_all(ids: tuple[str, ...], given: dict[str, Any]) -> Any:
    flags = {"dry_run", "yes", "everything"}
    if given["everything"] or inputs.filters({name: given[name] for name in given.keys() - flags}):
        raise InvalidInput("give IDs or filters, not both")
    return ids[0] if len(ids) == 1 else list(ids)


async def _confirmed(
    common: CommonOptions, client: Batuta, given: dict[str, Any], verb: str
) -> tuple[dict[str, Any], bool]:
    """The filters, if something matches and it is confirmed. Dead letters that arrive meanwhile are not included."""
    dry_run, yes, everything = given.pop("dry_run"), given.pop("yes"), given.pop("everything")
    where = _filters(given)
    if not where and not everything:
        raise MatchesEverything(f"no dead letters are selected to {verb}: give IDs, or filters, or --all")
    count = await client.dead_letters.count(**where)
    if not count:
        raise NothingMatches(f"no open dead letter matches: nothing to {verb}")
    letters = number_of(count, "dead letter")
    if not (dry_run or yes or common.confirms(f"{verb} {letters}?")):
        matching = number_of(count, "dead letter matches", "dead letters match")
        raise NotConfirmed(f"{matching}: add --yes to {verb} {'it' if count == 1 else 'them'}, or --dry-run to count")
    if not dry_run and "before" not in where:
        newest = (await client.dead_letters.list(limit=1, **where)).letters
        if newest:
            where["before"] = newest[0].at + timedelta(milliseconds=1)
            say(
                f"{letters}; if this is interrupted, go on with --until {where['before'].isoformat()}",
                err=True,
            )
    return where, everything


async def _code_of(
    client: Batuta, stack: AsyncExitStack, target: str, ids: tuple[str, ...], given: dict[str, Any]
) -> Any:
    """The job or workflow of the name that is meant."""
    app = await load_app(target, stack)
    name = (await client.dead_letters.get(ids[0])).name if ids else given.get("name")
    if name is None:
        raise InvalidInput("--app needs one job or workflow: give an ID or --name")
    known: list[Any] = [*app.workflows, *(one for thing in app.jobs for one in activities_of(thing))]
    for definition in known:
        if definition.name == name:
            return definition
    raise InvalidInput(f"{target} has no job or workflow {name!r}")


def _filters(where: dict[str, Any]) -> dict[str, Any]:
    found = inputs.filters(where)
    renamed = {"cause": "reason", "since": "after", "until": "before"}
    return {renamed.get(name, name): value for name, value in found.items()}


def _said(done: Reprocessed, *, dry_run: bool) -> str:
    if dry_run:
        return f"{done.matched:,} would be reprocessed"
    more = [f"{count:,} refused ({name})" for name, count in done.refused.items()]
    more += [f"{done.resolved:,} were resolved by others"] if done.resolved else []
    return ", ".join([f"reprocessed {done.reprocessed:,} of {done.matched:,}", *more])
