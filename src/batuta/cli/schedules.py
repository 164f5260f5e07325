"""`batuta schedules`: make them, look at them, pause, trigger and backfill them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from batuta.authoring.client.calendar import When, cron, every, once
from batuta.authoring.client.schedules import Schedule
from batuta.cli import output
from batuta.cli.common import inputs
from batuta.cli.common.lazy import LazyGroup
from batuta.cli.common.options import LIMIT, REASON, CommonOptions, duration_option, with_common_options
from batuta.cli.common.redaction import revealing, say
from batuta.errors import InvalidSchedule
from batuta.printable import number_of

if TYPE_CHECKING:
    from batuta.client import Batuta

POLICIES = ("skip", "buffer", "allow", "cancel")

schedules = LazyGroup(
    "schedules",
    {
        "backfill": ("batuta.cli.schedules:backfill", "Begin a run for each slot of a time range."),
        "create": ("batuta.cli.schedules:create", "Create a schedule, or replace one."),
        "delete": ("batuta.cli.schedules:delete", "Delete a schedule; its runs go on."),
        "list": ("batuta.cli.schedules:list_schedules", "List schedules, by id."),
        "next": ("batuta.cli.schedules:next_times", "Show the next slots."),
        "pause": ("batuta.cli.schedules:pause", "Pause a schedule."),
        "resume": ("batuta.cli.schedules:resume", "Resume a schedule with its next slot."),
        "show": ("batuta.cli.schedules:show", "One schedule."),
        "trigger": ("batuta.cli.schedules:trigger", "Begin a run now."),
    },
    help="Create, list, show, pause, resume, trigger, backfill and delete schedules.",
)


@click.command("list")
@click.option("--cursor", default="", metavar="ID", help="The last id of the previous page.")
@LIMIT
@revealing
@with_common_options
def list_schedules(common: CommonOptions, cursor: str, limit: int) -> None:
    """List schedules, by id."""
    found = common.ask(lambda client: client.schedules.list(after=cursor, limit=limit))
    note = f"there may be more: --cursor {found[-1].id}" if len(found) == limit else ""
    common.show({"schedules": found}, lambda: output.tables.schedules_table(found), note=note)


@click.command()
@click.argument("id")
@revealing
@with_common_options
def show(common: CommonOptions, id: str) -> None:
    """Show the schedule ID."""
    view = common.ask(lambda client: client.schedules.get(id))
    common.show(view, lambda: output.tables.schedule_table(view))


@click.command()
@click.argument("id")
@click.argument("name")
@click.option("--cron", metavar="EXPRESSION", help="Five fields, such as '*/5 * * * *', or @daily and the like.")
@click.option("--zone", metavar="NAME", help="The time zone of --cron, as an IANA name.  [default: UTC]")
@duration_option("--every", "An interval of at least 1 second.")
@duration_option("--offset", "Shift the slots of --every by this time.")
@click.option("--once", metavar="TIME", help="A single time (ISO 8601; UTC if it has no zone).")
@click.option(
    "--input",
    "-i",
    "text",
    metavar="JSON|@FILE|@-",
    help="The arguments, as an array; any other value is the only argument.",
)
@click.option(
    "--overlap", metavar="|".join(POLICIES), help="What a slot does while the previous run is open.  [default: skip]"
)
@duration_option("--catch-up", "Drop slots that are later than this.  [default: 1h]")
@duration_option("--jitter", "Begin each slot up to this much later, at random.")
@click.option("--start-at", metavar="TIME", help="No slots before this time.")
@click.option("--end-at", metavar="TIME", help="No slots after this time.")
@click.option("--queue", "-q", metavar="NAME", help="[default: default]")
@click.option("--priority", type=int, metavar="N", help="Higher goes first.  [default: 0]")
@duration_option("--timeout", "Limit for each run; for a job, for each attempt.")
@duration_option("--execution-timeout", "Limit for each run and all runs that continue it.")
@duration_option("--total-timeout", "For a job: limit for all attempts together.")
@click.option(
    "--heartbeat",
    type=inputs.DURATION,
    metavar="DURATION",
    help="For a job: fail an attempt without a heartbeat for this long.",
)
@click.option("--version", metavar="TEXT", help="For a workflow: the version of its code.")
@duration_option("--expires", "Time out a run that no worker has taken for this long.")
@click.option("--key", metavar="TEXT", help="The key for limits per key and fairness of the queue.")
@click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="Repeatable.")
@click.option("--memo", metavar="JSON|@FILE", help="A small JSON value kept with each run.")
@click.option("--replace", is_flag=True, help="Replace the schedule of this id.")
@REASON
@with_common_options
def create(
    common: CommonOptions, /, id: str, name: str, text: str | None, replace: bool, reason: str, **more: Any
) -> None:
    """Create the schedule ID, which starts the workflow NAME at each slot of --cron, --every or --once.

    Write `job:NAME` for a job.
    """
    when = _when(more)
    arguments = inputs.arguments(text)
    for option in ("start_at", "end_at"):
        more[option] = inputs.moment(more[option], "--" + option.replace("_", "-"))
    schedule = Schedule(id, when, name, *arguments, **inputs.run_options(more))

    async def write(client: Batuta) -> Any:
        return await (client.schedules.update if replace else client.schedules.create)(schedule)

    view = common.because(reason).ask(write, migrate=True)
    common.tell(view, f"schedule {id}: {view.when}, next at {_text(view.next_at)}")


def _when(more: dict[str, Any]) -> When:
    expression, zone, seconds, offset, at = (more.pop(name) for name in ("cron", "zone", "every", "offset", "once"))
    if sum(one is not None for one in (expression, seconds, at)) != 1:
        raise InvalidSchedule("give one of --cron, --every and --once")
    if zone is not None and expression is None:
        raise InvalidSchedule("--zone goes with --cron")
    if offset is not None and seconds is None:
        raise InvalidSchedule("--offset goes with --every")
    if expression is not None:
        return cron(expression, zone or "UTC")
    if seconds is not None:
        return every(seconds, offset or 0)
    moment = inputs.moment(at, "--once")
    if moment is None:
        raise InvalidSchedule("--once needs a time")
    return once(moment)


@click.command()
@click.argument("id")
@REASON
@with_common_options
def delete(common: CommonOptions, id: str, reason: str) -> None:
    """Delete the schedule ID. Its runs go on."""
    common.because(reason).ask(lambda client: client.schedules.delete(id))
    common.tell({"id": id, "deleted": True}, f"schedule {id} is deleted")


@click.command()
@click.argument("id")
@REASON
@with_common_options
def pause(common: CommonOptions, id: str, reason: str) -> None:
    """Pause the schedule ID: it has no slots until you resume it."""
    common.ask(lambda client: client.schedules.pause(id, reason))
    common.tell({"id": id, "paused": True, "reason": reason}, f"schedule {id} is paused")


@click.command()
@click.argument("id")
@REASON
@with_common_options
def resume(common: CommonOptions, id: str, reason: str) -> None:
    """Resume the schedule ID with its next slot. Slots during the pause are not caught up."""
    common.because(reason).ask(lambda client: client.schedules.resume(id))
    common.tell({"id": id, "paused": False}, f"schedule {id} goes on")


@click.command()
@click.argument("id")
@REASON
@with_common_options
def trigger(common: CommonOptions, id: str, reason: str) -> None:
    """Begin a run of the schedule ID now, whatever its calendar."""
    handle = common.because(reason).ask(lambda client: client.schedules.trigger(id))
    document = {"id": id, "run": handle.id, "run_id": str(handle.run_id)}
    common.tell(document, f"run {handle.id} was begun")


@click.command()
@click.argument("id")
@click.option("--since", metavar="TIME", required=True, help="Slots from this time on: 6h (ago), 2d, or ISO 8601.")
@click.option("--until", metavar="TIME", default="0s", help="Slots before this time.  [default: now]")
@REASON
@with_common_options
def backfill(common: CommonOptions, id: str, since: str, until: str, reason: str) -> None:
    """Begin a run for each slot of the schedule ID from --since until before --until, all at once.

    It skips slots that have had their run.
    """
    times = [inputs.ago(since, "--since"), inputs.ago(until, "--until")]
    begun = common.because(reason).ask(lambda client: client.schedules.backfill(id, *times))  # type: ignore[arg-type]  # not None

    def human(_: Any) -> None:
        for run in begun:
            say(run)
        say(number_of(len(begun), "run was begun", "runs were begun"), err=True)

    common.answer({"id": id, "begun": begun}, human)


@click.command("next")
@click.argument("id")
@click.option("--count", "-n", type=click.IntRange(1, 1000), default=10, show_default=True, help="How many.")
@with_common_options
def next_times(common: CommonOptions, id: str, count: int) -> None:
    """Show the next slots of the schedule ID, in UTC, as if it were not paused."""
    times = common.ask(lambda client: client.schedules.next_times(id, count))

    def human(_: Any) -> None:
        for moment in times:
            say(_text(moment))

    common.answer({"id": id, "next": times}, human)


def _text(moment: Any) -> str:
    return "never" if moment is None else moment.isoformat().replace("+00:00", "Z")
