"""Runs: start, list, look at."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from msgspec import UNSET, Struct, UnsetType, field, to_builtins

from batuta.authoring.backend import AttemptView, Description, JournalLine, RunPage
from batuta.authoring.client.documents import run_document
from batuta.authoring.client.handle import Handle
from batuta.authoring.history.diff import Diff
from batuta.authoring.history.timeline import Timeline
from batuta.authoring.schemas import CodeSchema
from batuta.errors import BatutaError, InvalidInput
from batuta.journal.records import RunKind
from batuta.journal.states import RunState
from batuta.server.filters import RunPageQuery, RunQuery, where
from batuta.server.http.call import Answer, Call, RunAnswer, check_wait, described, find_run
from batuta.server.http.routing import route
from batuta.server.run_options import NewRunOptions, options_of

TRACE = "traceparent"
_CHILDREN, _ACTS = 200, 50
_PATIENCE = 0.4
"""Seconds for which rows wait for their counts."""


class Count(Struct):
    count: int


class States(Struct):
    """How many runs are in which state."""

    states: dict[str, int]
    total: int


class StartSignal(Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    value: Any = None
    message_id: str | None = None


class StartBody(NewRunOptions, kw_only=True, forbid_unknown_fields=True):
    """A run to be started. Times are seconds."""

    execution_timeout: float | None = None
    version: str | None = None
    signal: StartSignal | None = None


class Started(RunAnswer, kw_only=True):
    workflow: str
    is_new: bool
    state: RunState


class Waits(Struct, kw_only=True):
    """A call that a run waits for."""

    kind: str
    name: str
    seq: int
    tries: int
    since: Any


class RunDocument(Description, kw_only=True):
    """A run with what it was given, waits for, has published and ended with."""

    input: Any = None
    waiting_for: list[Waits] = field(default_factory=list)
    published: dict[str, Any] = field(default_factory=dict)
    result: Any | UnsetType = UNSET
    error: str | UnsetType = UNSET
    traceback: str | UnsetType = UNSET


class RunView(Struct, kw_only=True):
    """Everything that the page of a run shows."""

    run: RunDocument
    timeline: Timeline
    takes: CodeSchema | None
    """JSON schemas of its input, signals, updates and queries; null when no worker has published them."""
    parent: Description | None
    """Null also when it is gone."""
    children: list[Description]
    """The newest: 200 at most."""
    forks: list[Description]
    """Runs that operators made from it, newest first: those of the last 50 forks, resets, retries and reprocessings of
    its id."""


class RunsView(Struct, kw_only=True):
    """Everything that the page of runs shows: a page of runs, and how many match in each state."""

    runs: list[Description]
    cursor: str | None
    states: dict[str, int] | None
    """Every filter applies but that of the state, so that a page can show what another choice would give. Null: there
    are so many that it takes a while; ask for `/api/v1/runs/states`."""
    total: int | None
    """All matching runs, not only those of the page."""


class WaitQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    wait: float = 0.0
    """Seconds to wait for its end."""


class JournalQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    after: int = -1
    limit: int = 1_000


class Journal(RunAnswer, kw_only=True):
    entries: list[JournalLine]
    next: int | None
    """For `after`, to read on; null after the last entry."""


class DiffQuery(Struct, kw_only=True, forbid_unknown_fields=True, rename={"other": "with"}):
    other: str | None = None


class Attempts(RunAnswer, kw_only=True):
    state: RunState
    attempts: list[AttemptView]


class Published(Struct):
    id: str
    published: dict[str, Any]


class PublishedValue(Struct):
    id: str
    name: str
    value: Any


async def list_runs(call: Call) -> RunPage:
    query: RunPageQuery = call.query
    filters = where(query)
    if query.waiting_for is not None:
        filters["waiting_for"] = query.waiting_for
    return await call.client.list(cursor=query.cursor, limit=query.limit, **filters)


async def view_runs(call: Call) -> RunsView:
    filters = where(call.query)
    wanted = filters.pop("states", tuple(RunState))
    counting = asyncio.ensure_future(states_of(call, filters))
    try:
        page = await list_runs(call)
        await asyncio.wait({counting}, timeout=_PATIENCE)
        if not counting.done():  # rows do not wait for it
            return RunsView(runs=page.runs, cursor=page.cursor, states=None, total=None)
        states = counting.result().states
    finally:
        counting.cancel()
    return RunsView(runs=page.runs, cursor=page.cursor, states=states, total=sum(states[state] for state in wanted))


async def count_runs(call: Call) -> Count:
    return Count(await call.client.count(**where(call.query)))


async def count_states(call: Call) -> States:
    return await states_of(call, where(call.query))


async def states_of(call: Call, filters: dict[str, Any]) -> States:
    """How many runs are in each state that the filter lets through."""
    wanted = filters.pop("states", None) or tuple(RunState)
    found = await call.client.count_states(states=wanted, **filters)
    return States({str(state): found.get(state, 0) for state in wanted}, sum(found.values()))


async def start(call: Call) -> Answer:
    body: StartBody = call.body
    options = options_of(body, "name", "input", "id", "signal", "headers")
    options["headers"] = {TRACE: call.traceparent} | (body.headers or {})
    if body.signal is not None:
        given = body.signal
        options["signal"] = (given.name, given.value, *([given.message_id] if given.message_id is not None else []))
    handle = await call.client.start(body.name, *body.input, id=body.id, **options)
    is_new = bool(handle.is_new)
    state = RunState.PENDING if is_new else (await handle.describe()).state
    made = Started(id=handle.id, run_id=handle.run_id, workflow=body.name, is_new=is_new, state=state)
    return Answer(body=made, status=201 if is_new else 200, headers=call.located("runs", str(handle.run_id)))


async def wait_for_end(handle: Handle[Any], seconds: float) -> None:
    """Until the run closes, or for so long."""
    check_wait("wait", seconds)
    if seconds:
        with suppress(TimeoutError, BatutaError):  # how it ended is in the answer
            await handle.result(timeout=seconds)


async def show(call: Call) -> dict[str, Any]:
    handle = await call.run()
    await wait_for_end(handle, call.query.wait)
    run, _, more = await run_document(handle)
    return {**to_builtins(run), **more}


async def view(call: Call) -> dict[str, Any]:
    run, timeline, more = await run_document(await call.run())
    kind = "job" if run.kind is RunKind.JOB else "workflow"
    takes, parent, children, forks = await asyncio.gather(
        call.client.workers.schema(run.workflow, run.version, kind=kind),
        described(call.client, run.parent),
        call.client.list(kind="any", limit=_CHILDREN, parent=run.run_id),
        _forks(call, run),
    )
    family = {"parent": parent, "children": children.runs, "forks": forks}
    return {"run": {**to_builtins(run), **more}, "timeline": timeline, "takes": takes, **family}


async def _forks(call: Call, run: Description) -> list[Description]:
    """Runs that operators made from this one: the audit log names them."""
    pages = await asyncio.gather(
        *(call.client.audit(target=run.id, verb=verb, limit=_ACTS) for verb in ("fork", "reset", "retry", "reprocess"))
    )
    acts = sorted((act for page in pages for act in page.rows), key=lambda act: act.number, reverse=True)
    made = [act.after["run_id"] for act in acts if act.run_id == str(run.run_id) and "run_id" in (act.after or {})]
    found = await asyncio.gather(*(described(call.client, run_id) for run_id in made))
    return [one for one in found if one is not None]


async def journal(call: Call) -> Journal:
    query: JournalQuery = call.query
    if not 1 <= query.limit <= 10_000 or query.after < -1:
        raise InvalidInput(f"limit={query.limit} must be from 1 to 10000, and after={query.after} from -1 on")
    handle = await call.run()
    lines = await handle.journal(after=query.after, limit=query.limit + 1)
    more = len(lines) > query.limit
    lines = lines[: query.limit]
    return Journal(id=handle.id, run_id=handle.run_id, entries=lines, next=lines[-1].ord if more else None)


async def timeline(call: Call) -> Timeline:
    return await (await call.run()).timeline()


async def diff(call: Call) -> Diff:
    handle, query = await call.run(), call.query
    other: Handle[Any] | None = None if query.other is None else await find_run(call.client, query.other)
    return await handle.diff(other)


async def attempts(call: Call) -> Attempts:
    handle = await call.run()
    run = await handle.describe()
    return Attempts(id=run.id, run_id=run.run_id, state=run.state, attempts=await handle.attempts())


async def published(call: Call) -> Published:
    handle = await call.run()
    return Published(handle.id, await handle.published())


async def published_value(call: Call) -> PublishedValue:
    handle, name = await call.run(), call.values[1]
    return PublishedValue(handle.id, name, await handle.published(name))


_ONE = "/api/v1/runs/{id}"
ROUTES = (
    route(
        "GET", "/api/v1/runs", list_runs, "Runs, newest first.", RunPage, query=RunPageQuery, payloads=True, shared=True
    ),
    route(
        "POST",
        "/api/v1/runs",
        start,
        "Start a run of a workflow, by its name.",
        Started,
        body=StartBody,
        status=201,
        large=True,
    ),
    route(
        "GET",
        "/api/v1/runs/page",
        view_runs,
        "Runs, newest first, and how many match the filters in each state.",
        RunsView,
        query=RunPageQuery,
        payloads=True,
        shared=True,
    ),
    route(
        "GET",
        "/api/v1/runs/count",
        count_runs,
        "Count the runs that match filters.",
        Count,
        query=RunQuery,
        shared=True,
    ),
    route(
        "GET",
        "/api/v1/runs/states",
        count_states,
        "Count the runs that match filters, by state.",
        States,
        query=RunQuery,
        shared=True,
    ),
    route(
        "GET",
        _ONE,
        show,
        "One run: input, state, what it waits for, what it has published, its result or error.",
        RunDocument,
        query=WaitQuery,
        payloads=True,
    ),
    route("GET", f"{_ONE}/page", view, "One run and its timeline.", RunView, payloads=True, shared=True),
    route(
        "GET",
        f"{_ONE}/journal",
        journal,
        "Entries of a run's journal, in order.",
        Journal,
        query=JournalQuery,
        payloads=True,
    ),
    route(
        "GET", f"{_ONE}/timeline", timeline, "Where the time of a run went, and every attempt.", Timeline, payloads=True
    ),
    route(
        "GET",
        f"{_ONE}/diff",
        diff,
        "Compare a run with another one of its workflow, or with the run that it was made from.",
        Diff,
        query=DiffQuery,
        payloads=True,
    ),
    route("GET", f"{_ONE}/attempts", attempts, "The recorded attempts of a run's activities.", Attempts, payloads=True),
    route("GET", f"{_ONE}/published", published, "The values that a run has published.", Published, payloads=True),
    route(
        "GET",
        f"{_ONE}/published/{{name}}",
        published_value,
        "One value that a run has published.",
        PublishedValue,
        payloads=True,
    ),
)
