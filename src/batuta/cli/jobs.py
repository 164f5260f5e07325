"""`batuta jobs`: enqueue them, look at them, cancel them and try them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from batuta.cli import output
from batuta.cli.common.lazy import LazyGroup
from batuta.cli.common.listing import FILTERS, read_page, show_count, show_run
from batuta.cli.common.options import CURSOR, LIMIT, REASON, with_options
from batuta.cli.common.redaction import revealing, say
from batuta.cli.common.run_lookup import find_run
from batuta.cli.common.target import CommonOptions, with_common_options
from batuta.errors import InvalidInput
from batuta.journal.records import RunKind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from batuta.authoring.backend import AttemptView, Description
    from batuta.authoring.client.handle import Handle
    from batuta.client import Batuta

jobs = LazyGroup(
    "jobs",
    {
        "attempts": ("batuta.cli.jobs:attempts", "List the attempts of a job, with their errors."),
        "cancel": ("batuta.cli.jobs:cancel", "Cancel a job."),
        "count": ("batuta.cli.jobs:count", "Count jobs."),
        "enqueue": ("batuta.cli.enqueue:enqueue", "Enqueue a job, by its name."),
        "list": ("batuta.cli.jobs:list_jobs", "List jobs, newest first."),
        "retry": ("batuta.cli.jobs:retry", "Try a parked or failed job again."),
        "show": ("batuta.cli.jobs:show", "Show one job: state, progress, attempts, result."),
    },
    help="Enqueue, list, show, cancel and retry jobs.",
)


@click.command("list")
@with_options(*FILTERS, LIMIT, CURSOR)
@revealing
@with_common_options
def list_jobs(common: CommonOptions, /, **where: Any) -> None:
    """List jobs, newest first."""
    page = read_page(common, {"kind": RunKind.JOB, **where})
    common.show(page, lambda: output.tables.jobs_table(page.runs), cursor=page.cursor)


@click.command()
@with_options(*FILTERS)
@with_common_options
def count(common: CommonOptions, /, **where: Any) -> None:
    """Count jobs that match the filters."""
    show_count(common, {"kind": RunKind.JOB, **where})


@click.command()
@click.argument("id")
@revealing
@with_common_options
def show(common: CommonOptions, id: str) -> None:
    """Show the job ID: the last one enqueued under that id."""
    from batuta.authoring.client.documents import job_document

    async def work(client: Batuta) -> tuple[Description, dict[str, Any]]:
        return await job_document(*await find_job(client, id))

    run, more = common.ask(work)
    show_run(common, run, more, "job")


@click.command()
@click.argument("id")
@revealing
@with_common_options
def attempts(common: CommonOptions, id: str) -> None:
    """List the recorded attempts of the job ID: when each began, and why it failed."""

    async def work(client: Batuta) -> tuple[Description, list[AttemptView]]:
        handle, run = await find_job(client, id)
        return run, await handle.attempts()

    run, found = common.ask(work)
    document = {"id": id, "run_id": str(run.run_id), "state": str(run.state), "attempts": found}
    common.show(document, lambda: output.tables.attempts_table(found, is_open=run.closed_at is None))


@click.command()
@click.argument("id")
@REASON
@with_common_options
def cancel(common: CommonOptions, id: str, reason: str) -> None:
    """Ask the job ID to end. A job that has not begun does not begin."""
    _request(common, id, "cancel", lambda job: job.cancel(reason), f"asked job {id} to end")


@click.command()
@click.argument("id")
@REASON
@with_common_options
def retry(common: CommonOptions, id: str, reason: str) -> None:
    """Try the job ID again, if it is parked (needs_code, poisoned) or has failed; one that waits for its next attempt
    is tried now."""
    _request(common, id, "retry", lambda job: job.retry(reason), f"job {id} will be tried again")


def _request(
    common: CommonOptions, id: str, what: str, ask: Callable[[Handle[Any]], Awaitable[object]], said: str
) -> None:
    async def work(client: Batuta) -> str:
        handle, _ = await find_job(client, id)
        await ask(handle)
        return str(handle.run_id)

    common.answer({"id": id, "run_id": common.ask(work), "requested": what}, lambda _: say(said))


async def find_job(client: Batuta, id: str) -> tuple[Handle[Any], Description]:
    """The job of that id. Raises UnknownRun; InvalidInput when it is a run of another kind."""
    handle = await find_run(client, id)
    run = await handle.describe()
    if run.kind is not RunKind.JOB:
        raise InvalidInput(f"run {id!r} is no job but of kind {run.kind}: use `batuta runs`")
    return handle, run
