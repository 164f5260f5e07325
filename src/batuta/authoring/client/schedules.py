"""Schedules: what starts runs by the calendar, as an author declares them and as others see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct

from batuta.authoring.backend import RunRef, StartRequest
from batuta.authoring.call_options import check_seconds
from batuta.authoring.client.calendar import Cron, Every, Once, When, moment, slot_moment
from batuta.authoring.client.enqueue import JobRequest, job_request
from batuta.authoring.client.handle import Handle
from batuta.authoring.client.start import check_start_options, checked_start, options_given
from batuta.authoring.jobs import Job, JobCall
from batuta.durations import Duration, in_seconds
from batuta.errors import InvalidInput, InvalidSchedule
from batuta.journal.records import RunKind
from batuta.names import check_name, check_page_size, check_reason
from batuta.serde import MAX_PAYLOAD

CATCH_UP = 3_600.0
"""Default `catch_up`: seconds after which a slot that could not begin is dropped."""
MOST_BACKFILLED = 10_000
_LONGEST = 10 * 365 * 86_400
_COMMON = ("queue", "priority", "timeout", "retry", "tags", "memo", "headers", "key", "expires")
_OF_WORKFLOWS = (*_COMMON, "execution_timeout", "version")
_OF_JOBS = (*_COMMON, "total_timeout", "heartbeat")
_JOB = "job:"


class Overlap(StrEnum):
    """What a slot does while the previous slot's run is open."""

    SKIP = "skip"
    """It is left out."""
    BUFFER = "buffer"
    """One slot waits until that run has ended; more are left out."""
    ALLOW = "allow"
    """It begins beside it."""
    CANCEL = "cancel"
    """That run is asked to end, and the slot begins when it has. Of several that wait, the last one."""


class Schedule:
    """Starts a run at each slot of a calendar: for `worker(schedules=[...])` or `client.schedules.create(...)`.

        Schedule("nightly", cron("0 2 * * *", zone="America/Sao_Paulo"), close_the_books, "BRL")

    `target` is a workflow or a job, or its name (`"job:send"` for a job); `args` are its arguments. The id of a slot's
    run is `nightly:<slot>`, such as `nightly:2031-05-17T05:00:00Z`, and each slot has one run at most.
    `overlap` is one of skip, buffer, allow, cancel. A slot that could not be begun within `catch_up` seconds is
    dropped. `jitter`: begin up to so many seconds later, another number for each slot. `start_at` and `end_at` are the
    first and the last time at which there may be a slot.
    Other options are those of `client.start` or `client.enqueue`, for each slot: queue, priority, timeout, retry, tags,
    memo, headers, key, expires; of a workflow also execution_timeout and version, of a job total_timeout and heartbeat.
    Raises InvalidSchedule, and other InvalidInput.
    """

    def __init__(
        self,
        id: str,
        when: When,
        target: Any,
        /,
        *args: Any,
        overlap: str = Overlap.SKIP,
        catch_up: Duration = CATCH_UP,
        jitter: Duration = 0.0,
        start_at: datetime | None = None,
        end_at: datetime | None = None,
        **options: Any,
    ) -> None:
        self.id = check_schedule_id(id)
        if not isinstance(when, Cron | Every | Once):
            raise InvalidSchedule(
                f"schedule {id!r}: {when!r} is not a calendar: use cron(...), every(...) or once(...)"
            )
        self.when = when
        self.overlap = _overlap(overlap)
        self.catch_up = _seconds("catch_up", in_seconds(catch_up))
        self.jitter = _seconds("jitter", in_seconds(jitter))
        self.start_at = None if start_at is None else moment("start_at", start_at)
        self.end_at = None if end_at is None else moment("end_at", end_at)
        self.request = _request(id, target, args, options)

    def __repr__(self) -> str:
        return f"<schedule {self.id}: {self.when}>"


def _request(id: str, target: Any, args: tuple[Any, ...], options: dict[str, Any]) -> StartRequest | JobRequest:
    is_job = isinstance(target, Job | JobCall) or (isinstance(target, str) and target.startswith(_JOB))
    known = _OF_JOBS if is_job else _OF_WORKFLOWS
    if isinstance(target, JobCall):
        options = target.options | options
    if unknown := options.keys() - set(known):
        raise InvalidSchedule(
            f"schedule {id!r} has unknown options {', '.join(sorted(unknown))}: there are overlap, catch_up, jitter, "
            f"start_at, end_at, {', '.join(known)} (arguments are given by position)"
        )
    if is_job:
        return job_request(target.removeprefix(_JOB) if isinstance(target, str) else target, args, options, MAX_PAYLOAD)
    options = options_given(options)
    check_start_options(options)
    check_seconds("expires", options.get("expires"))
    name, version, data = checked_start(target, args, options.pop("version", None), MAX_PAYLOAD)
    return StartRequest(workflow=name, version=version, input=data, **options)


def check_schedule_id(id: object) -> str:
    """Raises InvalidSchedule."""
    try:
        return check_name(id, "schedule")
    except InvalidInput as error:
        raise InvalidSchedule(str(error)) from None


def _overlap(policy: object) -> Overlap:
    try:
        return Overlap(str(policy))
    except ValueError:
        raise InvalidSchedule(f"overlap={policy!r} must be one of {', '.join(Overlap)}") from None


def _seconds(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST:
        raise InvalidSchedule(
            f"{name}={value!r} must be a number of seconds or a timedelta, not negative and at most ten years"
        )
    return float(value)


class ScheduleView(Struct, kw_only=True):
    """A schedule, as of now."""

    id: str
    when: str
    """In words, such as `0 2 * * * (America/Sao_Paulo)`."""
    workflow: str
    """The workflow or job that each slot starts."""
    kind: RunKind
    arguments: Any
    overlap: Overlap
    catch_up: float
    jitter: float
    start_at: datetime | None
    end_at: datetime | None
    """The first and the last time at which there may be a slot."""
    queue: str
    priority: int
    key: str
    version: str
    timeout: float | None
    execution_timeout: float | None
    expires: float | None
    tags: dict[str, str]
    memo: Any
    paused: bool
    reason: str
    """Why it is paused."""
    next_at: datetime | None
    """Its next slot; None when no more come or while it is paused."""
    last_at: datetime | None
    """The slot that began a run last."""
    last_id: str
    """The id of that run."""
    running: bool
    """Whether that run is open."""
    waiting: datetime | None
    """A slot that begins when that run has ended."""
    created_at: datetime
    updated_at: datetime


class ScheduleService(Protocol):
    """Keeps schedules. Raises UnknownSchedule where one is named that is not there."""

    async def create(self, schedule: Schedule) -> ScheduleView:
        """Raises ScheduleExists, InvalidSchedule."""
        ...

    async def update(self, schedule: Schedule) -> ScheduleView: ...
    async def get(self, id: str) -> ScheduleView: ...
    async def list(self, after: str, limit: int) -> Sequence[ScheduleView]: ...
    async def delete(self, id: str) -> None: ...
    async def pause(self, id: str, reason: str) -> None: ...
    async def resume(self, id: str) -> None: ...
    async def trigger(self, id: str) -> RunRef: ...
    async def backfill(self, id: str, start: int, end: int) -> Sequence[str]: ...
    async def next_times(self, id: str, count: int) -> Sequence[datetime]: ...


class Schedules:
    """The schedules of a namespace: `client.schedules`. Where one is named that is not there: UnknownSchedule."""

    def __init__(self, backend: ScheduleService, handle: Callable[[RunRef], Handle[Any]]) -> None:
        self._backend, self._handle = backend, handle

    async def create(self, schedule: Schedule) -> ScheduleView:
        """Durable when this returns. Its first slot is the first one later than now. Raises ScheduleExists, and
        InvalidSchedule when no slot will come."""
        return await self._backend.create(_checked(schedule))

    async def update(self, schedule: Schedule) -> ScheduleView:
        """Replace the schedule of this id. The paused state, its note and the last begun slot stay."""
        return await self._backend.update(_checked(schedule))

    async def get(self, id: str) -> ScheduleView:
        """The schedule of that id."""
        return await self._backend.get(check_schedule_id(id))

    async def list(self, *, after: str = "", limit: int = 1_000) -> Sequence[ScheduleView]:
        """By id; ids after `after`."""
        check_page_size(limit, "use after= for more")
        if not isinstance(after, str):
            raise InvalidInput(f"after={after!r} must be an id")
        return await self._backend.list(after, limit)

    async def delete(self, id: str) -> None:
        """No more slots. Runs that it began go on."""
        await self._backend.delete(check_schedule_id(id))

    async def pause(self, id: str, reason: str = "") -> None:
        """No slots until it is resumed. `reason` says why."""
        await self._backend.pause(check_schedule_id(id), check_reason(reason))

    async def resume(self, id: str) -> None:
        """Go on with the next slot: those of the pause are not caught up on."""
        await self._backend.resume(check_schedule_id(id))

    async def trigger(self, id: str) -> Handle[Any]:
        """Begin a run now, whatever the calendar and the overlap policy, also when it is paused."""
        return self._handle(await self._backend.trigger(check_schedule_id(id)))

    async def backfill(self, id: str, start: datetime, end: datetime) -> Sequence[str]:
        """Begin a run for each slot from `start` up to, but not including, `end`, all at once.

        Returns the ids of new runs: it skips slots that have had their run.
        """
        begin, stop = slot_moment("start", start), slot_moment("end", end)
        if begin >= stop:
            raise InvalidSchedule(f"start={start} must be before end={end}")
        return await self._backend.backfill(check_schedule_id(id), begin, stop)

    async def next_times(self, id: str, count: int = 10) -> Sequence[datetime]:
        """The slots that come next, as if it were not paused. UTC."""
        if type(count) is not int or not 1 <= count <= 1_000:
            raise InvalidInput(f"count={count!r} must be a whole number from 1 to 1000")
        return await self._backend.next_times(check_schedule_id(id), count)


def _checked(schedule: object) -> Schedule:
    if isinstance(schedule, Schedule):
        return schedule
    raise InvalidSchedule(f"{schedule!r} is not a Schedule(id, when, workflow, ...)")
