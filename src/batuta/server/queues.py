"""Queues and workers."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct

from batuta.authoring.client.documents import queue_document
from batuta.authoring.client.workers import WorkerRow
from batuta.authoring.schemas import CodeSchema
from batuta.errors import InvalidInput, UnknownQueue
from batuta.journal.queues import LIMITS, QueueInfo, is_rate, limit_help
from batuta.names import check_name
from batuta.server.http.call import Call, Refused
from batuta.server.http.routing import route
from batuta.server.run_actions import ReasonBody

_KINDS = ("activity", "job")
"""Kinds of code whose names begin with them; other code is a workflow."""
_OURS = "batuta."
"""How the names of workflows that Batuta starts itself begin."""


if TYPE_CHECKING:
    _Limits = Struct
    _LimitChanges = Struct
else:  # one field for each limit of a queue; a rate is a text
    _TYPES = {name: (str if is_rate(name) else int) | None for name in LIMITS}
    _DESCRIPTIONS = {name: Meta(description=text) for name, text in limit_help().items()}
    _Limits = defstruct("_Limits", [(name, Annotated[kind, _DESCRIPTIONS[name]]) for name, kind in _TYPES.items()])
    _LimitChanges = defstruct(
        "_LimitChanges",
        [(name, Annotated[kind | UnsetType, _DESCRIPTIONS[name]], UNSET) for name, kind in _TYPES.items()],
    )


class QueueDocument(_Limits, kw_only=True):
    """A queue, as of now; a rate is a text such as `100/min`."""

    name: str
    paused: bool
    reason: str
    ready: int
    delayed: int
    running: int
    oldest: datetime | None
    workers: int


class Queues(Struct):
    queues: list[QueueDocument]


class LimitBody(_LimitChanges, kw_only=True, forbid_unknown_fields=True):
    """Limits of all workers together. A missing limit stays, null removes it."""

    reason: str = ""


class Workers(Struct):
    workers: list[WorkerRow]


class CodeDocument(Struct, kw_only=True):
    """Something that live workers can run."""

    name: str
    version: str
    kind: str
    """`workflow`, `job` or `activity`."""
    workers: list[str]


class SchemaQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    version: str = ""
    kind: Literal["workflow", "job"] = "workflow"


class Workflows(Struct):
    workflows: list[CodeDocument]


async def _find(call: Call) -> QueueInfo:
    for queue in await call.client.queues():
        if queue.name == call.id:
            return queue
    raise UnknownQueue(call.id)


async def _now(call: Call) -> dict[str, Any]:
    try:
        return queue_document(await _find(call))
    except UnknownQueue:  # it is empty, and has no limits any more
        return queue_document(QueueInfo(call.id))


async def list_queues(call: Call) -> dict[str, Any]:
    return {"queues": [queue_document(queue) for queue in await call.client.queues()]}


async def show(call: Call) -> dict[str, Any]:
    return queue_document(await _find(call))


async def limit(call: Call) -> dict[str, Any]:
    changes = {name: value for name in LIMITS if (value := getattr(call.body, name)) is not UNSET}
    if not changes:
        raise InvalidInput(f"nothing to set: give one of {', '.join(LIMITS)}")
    with call.because(call.body.reason):
        await call.client.limit_queue(check_name(call.id, "queue"), **changes)
    return await _now(call)


async def pause(call: Call) -> dict[str, Any]:
    await call.client.pause_queue(call.id, call.body.reason)
    return await _now(call)


async def resume(call: Call) -> dict[str, Any]:
    await _find(call)
    with call.because(call.body.reason):
        await call.client.resume_queue(call.id)
    return await _now(call)


async def list_workers(call: Call) -> Workers:
    return Workers(list(await call.client.workers.list()))


async def list_workflows(call: Call) -> Workflows:
    found: dict[str, CodeDocument] = {}
    for worker in await call.client.workers.list():
        for code in worker.code if worker.live else ():
            kind = next((kind for kind in _KINDS if code.startswith(f"{kind}:")), "workflow")
            name, _, version = code.removeprefix(f"{kind}:").partition("@")
            if name.startswith(_OURS):
                continue
            known = CodeDocument(name=name, version=version, kind=kind, workers=[])
            found.setdefault(code, known).workers.append(worker.worker_id)
    return Workflows(sorted(found.values(), key=lambda one: (one.kind != "workflow", one.name, one.version)))


async def show_workflow(call: Call) -> CodeSchema:
    query: SchemaQuery = call.query
    found = await call.client.workers.schema(call.id, query.version, kind=query.kind)
    if found is None:
        what = f"{query.kind} {call.id[:100]!r}" + (f" of version {query.version[:100]!r}" if query.version else "")
        raise Refused(404, "unknown_workflow", f"no worker has published the {what}: start one that has it")
    return found


_ALL, _ONE = "/api/v1/queues", "/api/v1/queues/{name}"


ROUTES = (
    route("GET", _ALL, list_queues, "Queues: waiting and running work, limits.", Queues, shared=True),
    route("GET", _ONE, show, "One queue.", QueueDocument),
    route("PATCH", _ONE, limit, "Set limits for all workers together.", QueueDocument, body=LimitBody),
    route(
        "POST",
        f"{_ONE}/pause",
        pause,
        "Pause a queue: workers begin nothing more from it.",
        QueueDocument,
        body=ReasonBody,
    ),
    route("POST", f"{_ONE}/resume", resume, "Resume a paused queue.", QueueDocument, body=ReasonBody),
    route(
        "GET",
        "/api/v1/workers",
        list_workers,
        "Workers: where they run, what they can run, their last beat.",
        Workers,
        shared=True,
    ),
    route("GET", "/api/v1/workflows", list_workflows, "The workflows and jobs of live workers.", Workflows),
    route(
        "GET",
        "/api/v1/workflows/{name}",
        show_workflow,
        "What a workflow or a job takes, as JSON schemas: input, signals, updates, queries.",
        CodeSchema,
        query=SchemaQuery,
    ),
)
