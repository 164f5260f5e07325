"""`batuta runs fork` and `reset`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import click

from batuta.cli import inputs
from batuta.cli.place import Place, placed
from batuta.errors import InvalidInput

if TYPE_CHECKING:
    from batuta.authoring.handle import Handle

F = TypeVar("F", bound=Callable[..., Any])


def _edits(command: F) -> F:
    """The options that say what is different in the new run."""
    several: list[Any] = [
        click.option(
            "--input",
            "inputs_",
            metavar="CALL=JSON",
            multiple=True,
            help="Execute a pending call, by the number of its command, with these arguments (an array).",
        ),
        click.option(
            "--output",
            "outputs",
            metavar="CALL=JSON",
            multiple=True,
            help="Give a call this result; it is not executed (again).",
        ),
        click.option("--args", "args_", metavar="JSON", help="Begin anew with these arguments of the run (an array)."),
        click.option("--app", metavar="MODULE[:ATTR]", help="The code that edits must fit: as for a worker."),
        click.option("--reason", default="", help="Kept in the journal and in the audit log."),
    ]
    for option in reversed(several):
        command = option(command)
    return command


@click.command()
@click.argument("id")
@click.argument("new_id", metavar="NEW_ID")
@click.option("--at", type=int, metavar="N", help="The last entry to keep; -1: none.  [default: where the edits are]")
@_edits
@placed
def fork(place: Place, /, id: str, new_id: str, at: int | None, app: str | None, reason: str, **edits: Any) -> None:
    """Begin the run NEW_ID with what the run ID has done so far, or up to an entry; that one is left as it is.

    `batuta runs journal ID` shows the entries, and the numbers of the calls.
    """
    given = _read(edits)
    made = asyncio.run(_with_code(place, id, app, lambda one: one.fork(new_id, at=at, reason=reason, **given)))
    document = {"id": new_id, "run_id": str(made.run_id), "forked_from": id}
    place.answer(document, lambda _: click.echo(f"forked run {id} as {new_id}"))


@click.command()
@click.argument("id")
@click.option("--to", type=int, required=True, metavar="N", help="The last entry to keep; -1: none.")
@_edits
@placed
def reset(place: Place, /, id: str, to: int, app: str | None, reason: str, **edits: Any) -> None:
    """Let the run ID go on from after an entry of its journal, as another run under the same id.

    One that is open is terminated. What was called before that entry and has its answer keeps it.
    """
    given = _read(edits)

    async def work(handle: Handle[Any]) -> Handle[Any]:
        await handle.reset(to, reason=reason, **given)
        return handle

    made = asyncio.run(_with_code(place, id, app, work))
    document = {"id": id, "run_id": str(made.run_id), "reset_to": to}
    place.answer(document, lambda _: click.echo(f"run {id} goes on from after entry {to}"))


async def _with_code(place: Place, id: str, app: str | None, work: Callable[[Handle[Any]], Any]) -> Handle[Any]:
    from batuta.cli.loading import load_app

    async with AsyncExitStack() as stack:
        code = None if app is None else await load_app(app, stack)
        client = await stack.enter_async_context(place.client())
        handle: Handle[Any] = await client.get(id)
        if code is not None:
            run = await handle.describe()
            named: list[Any] = [
                one for one in (*code.workflows, *code.jobs) if getattr(one, "name", None) == run.workflow
            ]
            if not named:
                raise InvalidInput(f"{app!r} has no {run.kind} {run.workflow!r}, which the run is of")
            right = [one for one in named if getattr(one, "version", "") == run.version]
            handle = await client.get(id, (right or named)[-1])
        made: Handle[Any] = await work(handle)
        return made


def _read(edits: dict[str, Any]) -> dict[str, Any]:
    args = edits["args_"]
    return {
        "input": _by_call(edits["inputs_"], "--input"),
        "output": _by_call(edits["outputs"], "--output"),
        "args": None if args is None else inputs.read_json(args, "--args"),
    }


def _by_call(pairs: Sequence[str], option: str) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for pair in pairs:
        call, equals, text = pair.partition("=")
        if not equals or not call.isdecimal():
            raise InvalidInput(f"{option} {pair!r} must be CALL=JSON, such as 3='\"text\"'")
        found[int(call)] = inputs.read_json(text, f"{option} {call}")
    return found
