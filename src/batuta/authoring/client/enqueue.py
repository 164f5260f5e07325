"""How a job may be enqueued: options as a caller gives them, checked; and the request that comes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal, TypedDict

from msgspec import Struct

from batuta.authoring.call_options import ActivityOptions, check_seconds
from batuta.authoring.client.start import (
    check_id,
    check_start_options,
    no_definition,
    options_given,
)
from batuta.authoring.jobs import Job, JobCall
from batuta.authoring.retry import Retry
from batuta.clock import SECOND
from batuta.durations import Duration
from batuta.errors import InvalidInput
from batuta.journal.records import IfExists
from batuta.names import check_choice, check_name, joined
from batuta.serde import encode


class EnqueueOptions(TypedDict, total=False):
    """The options of `enqueue`, for type checkers. `Batuta.enqueue` describes them."""

    id: str | None
    if_exists: Literal["return", "same", "reject", "restart"] | IfExists | None
    queue: str | None
    priority: int | None
    delay: Duration | None
    at: datetime | None
    unique: str | None
    unique_for: Duration | None
    debounce: Duration | None
    debounce_limit: Duration | None
    key: str | None
    expires: Duration | None
    tags: Mapping[str, str] | None
    memo: Any
    headers: Mapping[str, str] | None
    retry: Retry | None
    timeout: Duration | None
    total_timeout: Duration | None
    heartbeat: Duration | None


class JobOverrides(Struct, frozen=True, omit_defaults=True):
    """Options of one job that its definition does not have. None: use the definition."""

    retry: Retry | None = None
    timeout: float | None = None
    total_timeout: float | None = None
    heartbeat: float | None = None
    batch: int | None = None
    """It is called when a batch of that many is done; there may be none in it."""


class JobRequest(Struct, kw_only=True):
    """A job to be enqueued. Times are seconds, but for `at`."""

    job: str
    input: bytes
    """JSON of the arguments."""
    id: str | None = None
    queue: str = "default"
    priority: int = 0
    delay: float = 0.0
    at: int | None = None
    """Microseconds of the store's clock; instead of a delay."""
    unique: str | None = None
    unique_for: float | None = None
    key: str = ""
    expires: float | None = None
    debounce: float | None = None
    debounce_limit: float | None = None
    tags: dict[str, str] = {}
    memo: Any = None
    if_exists: IfExists = IfExists.RETURN
    headers: dict[str, str] = {}
    overrides: JobOverrides = JobOverrides()

    @property
    def unique_id(self) -> str | None:
        """Of all jobs with this name and unique key, and of no others."""
        return None if self.unique is None else joined(self.job, self.unique)


_OVERRIDES = ("retry", "timeout", "total_timeout", "heartbeat")
_LAST_YEAR = 9000
_TIMES = ("delay", "at", "debounce", "expires")
_OPTIONS = frozenset(JobRequest.__struct_fields__) - {"job", "input", "overrides"} | set(_OVERRIDES)


def job_request(job: Any, args: tuple[Any, ...], options: dict[str, Any], limit: int) -> JobRequest:
    """What `enqueue` asks of the backend. `job` is a Job, a call of one, or a name. Raises InvalidInput."""
    if not isinstance(job, JobCall):
        job = JobCall(job, *args)
    elif args:
        raise InvalidInput(f"{job!r} has its arguments already: enqueue takes no others for it")
    return call_request(job, job.options | options, limit)


def job_requests(calls: Iterable[Any], limit: int) -> list[JobRequest]:
    """The same for many. Raises InvalidInput that says which of them is wrong, by its place from 0."""
    requests: list[JobRequest] = []
    for place, call in enumerate(calls):
        if not isinstance(call, JobCall):
            raise InvalidInput(f"call {place} of the batch is {call!r}: give calls of jobs, such as send.call('a')")
        try:
            requests.append(call_request(call, call.options, limit))
        except (InvalidInput, TypeError) as error:
            error.args = (f"call {place} of the batch ({call!r}): {error}", *error.args[1:])
            raise
    return requests


def callback_request(call: object, limit: int) -> JobRequest | None:
    """The callback of a batch. Raises InvalidInput."""
    if call is None:
        return None
    if not isinstance(call, JobCall):
        raise InvalidInput(f"on_done={call!r} must be a call of a job, such as report.call()")
    if given := [name for name in _TIMES if call.options.get(name) is not None]:
        raise InvalidInput(f"on_done= cannot have {', '.join(given)}: it begins when the batch has ended")
    request = call_request(call, call.options, limit)
    request.expires = None  # how long that takes says nothing about how long it waits
    return request


def call_request(call: JobCall[Any], options: dict[str, Any], limit: int) -> JobRequest:
    """One call. Raises InvalidInput, also for arguments that do not fit the job's annotations."""
    job = call.job
    if options:
        options = options_given(options)
        _check_options(options)
    if isinstance(job, Job):
        data = job.codec.encode_args(call.args, call.kwargs, limit)
        job.codec.decode_args(data)
        request = JobRequest(job=job.name, input=data, priority=job.priority)
        request.queue = job.options.queue or "default"
        request.expires = job.expires if job.expires is not None else job.options.start_timeout
    elif isinstance(job, str):
        value: Any = {"args": call.args, "kwargs": call.kwargs} if call.kwargs else call.args
        data = encode(value, f"the input of job {job!r}", limit)
        request = JobRequest(job=check_name(job, "job name"), input=data)
    else:
        raise no_definition(job, "job", "enqueue")
    if options:
        _apply(request, options)
    return request


def _apply(request: JobRequest, options: dict[str, Any]) -> None:
    for name, value in options.items():
        if value is not None and name not in _OVERRIDES:
            setattr(request, name, value)
    if options.get("at") is not None:
        request.at = round(options["at"].timestamp() * SECOND)
    request.if_exists = check_choice(IfExists, "if_exists", request.if_exists)
    if overrides := {name: options[name] for name in _OVERRIDES if options.get(name) is not None}:
        request.overrides = JobOverrides(**overrides)
    if (unique_id := request.unique_id) is not None:
        check_id(unique_id)


def _check_options(options: dict[str, Any]) -> None:
    if unknown := options.keys() - _OPTIONS:
        raise InvalidInput(
            f"unknown enqueue options {', '.join(sorted(unknown))}: there are {', '.join(sorted(_OPTIONS))} "
            f"(arguments of the job are given by position, or with its .call(...))"
        )
    start = {
        name: options[name]
        for name in ("delay", "priority", "queue", "tags", "retry", "headers")
        if options.get(name) is not None
    }
    check_start_options(start)
    ActivityOptions().merged({name: options[name] for name in _OVERRIDES if options.get(name) is not None})
    for name in ("expires", "unique_for", "debounce", "debounce_limit"):
        check_seconds(name, options.get(name))
    for name in ("unique", "key"):
        if options.get(name) is not None:
            check_name(options[name], name)
    if options.get("id") is not None:
        check_id(options["id"])
    _check_time(options)
    _check_together(options)


def _check_time(options: dict[str, Any]) -> None:
    at = options.get("at")
    if at is None:
        return
    if not isinstance(at, datetime):
        raise InvalidInput(f"at={at!r} must be a datetime with a time zone, such as datetime(2020, 1, 1, tzinfo=UTC)")
    if at.utcoffset() is None:
        raise InvalidInput(f"at={at!r} has no time zone: give tzinfo=")
    if at.year > _LAST_YEAR:
        raise InvalidInput(f"at={at!r} is too far away: the last year is {_LAST_YEAR}")


_NEEDS = {
    "unique_for": "unique",
    "debounce": "unique",
    "debounce_limit": "debounce",
    "if_exists": "id",
}
_NOT_WITH = (
    ("delay", "at", "both say when it may begin"),
    ("unique", "id", "the id is made from the unique key"),
    ("debounce", "delay", "the debounce is the delay"),
    ("debounce", "at", "the debounce says when it begins"),
    ("debounce", "unique_for", "a debounced job makes way when it begins"),
)


def _check_together(options: dict[str, Any]) -> None:
    given = {name for name, value in options.items() if value is not None}
    for name, needed in _NEEDS.items():
        if name in given and needed not in given:
            raise InvalidInput(f"{name}={options[name]!r} needs {needed}=: what makes two calls the same")
    for one, other, why in _NOT_WITH:
        if one in given and other in given:
            raise InvalidInput(f"{one}= and {other}= cannot be given together: {why}")
    limit, window = options.get("debounce_limit"), options.get("debounce")
    if limit is not None and window is not None and limit < window:
        raise InvalidInput(f"debounce_limit={limit!r} must not be less than debounce={window!r}")
