"""`batuta jobs`: enqueue them, look at them, cancel them and try them again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from batuta.authoring.backend import AttemptView, Description
from batuta.authoring.client.documents import job_document
from batuta.authoring.client.handle import Handle
from batuta.cli import output
from batuta.cli.common import inputs
from batuta.cli.common.lazy import LazyGroup
from batuta.cli.common.options import (
    CURSOR,
    LIMIT,
    REASON,
    CommonOptions,
    duration_option,
    with_common_options,
    with_options,
)
from batuta.cli.common.redaction import revealing
from batuta.cli.common.runs import FILTERS, find_run, read_page, show_count, show_run
from batuta.cli.runs.start import begin_run
from batuta.errors import InvalidInput
from batuta.journal.records import IfExists, RunKind

if TYPE_CHECKING:
    from batuta.client import Batuta

jobs = LazyGroup(
    "jobs",
    {
        "attempts": ("batuta.cli.jobs:attempts", "List the attempts of a job, with their errors."),
        "cancel": ("batuta.cli.jobs:cancel", "Cancel a job."),
        "count": ("batuta.cli.jobs:count", "Count jobs."),
        "enqueue": ("batuta.cli.jobs:enqueue", "Enqueue a job, by its name."),
        "list": ("batuta.cli.jobs:list_jobs", "List jobs, newest first."),
        "retry": ("batuta.cli.jobs:retry", "Try a parked or failed job again."),
        "show": ("batuta.cli.jobs:show", "Show one job: state, progress, attempts, result."),
    },
    help="Enqueue, list, show, cancel and retry jobs.",
)


@click.command()
@click.argument("name")
@click.option(
    "--input",
    "-i",
    "text",
    metavar="JSON|@FILE|@-",
    help="The arguments, as an array; any other value is the only argument.",
)
@click.option("--id", "id", metavar="ID", help="Your id for the job.  [default: its run id]")
@click.option(
    "--if-exists", type=click.Choice([str(one) for one in IfExists]), help="With --id: what to do when the id is taken."
)
@click.option("--queue", "-q", metavar="NAME", help="[default: default]")
@click.option("--priority", type=int, metavar="N", help="Higher goes first.  [default: 0]")
@duration_option("--delay", "Do not begin before this time has passed.")
@click.option("--at", metavar="TIME", help="Do not begin before this time (ISO 8601).")
@click.option("--unique", metavar="KEY", help="Return the waiting or running job of this name and key, if any.")
@duration_option("--unique-for", "With --unique: also return a job enqueued within this time.")
@duration_option("--debounce", "With --unique: begin only after this time without another call.")
@duration_option("--debounce-limit", "With --debounce: the longest delay.")
@click.option("--key", metavar="TEXT", help="The key for limits per key and fairness of the queue.")
@duration_option("--expires", "Time out if no worker has taken it by then.")
@duration_option("--timeout", "Limit for one attempt.")
@duration_option("--total-timeout", "Limit for all attempts together.")
@duration_option("--heartbeat", "Fail an attempt without a heartbeat for this long.")
@click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="Repeatable.")
@click.option("--memo", metavar="JSON|@FILE", help="A small JSON value kept with the job.")
@click.option("--wait", is_flag=True, help="Wait until it ends; exit 1 unless it completes.")
@duration_option("--wait-timeout", "The longest wait.")
@revealing
@with_common_options
def enqueue(
    common: CommonOptions, /, name: str, text: str | None, wait: bool, wait_timeout: float | None, **more: Any
) -> None:
    """Enqueue the job NAME. It is durable when this returns.

    The worker uses the options of the job's definition (retry, timeout, ...). This command only knows the name, so give
    the queue, priority and expiry here.
    """
    more["at"] = inputs.moment(more["at"], "--at")
    arguments = inputs.arguments(text)
    options = inputs.run_options(more)
    begin_run(
        common,
        "job",
        name,
        lambda client: client.enqueue(name, *arguments, **options),
        wait=wait,
        wait_timeout=wait_timeout,
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

    common.tell({"id": id, "run_id": common.ask(work), "requested": what}, said)


async def find_job(client: Batuta, id: str) -> tuple[Handle[Any], Description]:
    """The job of that id. Raises UnknownRun; InvalidInput when it is a run of another kind."""
    handle = await find_run(client, id)
    run = await handle.describe()
    if run.kind is not RunKind.JOB:
        raise InvalidInput(f"run {id!r} is no job but of kind {run.kind}: use `batuta runs`")
    return handle, run
