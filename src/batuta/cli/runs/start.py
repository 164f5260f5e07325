"""`batuta runs start`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from batuta.authoring.client.documents import ended_with
from batuta.authoring.client.handle import Handle
from batuta.cli.common import inputs
from batuta.cli.common.lazy import FAILED, OK
from batuta.cli.common.options import CommonOptions, duration_option, with_common_options
from batuta.cli.common.redaction import revealing, say, shown_json
from batuta.errors import RunNotCompleted
from batuta.journal.records import IfExists
from batuta.journal.states import PARKED

if TYPE_CHECKING:
    from batuta.client import Batuta

_LOOK = 1.0
"""Seconds between two looks whether a run that is waited for has been parked."""


@click.command()
@click.argument("name")
@click.option(
    "--input",
    "-i",
    "text",
    metavar="JSON|@FILE|@-",
    help="The arguments, as an array; any other value is the only argument.",
)
@click.option("--id", "id", metavar="ID", help="Your id for the run.  [default: its run id]")
@click.option(
    "--if-exists",
    type=click.Choice([str(one) for one in IfExists]),
    help="What to do when the id is taken.  [default: return]",
)
@click.option("--queue", "-q", metavar="NAME", help="[default: default]")
@click.option("--priority", type=int, metavar="N", help="Higher goes first.  [default: 0]")
@duration_option("--delay", "Do not begin before this time has passed.")
@duration_option("--timeout", "Limit for the run.")
@duration_option("--execution-timeout", "Limit for the run and all runs that continue it.")
@click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="Repeatable.")
@click.option("--memo", metavar="JSON|@FILE", help="A small JSON value kept with the run.")
@click.option("--wait", is_flag=True, help="Wait until it ends; exit 1 unless it completes.")
@duration_option("--wait-timeout", "The longest wait.")
@revealing
@with_common_options
def start(
    common: CommonOptions,
    /,
    name: str,
    text: str | None,
    id: str | None,
    wait: bool,
    wait_timeout: float | None,
    **more: Any,
) -> None:
    """Start a run of the workflow NAME. It is durable when this returns. A worker that has NAME executes it."""
    arguments = inputs.arguments(text)
    options = inputs.run_options(more)
    begin_run(
        common,
        "workflow",
        name,
        lambda client: client.start(name, *arguments, id=id, **options),
        wait=wait,
        wait_timeout=wait_timeout,
    )


def begin_run(
    common: CommonOptions,
    kind: str,
    name: str,
    begin: Callable[[Batuta], Awaitable[Handle[Any]]],
    *,
    wait: bool,
    wait_timeout: float | None,
) -> None:
    """Begin a run of a workflow or a job, wait for its end if that is asked for, and answer. Exits as it ended."""
    seconds = wait_timeout if wait or wait_timeout is not None else 0.0

    async def work(client: Batuta) -> tuple[dict[str, Any], int]:
        handle = await begin(client)
        document = {"id": handle.id, "run_id": str(handle.run_id), kind: name, "is_new": handle.is_new}
        if seconds == 0.0:
            return {**document, **await _state_of(handle)}, OK
        return await _wait_for_end(handle, document, seconds)

    document, code = common.ask(work, migrate=True)
    common.answer(document, lambda _: _tell(document, "job" if kind == "job" else "run"))
    raise SystemExit(code)


def _tell(document: dict[str, Any], what: str) -> None:
    """For people: its state, and its result or error."""
    was_there = " (it was there before)" if document.get("is_new") is False else ""
    say(f"{what} {document['id']} is {document['state']}{was_there}")
    if "result" in document:
        click.echo(shown_json(document["result"]))
    if "error" in document:
        say(document["error"], err=True)
    if "traceback" in document:
        say(document["traceback"], err=True)
    if "reason" in document:
        say(document["reason"], err=True)


async def _state_of(handle: Handle[Any]) -> dict[str, Any]:
    """Its state, and why it waits or stands where the store can tell: a typing error in a name shows at once."""
    run = await handle.describe()
    return {"state": str(run.state), **({"reason": run.reason} if run.reason else {})}


async def _wait_for_end(
    handle: Handle[Any], document: dict[str, Any], seconds: float | None
) -> tuple[dict[str, Any], int]:
    """The document with its end, and the exit code. `seconds`: how long to wait; None is for ever."""
    result = asyncio.ensure_future(handle.result(seconds))
    while not (await asyncio.wait({result}, timeout=_LOOK))[0]:
        run = await handle.describe()
        if run.state in PARKED:
            result.cancel()
            note = f"the run is parked and not lost: {run.reason}"
            return {**document, "state": str(run.state), "error": note}, FAILED
    try:
        return {**document, "state": "completed", "result": result.result()}, OK
    except RunNotCompleted as error:
        return {**document, "state": error.state, **ended_with(error)}, FAILED
    except TimeoutError as error:
        state = str((await handle.describe()).state)
        return {**document, "state": state, "error": str(error)}, FAILED
