"""`batuta jobs`: enqueue them, look at them, cancel them and try them again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from batuta.cli.lazy import LazyGroup
from batuta.cli.listing import filtered, show_page
from batuta.cli.place import Place, placed
from batuta.cli.redacting import revealing, say
from batuta.errors import InvalidInput, RunNotCompleted
from batuta.journal.records import RunKind
from batuta.journal.states import CLOSED

if TYPE_CHECKING:
    from batuta.authoring.backend import AttemptView, Description
    from batuta.authoring.handle import Handle
    from batuta.client import Batuta

jobs = LazyGroup(
    "jobs",
    {
        "attempts": ("batuta.cli.jobs:attempts", "Every attempt of a job that was noted, with its error."),
        "cancel": ("batuta.cli.jobs:cancel", "Ask a job to end, or not to begin."),
        "enqueue": ("batuta.cli.enqueueing:enqueue", "Have a worker execute a job, by its name."),
        "list": ("batuta.cli.jobs:list_jobs", "Jobs, newest first."),
        "retry": ("batuta.cli.jobs:retry", "Let a parked or failed job be tried again."),
        "show": ("batuta.cli.jobs:show", "One job: state, progress, attempts, result."),
    },
    help="Enqueue, list, show, cancel and retry jobs.",
)


@click.command("list")
@click.option("--job", metavar="NAME")
@click.option("--key", metavar="TEXT", help="What its queue's limits per key count by.")
@filtered
@revealing
@placed
def list_jobs(place: Place, /, tags: tuple[str, ...], **where: Any) -> None:
    """Jobs, newest first."""
    show_page(place, "jobs_table", tags, {"kind": RunKind.JOB, **where})


@click.command()
@click.argument("id")
@revealing
@placed
def show(place: Place, id: str) -> None:
    """The job ID: the last one enqueued under that id."""
    run, more = asyncio.run(_show(place, id))

    def human(console: Any) -> None:
        from batuta.cli.tables import attempts_table, run_table

        console.print(run_table(run, more, "job"))
        if run.attempts:
            console.print(attempts_table(run.attempts, is_open=run.closed_at is None))

    import msgspec

    place.answer({**msgspec.to_builtins(run), **more}, human)


async def _show(place: Place, id: str) -> tuple[Description, dict[str, Any]]:
    """The job with all its attempts; what it has said of its progress, and what it ended with."""
    async with place.client() as client:
        handle, run = await find_job(client, id)
        run.attempts = await handle.attempts()
        more: dict[str, Any] = {}
        if (progress := await handle.progress()) is not None:
            more["progress"] = progress
        if run.state in CLOSED:
            try:
                more["result"] = await handle.result()
            except RunNotCompleted as error:
                more["error"] = str(error)
        return run, more


@click.command()
@click.argument("id")
@revealing
@placed
def attempts(place: Place, id: str) -> None:
    """Every attempt of the job ID that has begun and was noted: when, and why it failed."""
    run, found = asyncio.run(_attempts(place, id))

    def human(console: Any) -> None:
        from batuta.cli.tables import attempts_table

        console.print(attempts_table(found, is_open=run.closed_at is None))

    place.answer({"id": id, "run_id": str(run.run_id), "state": str(run.state), "attempts": found}, human)


async def _attempts(place: Place, id: str) -> tuple[Description, list[AttemptView]]:
    async with place.client() as client:
        handle, run = await find_job(client, id)
        return run, await handle.attempts()


@click.command()
@click.argument("id")
@click.option("--reason", default="", help="Kept in the journal.")
@placed
def cancel(place: Place, id: str, reason: str) -> None:
    """Ask the job ID to end. One that nobody has begun does not begin."""
    run_id = asyncio.run(_cancel(place, id, reason))
    document = {"id": id, "run_id": run_id, "requested": "cancel"}
    place.answer(document, lambda _: say(f"asked job {id} to end"))


async def _cancel(place: Place, id: str, reason: str) -> str:
    async with place.client() as client:
        handle, _ = await find_job(client, id)
        await handle.cancel(reason)
        return str(handle.run_id)


@click.command()
@click.argument("id")
@placed
def retry(place: Place, id: str) -> None:
    """Let the job ID be tried again: one that is parked (needs_code, poisoned), or that has failed."""
    run_id = asyncio.run(_retry(place, id))
    document = {"id": id, "run_id": run_id, "requested": "retry"}
    place.answer(document, lambda _: say(f"job {id} will be tried again"))


async def _retry(place: Place, id: str) -> str:
    async with place.client() as client:
        handle, _ = await find_job(client, id)
        await handle.retry()
        return str(handle.run_id)


async def find_job(client: Batuta, id: str) -> tuple[Handle[Any], Description]:
    """The job of that id. Raises UnknownRun; InvalidInput when it is a run of another kind."""
    handle: Handle[Any] = await client.get(id)
    run = await handle.describe()
    if run.kind is not RunKind.JOB:
        raise InvalidInput(f"run {id!r} is no job but of kind {run.kind}: use `batuta runs`")
    return handle, run
