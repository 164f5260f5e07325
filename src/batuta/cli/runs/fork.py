"""`batuta runs fork` and `reset`: one run by its id, or many by filters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import click

from batuta.app import App
from batuta.authoring.backend import Code
from batuta.authoring.client.bulk_operations import Counts, Selection
from batuta.authoring.client.forks import of_version
from batuta.authoring.client.handle import Handle
from batuta.cli.common import inputs
from batuta.cli.common.app_loading import load_app
from batuta.cli.common.options import CommonOptions, app_option, with_common_options, with_options
from batuta.cli.common.runs import apply, find_run, is_one, selecting
from batuta.errors import InvalidInput

_edits = with_options(
    click.option(
        "--input",
        "inputs_",
        metavar="CALL=JSON",
        multiple=True,
        help="Execute pending call number CALL with these arguments (an array).",
    ),
    click.option(
        "--output",
        "outputs",
        metavar="CALL=JSON",
        multiple=True,
        help="Give call number CALL this result, without executing it.",
    ),
    click.option("--args", "args_", metavar="JSON", help="Begin the run anew with these arguments (an array)."),
    app_option("The code, to check the edits."),
)
"""The edits of the new run."""


@click.command()
@selecting
@click.argument("new_id", metavar="NEW_ID", required=False)
@click.option("--at", type=int, metavar="N", help="The last entry to keep; -1: none.  [default: where the edits are]")
@_edits
@with_common_options
def fork(
    common: CommonOptions,
    /,
    id: str | None,
    new_id: str | None,
    reason: str,
    at: int | None,
    app: str | None,
    inputs_: tuple[str, ...],
    outputs: tuple[str, ...],
    args_: str | None,
    **which: Any,
) -> None:
    """Begin the run NEW_ID from the journal of the run ID, up to its end or an entry. The run ID does not change.

    `batuta runs journal ID` shows the entries, and the numbers of the calls. With filters instead of ID, all matching
    runs are forked, and NEW_ID must contain {id}: '{id}-again'.
    """
    given = _read(inputs_, outputs, args_) | {"at": at, "reason": reason}
    if new_id is None:  # filters stand in place of ID
        new_id, id = id, None
    if new_id is None:
        raise InvalidInput("give NEW_ID, the id of the fork; of many, with {id} in it")
    if not is_one(id, which) or id is None:
        _many(common, "fork", which, app, lambda some, code: some.fork(new_id, code=code, **given))
        return
    made = asyncio.run(_with_code(common, id, app, lambda one: one.fork(new_id, **given)))
    document = {"id": new_id, "run_id": str(made.run_id), "forked_from": id}
    common.tell(document, f"forked run {id} as {new_id}")


@click.command()
@selecting
@click.option("--to", type=int, required=True, metavar="N", help="The last entry to keep; -1: none.")
@_edits
@with_common_options
def reset(
    common: CommonOptions,
    /,
    id: str | None,
    reason: str,
    to: int,
    app: str | None,
    inputs_: tuple[str, ...],
    outputs: tuple[str, ...],
    args_: str | None,
    **which: Any,
) -> None:
    """Let the run ID, or all that match, go on from after an entry of its journal, as a new run under the same id.

    An open run is terminated. Calls before that entry keep their answers.
    """
    given = _read(inputs_, outputs, args_) | {"reason": reason}
    if not is_one(id, which) or id is None:
        _many(common, "reset", which, app, lambda some, code: some.reset(to, code=code, **given))
        return

    async def work(handle: Handle[Any]) -> Handle[Any]:
        await handle.reset(to, **given)
        return handle

    made = asyncio.run(_with_code(common, id, app, work))
    document = {"id": id, "run_id": str(made.run_id), "reset_to": to}
    common.tell(document, f"run {id} goes on from after entry {to}")


def _many(
    common: CommonOptions,
    verb: str,
    which: dict[str, Any],
    app: str | None,
    do: Callable[[Selection, Sequence[Code]], Awaitable[Counts]],
) -> None:
    name = which["name"]
    if app is not None and name is None:
        raise InvalidInput("--app needs one workflow or job: give its --name")

    async def work(selection: Selection) -> Counts:
        async with AsyncExitStack() as stack:
            code = () if app is None else _named(await load_app(app, stack), app, name)
            return await do(selection, code)

    apply(common, verb, which, work)


async def _with_code(
    common: CommonOptions, id: str, app: str | None, work: Callable[[Handle[Any]], Any]
) -> Handle[Any]:
    async with AsyncExitStack() as stack:
        code = None if app is None else await load_app(app, stack)
        client = await stack.enter_async_context(common.client())
        handle = await find_run(client, id)
        if code is not None:
            run = await handle.describe()
            handle = await find_run(client, id, of_version(_named(code, app, run.workflow), run.version))
        made: Handle[Any] = await work(handle)
        return made


def _named(code: App, app: str | None, name: str) -> list[Any]:
    found = [one for one in (*code.workflows, *code.jobs) if getattr(one, "name", None) == name]
    if not found:
        raise InvalidInput(f"{app!r} has no workflow or job {name!r}, which the run is of")
    return found


def _read(inputs_: Sequence[str], outputs: Sequence[str], args: str | None) -> dict[str, Any]:
    return {
        "input": _by_call(inputs_, "--input"),
        "output": _by_call(outputs, "--output"),
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
