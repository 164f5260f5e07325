"""Builds the rows for start and enqueue requests. Pure, so that any transaction can carry them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from msgspec import Raw, json
from msgspec.structs import replace

from batuta.authoring.backend import StartRequest
from batuta.authoring.client.enqueue import JobOverrides, JobRequest
from batuta.authoring.definitions import code_of
from batuta.authoring.jobs import job_code
from batuta.clock import SECOND
from batuta.engine.machine.headers import put_headers
from batuta.engine.machine.row_values import expiry, small
from batuta.ids import new_run_id, new_seed, text_of
from batuta.journal.entries import Body, StartInfo
from batuta.journal.records import IfExists, NewRun, RunKind

_encoder = json.Encoder()
_AS_DEFINED = JobOverrides()
_NOTHING = Raw(b"{}")
_RETURN = IfExists.RETURN


def new_run(request: StartRequest) -> tuple[NewRun, Body]:
    """The run of a start, and the input of its first turn."""
    run_id = new_run_id()
    key_base = text_of(run_id)
    start = StartInfo(request.workflow, new_seed(), key_base)
    new = NewRun(
        run_id=run_id,
        id=key_base if request.id is None else request.id,
        name=request.workflow,
        code=request.workflow,
        own_id=request.id is None,
    )
    # What few starts give is set apart: a keyword costs more than the question.
    if request.queue != new.queue:
        new.queue = request.queue
    if request.priority:
        new.priority = request.priority
    if request.key:
        new.flow_key = request.key
    if request.if_exists is not new.if_exists:
        new.if_exists = request.if_exists
    if request.delay:
        new.delay = start.delay = round(request.delay * SECOND)
    if request.timeout is not None:
        new.timeout = start.timeout = round(request.timeout * SECOND)
    if request.execution_timeout is not None:
        new.execution_timeout = start.execution_timeout = round(request.execution_timeout * SECOND)
    if request.version:
        new.version = start.version = request.version
        new.code = code_of(request.workflow, request.version)
    if request.tags:
        new.tags = small(request.tags, "option 'tags'")
    if request.memo is not None:
        new.memo = small(request.memo, "option 'memo'")
    if request.expires is not None:
        new.expires = expiry(request.expires, new.delay)
    if request.headers:
        put_headers(start, request.headers)
    if request.retry is not None:
        start.retry = Raw(json.encode(request.retry))
    return new, Body(value=Raw(request.input), start=start)


def unowned_run(request: StartRequest | JobRequest, now: int = 0) -> NewRun:
    """The run of a request, with its start message. `now` is as for `job_run`."""
    if isinstance(request, JobRequest):
        return job_run(request, now)
    new, body = new_run(request)
    new.start = json.encode(body).decode()
    return new


def job_run(request: JobRequest, now: int = 0) -> NewRun:
    """The run of a job, with its start message. `now` is the store's clock, which only `at` needs."""
    run_id = new_run_id()
    key_base = text_of(run_id)
    overrides = request.overrides
    told = _NOTHING if overrides == _AS_DEFINED else Raw(_encoder.encode(overrides))
    start = StartInfo(request.job, new_seed(), key_base, options=told)
    if request.headers:
        put_headers(start, request.headers)
    new = NewRun(
        run_id=run_id,
        id=request.id if request.id is not None else key_base,
        name=request.job,
        kind=RunKind.JOB,
        queue=request.queue,
        priority=request.priority,
        code=job_code(request.job),
        flow_key=request.key,
        start=_encoder.encode(Body(value=Raw(request.input), start=start)).decode(),
    )
    if request.delay or request.at is not None:
        new.delay = max(0, request.at - now) if request.at is not None else round(request.delay * SECOND)
        start.delay = new.delay
        new.start = _encoder.encode(Body(value=Raw(request.input), start=start)).decode()
    if request.tags:
        new.tags = small(request.tags, "option 'tags'")
    if request.memo is not None:
        new.memo = small(request.memo, "option 'memo'")
    if request.if_exists is not _RETURN:
        new.if_exists = request.if_exists
    if (unique_id := request.unique_id) is not None:
        _make_unique(new, request, unique_id)
    if request.expires is not None:
        new.expires = expiry(request.expires, new.delay)
    return new


def _make_unique(new: NewRun, request: JobRequest, unique_id: str) -> None:
    if request.debounce is None:
        new.id, new.if_exists = unique_id, IfExists.RENEW
        new.fresh = round((request.unique_for or 0) * SECOND)
    else:
        new.debounce, new.delay = unique_id, round(request.debounce * SECOND)
        new.debounce_limit = round((request.debounce_limit or 0) * SECOND)


class JobRuns(Sequence[NewRun]):
    """The runs of a batch, each made when it is first asked for, in order: a store can be at work on some of them while
    the next are made. Asking raises InvalidInput, of a tag or memo that cannot be serialised."""

    def __init__(self, requests: Sequence[JobRequest], now: int = 0) -> None:
        self._requests = requests
        self._now = now
        self._made: list[NewRun] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[NewRun]:
        return iter(self[:])

    @overload
    def __getitem__(self, index: int) -> NewRun: ...
    @overload
    def __getitem__(self, index: slice) -> list[NewRun]: ...
    def __getitem__(self, index: int | slice) -> NewRun | list[NewRun]:
        last = len(self) if isinstance(index, int) else index.indices(len(self))[1]
        if last > len(self._made):
            self._made += [job_run(request, self._now) for request in self._requests[len(self._made) : last]]
        return self._made[index]


def last_run(after: JobRequest, size: int, now: int = 0) -> NewRun:
    """The run that is called when a batch of that size has ended."""
    return job_run(replace(after, overrides=replace(after.overrides, batch=size)), now)
