"""`batuta schedules`: make them, look at them, pause, trigger and backfill them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from batuta.cli import inputs
from batuta.cli.lazy import LazyGroup
from batuta.cli.place import Place, placed
from batuta.cli.redacting import revealing, say
from batuta.errors import InvalidSchedule

if TYPE_CHECKING:
    from batuta.authoring.calendar import When
    from batuta.client import Batuta

POLICIES = ("skip", "buffer", "allow", "cancel")

schedules = LazyGroup(
    "schedules",
    {
        "backfill": ("batuta.cli.schedules:backfill", "Begin a run for each slot of a range."),
        "create": ("batuta.cli.schedules:create", "Make a schedule, or replace one."),
        "delete": ("batuta.cli.schedules:delete", "No more slots; runs that it began go on."),
        "list": ("batuta.cli.schedules:list_schedules", "Schedules, by id."),
        "next": ("batuta.cli.schedules:next_times", "The slots that come next."),
        "pause": ("batuta.cli.schedules:pause", "No slots until it is resumed."),
        "resume": ("batuta.cli.schedules:resume", "Go on with the next slot."),
        "show": ("batuta.cli.schedules:show", "One schedule."),
        "trigger": ("batuta.cli.schedules:trigger", "Begin a run now."),
    },
    help="Make, list, show, pause, resume, trigger, backfill and delete schedules.",
)


@click.command("list")
@click.option("--after", default="", metavar="ID", help="Those whose ids come after this one.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True)
@revealing
@placed
def list_schedules(place: Place, after: str, limit: int) -> None:
    """Schedules, by id."""
    found = place.ask(lambda client: client.schedules.list(after=after, limit=limit))

    def human(console: Any) -> None:
        from batuta.cli.timetables import schedules_table

        console.print(schedules_table(found))
        if len(found) == limit:
            say(f"there may be more: --after {found[-1].id}", err=True)

    place.answer({"schedules": found}, human)


@click.command()
@click.argument("id")
@revealing
@placed
def show(place: Place, id: str) -> None:
    """The schedule ID."""
    view = place.ask(lambda client: client.schedules.get(id))

    def human(console: Any) -> None:
        from batuta.cli.timetables import schedule_table

        console.print(schedule_table(view))

    place.answer(view, human)


@click.command()
@click.argument("id")
@click.argument("name")
@click.option("--cron", metavar="EXPRESSION", help="Five fields, such as '*/5 * * * *', or @daily and the like.")
@click.option("--zone", metavar="NAME", help="Of the cron expression: an IANA name.  [default: UTC]")
@click.option("--every", type=float, metavar="SECONDS", help="An interval, from 1 second on.")
@click.option("--offset", type=float, metavar="SECONDS", help="Moves the slots of --every on.")
@click.option("--once", metavar="TIME", help="A single time: ISO 8601, UTC when it names no zone.")
@click.option("--input", "-i", "text", metavar="JSON|@FILE|@-", help="An array is the arguments; else the only one.")
@click.option("--overlap", metavar="|".join(POLICIES), help="While the run before is open.  [default: skip]")
@click.option("--catch-up", type=float, metavar="SECONDS", help="Drop slots that are later.  [default: 3600]")
@click.option("--jitter", type=float, metavar="SECONDS", help="Begin up to so much later, by chance.")
@click.option("--start-at", metavar="TIME", help="No slots before.")
@click.option("--end-at", metavar="TIME", help="No slots after.")
@click.option("--queue", "-q", metavar="NAME", help="[default: default]")
@click.option("--priority", type=int, metavar="N", help="Higher goes first.  [default: 0]")
@click.option("--timeout", type=float, metavar="SECONDS", help="For the run of each slot; of a job, for an attempt.")
@click.option("--execution-timeout", type=float, metavar="SECONDS", help="For it and those that follow it.")
@click.option("--total-timeout", type=float, metavar="SECONDS", help="Of a job: for all of its attempts.")
@click.option(
    "--heartbeat", type=float, metavar="SECONDS", help="Of a job: an attempt that is silent for longer fails."
)
@click.option("--version", metavar="TEXT", help="Of a workflow: the version of its code.")
@click.option("--expires", type=float, metavar="SECONDS", help="A run that nobody begins for so long times out.")
@click.option("--key", metavar="TEXT", help="What limits per key of the queue count by.")
@click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="Repeatable.")
@click.option("--memo", metavar="JSON|@FILE", help="A small note kept with each run.")
@click.option("--replace", is_flag=True, help="Put it in place of the one that has this id.")
@placed
def create(place: Place, /, id: str, name: str, text: str | None, replace: bool, **more: Any) -> None:
    """Make the schedule ID, which starts the workflow NAME at each slot of --cron, --every or --once.

    NAME is `job:NAME` for a job.
    """
    from batuta.authoring.schedules import Schedule

    when = _when(more)
    arguments = inputs.arguments(text)
    more["tags"] = inputs.tags(more["tags"]) or None
    more["memo"] = None if more["memo"] is None else inputs.read_json(more["memo"], "--memo")
    for option in ("start_at", "end_at"):
        more[option] = inputs.moment(more[option], "--" + option.replace("_", "-"))
    options = {key: value for key, value in more.items() if value is not None}
    schedule = Schedule(id, when, name, *arguments, **options)

    async def write(client: Batuta) -> Any:
        return await (client.schedules.update if replace else client.schedules.create)(schedule)

    view = place.ask(write, migrate=True)
    place.answer(view, lambda _: say(f"schedule {id}: {view.when}, next at {_text(view.next_at)}"))


def _when(more: dict[str, Any]) -> When:
    from batuta.authoring.calendar import cron, every, once

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
@placed
def delete(place: Place, id: str) -> None:
    """Delete the schedule ID. Runs that it began go on."""
    place.ask(lambda client: client.schedules.delete(id))
    place.answer({"id": id, "deleted": True}, lambda _: say(f"schedule {id} is deleted"))


@click.command()
@click.argument("id")
@click.option("--note", default="", metavar="TEXT", help="Why, for whoever looks at it.")
@placed
def pause(place: Place, id: str, note: str) -> None:
    """Let the schedule ID rest until it is resumed."""
    place.ask(lambda client: client.schedules.pause(id, note))
    place.answer({"id": id, "paused": True, "note": note}, lambda _: say(f"schedule {id} is paused"))


@click.command()
@click.argument("id")
@placed
def resume(place: Place, id: str) -> None:
    """Let the schedule ID go on with its next slot: those of the pause are not caught up on."""
    place.ask(lambda client: client.schedules.resume(id))
    place.answer({"id": id, "paused": False}, lambda _: say(f"schedule {id} goes on"))


@click.command()
@click.argument("id")
@placed
def trigger(place: Place, id: str) -> None:
    """Begin a run of the schedule ID now, whatever its calendar says."""
    handle = place.ask(lambda client: client.schedules.trigger(id))
    document = {"id": id, "run": handle.id, "run_id": str(handle.run_id)}
    place.answer(document, lambda _: say(f"run {handle.id} was begun"))


@click.command()
@click.argument("id")
@click.argument("start", metavar="FROM")
@click.argument("end", metavar="UNTIL")
@placed
def backfill(place: Place, id: str, start: str, end: str) -> None:
    """Begin a run for each slot of the schedule ID from FROM on and before UNTIL (ISO 8601), all at once.

    A slot that has had its run is left alone.
    """
    times = [inputs.moment(start, "FROM"), inputs.moment(end, "UNTIL")]
    begun = place.ask(lambda client: client.schedules.backfill(id, *times))  # type: ignore[arg-type]  # not None

    def human(_: Any) -> None:
        for run in begun:
            say(run)
        click.echo(f"{len(begun)} runs were begun", err=True)

    place.answer({"id": id, "begun": begun}, human)


@click.command("next")
@click.argument("id")
@click.option("--count", "-n", type=click.IntRange(1, 1000), default=10, show_default=True)
@placed
def next_times(place: Place, id: str, count: int) -> None:
    """The slots of the schedule ID that come next, in UTC, as if it were not paused."""
    times = place.ask(lambda client: client.schedules.next_times(id, count))

    def human(_: Any) -> None:
        for moment in times:
            click.echo(_text(moment))

    place.answer({"id": id, "next": times}, human)


def _text(moment: Any) -> str:
    return "never" if moment is None else moment.isoformat().replace("+00:00", "Z")
