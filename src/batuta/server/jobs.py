"""Jobs, and activities that are completed from outside."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import UNSET, Struct, UnsetType, to_builtins

from batuta.authoring.backend import Description, RunPage
from batuta.authoring.client.documents import is_job, job_document
from batuta.authoring.client.handle import Handle
from batuta.errors import InvalidInput, NonRetryable
from batuta.journal.states import RunState
from batuta.server.filters import JobPageQuery, JobQuery, where
from batuta.server.http.call import Answer, Call, RunAnswer
from batuta.server.http.routing import route
from batuta.server.run_actions import ReasonBody, Requested, requested
from batuta.server.run_options import NewRunOptions, options_of
from batuta.server.runs import TRACE, Attempts, Count, States, WaitQuery, states_of, wait_for_end


class EnqueueBody(NewRunOptions, kw_only=True, forbid_unknown_fields=True):
    """A job to be enqueued. Times are seconds."""

    at: datetime | None = None
    unique: str | None = None
    unique_for: float | None = None
    debounce: float | None = None
    debounce_limit: float | None = None
    total_timeout: float | None = None
    heartbeat: float | None = None


class Enqueued(RunAnswer, kw_only=True):
    job: str
    is_new: bool
    state: RunState


class JobDocument(Description, kw_only=True):
    """A job with what it was given, has said of its progress, and ended with."""

    input: Any = None
    progress: Any | UnsetType = UNSET
    result: Any | UnsetType = UNSET
    error: str | UnsetType = UNSET
    traceback: str | UnsetType = UNSET


class TokenBody(Struct, kw_only=True, forbid_unknown_fields=True):
    token: str

    def __repr__(self) -> str:
        return f"<{type(self).__name__} with a token>"


class CompleteBody(TokenBody, kw_only=True, forbid_unknown_fields=True):
    value: Any = None


class FailBody(TokenBody, kw_only=True, forbid_unknown_fields=True):
    message: str = "failed from outside"
    retry: bool = True
    """False: do not try again, whatever the activity's policy says."""


class HeartbeatBody(TokenBody, kw_only=True, forbid_unknown_fields=True):
    details: Any = None


class Sent(Struct, kw_only=True):
    """Without the token: an answer may be kept for an idempotency key, and no token lies in the database."""

    sent: str


async def find_job(call: Call) -> tuple[Handle[Any], Description]:
    """Raises UnknownRun; InvalidInput when it is a run of another kind."""
    handle = await call.run()
    run = await handle.describe()
    if not is_job(run):
        raise InvalidInput(f"run {call.id!r} is no job but of kind {run.kind}: ask for it under /api/v1/runs")
    return handle, run


async def list_jobs(call: Call) -> RunPage:
    query: JobPageQuery = call.query
    return await call.client.list(cursor=query.cursor, limit=query.limit, **where(query, "job"))


async def count_jobs(call: Call) -> Count:
    return Count(await call.client.count(**where(call.query, "job")))


async def count_states(call: Call) -> States:
    return await states_of(call, where(call.query, "job"))


async def enqueue(call: Call) -> Answer:
    body: EnqueueBody = call.body
    options = options_of(body, "name", "input", "headers")
    options["headers"] = {TRACE: call.traceparent} | (body.headers or {})
    handle = await call.client.enqueue(body.name, *body.input, **options)
    is_new = bool(handle.is_new)
    state = RunState.PENDING if is_new else (await handle.describe()).state
    made = Enqueued(id=handle.id, run_id=handle.run_id, job=body.name, is_new=is_new, state=state)
    return Answer(body=made, status=201 if is_new else 200, headers=call.located("jobs", str(handle.run_id)))


async def show(call: Call) -> dict[str, Any]:
    handle, run = await find_job(call)
    if call.query.wait and run.closed_at is None:
        await wait_for_end(handle, call.query.wait)
        run = await handle.describe()
    run, more = await job_document(handle, run)
    return {**to_builtins(run), **more}


async def attempts(call: Call) -> Attempts:
    handle, run = await find_job(call)
    return Attempts(id=run.id, run_id=run.run_id, state=run.state, attempts=await handle.attempts())


async def cancel(call: Call) -> Requested:
    handle, _ = await find_job(call)
    return requested(handle, "cancel", await handle.cancel(call.body.reason))


async def retry(call: Call) -> Requested:
    handle, _ = await find_job(call)
    await handle.retry(call.body.reason)
    return requested(handle, "retry")


async def complete(call: Call) -> Sent:
    await call.client.complete(call.body.token, call.body.value)
    return Sent(sent="complete")


async def fail(call: Call) -> Sent:
    body: FailBody = call.body
    await call.client.fail(body.token, body.message if body.retry else NonRetryable(body.message))
    return Sent(sent="fail")


async def heartbeat(call: Call) -> Sent:
    await call.client.heartbeat(call.body.token, call.body.details)
    return Sent(sent="heartbeat")


_JOBS, _JOB, _ACTIVITIES = "/api/v1/jobs", "/api/v1/jobs/{id}", "/api/v1/activities"
ROUTES = (
    route("GET", _JOBS, list_jobs, "Jobs, newest first.", RunPage, query=JobPageQuery, payloads=True),
    route(
        "POST",
        _JOBS,
        enqueue,
        "Enqueue a job, by its name.",
        Enqueued,
        body=EnqueueBody,
        status=201,
        large=True,
    ),
    route("GET", f"{_JOBS}/count", count_jobs, "Count the jobs that match filters.", Count, query=JobQuery),
    route(
        "GET", f"{_JOBS}/states", count_states, "Count the jobs that match filters, by state.", States, query=JobQuery
    ),
    route(
        "GET", _JOB, show, "One job: state, progress, attempts, result.", JobDocument, query=WaitQuery, payloads=True
    ),
    route("GET", f"{_JOB}/attempts", attempts, "The recorded attempts of a job.", Attempts, payloads=True),
    route("POST", f"{_JOB}/cancel", cancel, "Cancel a job.", Requested, body=ReasonBody),
    route("POST", f"{_JOB}/retry", retry, "Retry a parked or failed job.", Requested, body=ReasonBody),
    route(
        "POST",
        f"{_ACTIVITIES}/complete",
        complete,
        "Give an activity its result, by its token.",
        Sent,
        body=CompleteBody,
        large=True,
    ),
    route("POST", f"{_ACTIVITIES}/fail", fail, "Fail an attempt of an activity, by its token.", Sent, body=FailBody),
    route(
        "POST",
        f"{_ACTIVITIES}/heartbeat",
        heartbeat,
        "Report that an activity is alive, by its token.",
        Sent,
        body=HeartbeatBody,
        large=True,
    ),
)
