"""Schedules: make, look at, pause, trigger and backfill."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from msgspec import Struct

from batuta.authoring.client.calendar import When, cron, every, once
from batuta.authoring.client.schedules import Schedule, ScheduleView
from batuta.errors import InvalidInput, InvalidSchedule
from batuta.server.filters import PageQuery, ReasonQuery
from batuta.server.http.call import Answer, Call, ago, now
from batuta.server.http.routing import route
from batuta.server.run_actions import ReasonBody
from batuta.server.run_options import RunOptions, options_of

_WHEN = ("cron", "zone", "every", "offset", "once")


class ScheduleBody(RunOptions, kw_only=True, forbid_unknown_fields=True):
    """Starts `name` (`job:NAME` for a job) at each slot of `cron`, `every` or `once`. Times are seconds."""

    cron: str | None = None
    zone: str | None = None
    every: float | None = None
    offset: float | None = None
    once: datetime | None = None
    overlap: str | None = None
    catch_up: float | None = None
    jitter: float | None = None
    start_at: datetime | None = None
    end_at: datetime | None = None
    execution_timeout: float | None = None
    total_timeout: float | None = None
    heartbeat: float | None = None
    version: str | None = None
    reason: str = ""


class NewScheduleBody(ScheduleBody, kw_only=True, forbid_unknown_fields=True):
    id: str


class SchedulePage(Struct):
    schedules: list[ScheduleView]
    cursor: str | None


class NextQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    count: int = 10


class NextTimes(Struct):
    id: str
    next: list[datetime]


class BackfillBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Slots from `since` on and before `until` (now, unless told); `6h` is six hours ago."""

    since: str
    until: str | None = None
    reason: str = ""


class Backfilled(Struct):
    id: str
    begun: list[str]


class Paused(Struct):
    id: str
    paused: bool
    reason: str = ""


class Triggered(Struct):
    id: str
    run: str
    run_id: UUID


class ScheduleDeleted(Struct):
    id: str
    deleted: bool = True


def _when(body: ScheduleBody) -> When:
    if sum(one is not None for one in (body.cron, body.every, body.once)) != 1:
        raise InvalidSchedule("give one of cron, every and once")
    if body.zone is not None and body.cron is None:
        raise InvalidSchedule("zone goes with cron")
    if body.offset is not None and body.every is None:
        raise InvalidSchedule("offset goes with every")
    if body.cron is not None:
        return cron(body.cron, body.zone or "UTC")
    if body.every is not None:
        return every(body.every, body.offset or 0)
    at = body.once
    if at is None:
        raise InvalidSchedule("once needs a time")
    return once(at if at.tzinfo is not None else at.replace(tzinfo=UTC))


def _schedule(id: str, body: ScheduleBody) -> Schedule:
    options = options_of(body, "id", "name", "input", "reason", *_WHEN)
    for name in ("start_at", "end_at"):
        if (at := options.get(name)) is not None and at.tzinfo is None:
            options[name] = at.replace(tzinfo=UTC)
    return Schedule(id, _when(body), body.name, *body.input, **options)


async def list_schedules(call: Call) -> SchedulePage:
    query: PageQuery = call.query
    found = list(await call.client.schedules.list(after=query.cursor or "", limit=query.limit))
    return SchedulePage(found, found[-1].id if len(found) == query.limit else None)


async def show(call: Call) -> ScheduleView:
    return await call.client.schedules.get(call.id)


async def create(call: Call) -> Answer:
    body: NewScheduleBody = call.body
    with call.because(body.reason):
        view = await call.client.schedules.create(_schedule(body.id, body))
    return Answer(body=view, headers=call.located("schedules", view.id))


async def replace(call: Call) -> ScheduleView:
    with call.because(call.body.reason):
        return await call.client.schedules.update(_schedule(call.id, call.body))


async def delete(call: Call) -> ScheduleDeleted:
    with call.because(call.query.reason):
        await call.client.schedules.delete(call.id)
    return ScheduleDeleted(call.id)


async def pause(call: Call) -> Paused:
    await call.client.schedules.pause(call.id, call.body.reason)
    return Paused(call.id, True, call.body.reason)


async def resume(call: Call) -> Paused:
    with call.because(call.body.reason):
        await call.client.schedules.resume(call.id)
    return Paused(call.id, False)


async def trigger(call: Call) -> Answer:
    with call.because(call.body.reason):
        handle = await call.client.schedules.trigger(call.id)
    made = Triggered(call.id, handle.id, handle.run_id)
    return Answer(body=made, headers=call.located("runs", str(handle.run_id)))


async def backfill(call: Call) -> Backfilled:
    body: BackfillBody = call.body
    since = ago(body.since, "since")
    until = ago(body.until, "until") or now()
    if since is None:
        raise InvalidInput("since must be a time")
    with call.because(body.reason):
        return Backfilled(call.id, list(await call.client.schedules.backfill(call.id, since, until)))


async def next_times(call: Call) -> NextTimes:
    return NextTimes(call.id, list(await call.client.schedules.next_times(call.id, call.query.count)))


_ALL, _ONE = "/api/v1/schedules", "/api/v1/schedules/{id}"


ROUTES = (
    route("GET", _ALL, list_schedules, "Schedules, by id.", SchedulePage, query=PageQuery, payloads=True, shared=True),
    route("POST", _ALL, create, "Make a schedule.", ScheduleView, body=NewScheduleBody, status=201, large=True),
    route("GET", _ONE, show, "One schedule.", ScheduleView, payloads=True),
    route("PUT", _ONE, replace, "Replace a schedule.", ScheduleView, body=ScheduleBody, large=True),
    route("DELETE", _ONE, delete, "Delete a schedule; its runs go on.", ScheduleDeleted, query=ReasonQuery),
    route("POST", f"{_ONE}/pause", pause, "Pause a schedule: no slots until it is resumed.", Paused, body=ReasonBody),
    route("POST", f"{_ONE}/resume", resume, "Resume a schedule with its next slot.", Paused, body=ReasonBody),
    route("POST", f"{_ONE}/trigger", trigger, "Begin a run now.", Triggered, body=ReasonBody, status=201),
    route("POST", f"{_ONE}/backfill", backfill, "Begin a run for each slot of a range.", Backfilled, body=BackfillBody),
    route("GET", f"{_ONE}/next", next_times, "The next slots of a schedule.", NextTimes, query=NextQuery),
)
