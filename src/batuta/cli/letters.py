"""`batuta letters`: look at dead letters, reprocess and discard them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from batuta.cli import inputs
from batuta.cli.lazy import LazyGroup
from batuta.cli.place import Place, placed
from batuta.cli.redacting import revealing
from batuta.cli.selecting import confirmed
from batuta.errors import InvalidInput, MatchesEverything, NotConfirmed, NothingMatches
from batuta.journal.letters import LetterReason, LetterState
from batuta.journal.records import RunKind

if TYPE_CHECKING:
    from batuta.authoring.deadletters import DeadLetter, Reprocessed
    from batuta.client import Batuta

letters = LazyGroup(
    "letters",
    {
        "discard": ("batuta.cli.letters:discard", "Close the matter without doing anything, with a reason."),
        "groups": ("batuta.cli.letters:groups", "How many there are of each error."),
        "list": ("batuta.cli.letters:list_letters", "Dead letters, newest first."),
        "reprocess": ("batuta.cli.letters:reprocess", "Begin anew what was given up, one or many."),
        "show": ("batuta.cli.letters:show", "One dead letter."),
    },
    help="List, group, show, reprocess and discard dead letters: what was given up, and waits for a person.",
)

F = TypeVar("F", bound=Callable[..., Any])

_WHICH = (
    click.option("--fingerprint", metavar="TEXT", help="Of one group."),
    click.option("--reason", "why", type=click.Choice([str(one) for one in LetterReason]), help="Why it was given up."),
    click.option("--name", metavar="NAME", help="Of the job or workflow."),
    click.option("--kind", type=click.Choice([str(RunKind.JOB), str(RunKind.WORKFLOW)])),
    click.option("--queue", "-q", metavar="NAME"),
    click.option("--key", metavar="TEXT"),
    click.option("--error", metavar="CLASS"),
    click.option("--activity", metavar="NAME"),
    click.option("--id-prefix", metavar="TEXT"),
    click.option("--after", metavar="TIME", help="Given up after then; ISO 8601."),
    click.option("--before", metavar="TIME", help="Given up before then; ISO 8601."),
)
_PAGE = (
    click.option("--state", type=click.Choice([*(str(state) for state in LetterState), "any"]), default="open"),
    click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True),
    click.option("--cursor", metavar="TEXT", help="Of the page before: gives the next one."),
)
_BULK = (
    click.argument("ids", nargs=-1, metavar="[ID]..."),
    click.option("--all", "everything", is_flag=True, help="All that are open."),
    click.option("--dry-run", is_flag=True, help="Only count."),
    click.option("--yes", is_flag=True, help="Do it to all that match; without it they are only counted."),
)


def _with(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.command("list")
@_with(*_WHICH, *_PAGE)
@revealing
@placed
def list_letters(place: Place, /, limit: int, cursor: str | None, **where: Any) -> None:
    """Dead letters, newest first."""
    chosen = _filters(where)
    page = asyncio.run(_ask(place, lambda client: client.letters.list(cursor=cursor, limit=limit, **chosen)))

    def human(console: Any) -> None:
        from batuta.cli.tables import letters_table

        console.print(letters_table(page.letters))
        _more(page.cursor)

    place.answer(page, human)


@click.command()
@_with(*_WHICH, *_PAGE)
@revealing
@placed
def groups(place: Place, /, limit: int, cursor: str | None, **where: Any) -> None:
    """How many dead letters there are of each error, those with the newest first."""
    chosen = _filters(where)
    page = asyncio.run(_ask(place, lambda client: client.letters.groups(cursor=cursor, limit=limit, **chosen)))

    def human(console: Any) -> None:
        from batuta.cli.tables import letter_groups_table

        console.print(letter_groups_table(page.groups))
        _more(page.cursor)

    place.answer(page, human)


@click.command()
@click.argument("id")
@revealing
@placed
def show(place: Place, id: str) -> None:
    """The dead letter ID: a run id, or the id of a run (the newest one of it)."""
    letter: DeadLetter = asyncio.run(_ask(place, lambda client: client.letters.get(id)))

    def human(console: Any) -> None:
        from batuta.cli.tables import letter_table

        console.print(letter_table(letter))

    place.answer(letter, human)


@click.command()
@_with(*_BULK)
@click.option(
    "--mode",
    type=click.Choice(["failed_step", "start"]),
    default="failed_step",
    show_default=True,
    help="Keep what was done and try the failed activity again, with the same key; or begin at the start.",
)
@click.option(
    "--input", "arguments", metavar="JSON", help="A list of other arguments: of the failed activity, or of the start."
)
@click.option("--app", metavar="MODULE[:ATTR]", help="The code that --input must fit.")
@click.option("--rate", type=float, metavar="N", help="So many a second.")
@click.option("--note", default="", help="Why; kept in the audit log.")
@_with(*_WHICH)
@placed
def reprocess(place: Place, /, ids: tuple[str, ...], **given: Any) -> None:
    """Begin anew what was given up: those with these IDs, or all that match the filters.

    Each is reprocessed once, by a run that follows it under its id, however often this is interrupted and called again.
    """
    dry_run = given["dry_run"]
    done = asyncio.run(_reprocess(place, ids, given))
    place.answer(done, lambda _: click.echo(_said(done, dry_run=dry_run)))


@click.command()
@_with(*_BULK)
@click.option("--note", required=True, help="Why; kept with it, and in the audit log.")
@_with(*_WHICH)
@placed
def discard(place: Place, /, ids: tuple[str, ...], **given: Any) -> None:
    """Close the matter without doing anything: those with these IDs, or all that match the filters."""
    dry_run = given["dry_run"]
    count = asyncio.run(_discard(place, ids, given))
    said = f"{count} would be discarded" if dry_run else f"discarded {count}"
    place.answer({"discarded": 0 if dry_run else count, "matched": count}, lambda _: click.echo(said))


# -- carrying it out


async def _ask(place: Place, work: Callable[[Batuta], Any]) -> Any:
    async with place.client() as client:
        return await work(client)


async def _reprocess(place: Place, ids: tuple[str, ...], given: dict[str, Any]) -> Reprocessed:
    text = given.pop("arguments")
    how = {"mode": given.pop("mode"), "rate": given.pop("rate"), "reason": given.pop("note")}
    how["input"] = None if text is None else inputs.read_json(text, "--input")
    app, dry_run = given.pop("app"), given["dry_run"]
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(place.client())
        if how["input"] is not None and app is not None:
            how["code"] = await _code_of(client, stack, app, ids, given)
        if ids:
            return await client.letters.reprocess(_alone_or_all(ids, given), dry_run=dry_run, **how)
        where, everything = await _confirmed(place, client, given, "reprocess")
        return await client.letters.reprocess(dry_run=dry_run, everything=everything, **how, **where)


async def _discard(place: Place, ids: tuple[str, ...], given: dict[str, Any]) -> int:
    note, dry_run = given.pop("note"), given["dry_run"]
    async with place.client() as client:
        if ids:
            return await client.letters.discard(_alone_or_all(ids, given), reason=note, dry_run=dry_run)
        where, everything = await _confirmed(place, client, given, "discard")
        return await client.letters.discard(reason=note, dry_run=dry_run, everything=everything, **where)


def _alone_or_all(ids: tuple[str, ...], given: dict[str, Any]) -> Any:
    flags = {"dry_run", "yes", "everything"}
    if given["everything"] or inputs.filters({name: given[name] for name in given.keys() - flags}):
        raise InvalidInput("give IDs or filters, not both")
    return ids[0] if len(ids) == 1 else list(ids)


async def _confirmed(place: Place, client: Batuta, given: dict[str, Any], verb: str) -> tuple[dict[str, Any], bool]:
    """The filters, if something matches and it is meant. Those that come while it is done are not among them."""
    dry_run, yes, everything = given.pop("dry_run"), given.pop("yes"), given.pop("everything")
    where = _filters(given)
    if not where and not everything:
        raise MatchesEverything(f"nothing says which dead letters to {verb}: give IDs, or filters, or --all")
    count = await client.letters.count(**where)
    if not count:
        raise NothingMatches(f"no open dead letter matches: there is nothing to {verb}")
    if not (dry_run or yes or confirmed(f"{verb} {count:,} dead letters?", place)):
        raise NotConfirmed(f"{count:,} dead letters match: say --yes to {verb} them, or --dry-run")
    if not dry_run and "before" not in where:
        newest = (await client.letters.list(limit=1, **where)).letters
        if newest:
            where["before"] = newest[0].at + timedelta(milliseconds=1)
            click.echo(
                f"{count:,} dead letters; to go on if this is cut off: --before {where['before'].isoformat()}", err=True
            )
    return where, everything


async def _code_of(
    client: Batuta, stack: AsyncExitStack, target: str, ids: tuple[str, ...], given: dict[str, Any]
) -> Any:
    """The job or workflow of the name that is meant."""
    from batuta.authoring.definitions import activities_of
    from batuta.cli.loading import load_app

    app = await load_app(target, stack)
    name = (await client.letters.get(ids[0])).name if ids else given.get("name")
    if name is None:
        raise InvalidInput("--input is for one job or workflow: give an ID or --name")
    known: list[Any] = [*app.workflows, *(one for thing in app.jobs for one in activities_of(thing))]
    for definition in known:
        if definition.name == name:
            return definition
    raise InvalidInput(f"{target} has no job or workflow {name!r}")


def _filters(where: dict[str, Any]) -> dict[str, Any]:
    found = inputs.filters(where)
    if "why" in found:
        found["reason"] = found.pop("why")
    for option in ("after", "before"):
        if option in found:
            found[option] = inputs.moment(found[option], f"--{option}")
    return found


def _more(cursor: str | None) -> None:
    if cursor is not None:
        click.echo(f"there are more: --cursor {cursor}", err=True)


def _said(done: Reprocessed, *, dry_run: bool) -> str:
    if dry_run:
        return f"{done.matched:,} would be reprocessed"
    more = [f"{count:,} refused ({name})" for name, count in done.refused.items()]
    more += [f"{done.resolved:,} were resolved by others"] if done.resolved else []
    return ", ".join([f"reprocessed {done.reprocessed:,} of {done.matched:,}", *more])
