"""Acts on one run: messages, pause and resume, ends, forks."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.json import encode

from batuta.authoring.client.handle import Handle
from batuta.errors import InvalidInput, QueryFailed
from batuta.ids import new_message_id
from batuta.names import check_reason
from batuta.resilience.idempotency import check_key
from batuta.server.filters import ReasonQuery
from batuta.server.http.call import Answer, Call, Refused, RunAnswer, check_wait
from batuta.server.http.routing import Repeat, Scope, route


class SignalBody(Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    value: Any = None
    message_id: str | None = None


class SignalSent(RunAnswer, kw_only=True):
    signal: str


class UpdateBody(Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    args: list[Any] = []
    update_id: str | None = None
    timeout: float = 10.0


class Updated(Struct, kw_only=True):
    """The answer, or that none is there yet: ask again with the same `update_id`."""

    id: str
    update: str
    update_id: str
    answer: Any | UnsetType = UNSET
    pending: bool | UnsetType = UNSET


class QueryBody(Struct, kw_only=True, forbid_unknown_fields=True):
    name: str
    args: list[Any] = []


class Queried(Struct, kw_only=True):
    id: str
    query: str
    answer: Any


class ReasonBody(Struct, kw_only=True, forbid_unknown_fields=True):
    reason: str = ""


class WhyBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The reason must be given: it is kept in the audit log."""

    reason: str


class CancelBody(ReasonBody, kw_only=True, forbid_unknown_fields=True):
    again: bool = False
    """Ask a run that was asked before, and went on or takes too long."""


class Requested(RunAnswer, kw_only=True):
    requested: str
    news: bool | UnsetType = UNSET
    """False: it was so, or was asked for, before."""


class Terminated(RunAnswer, kw_only=True):
    state: str = "terminated"


class ResetBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """`input` and `output` are by the number of the call's command."""

    to: int
    args: list[Any] | None = None
    input: dict[int, list[Any]] | None = None
    output: dict[int, Any] | None = None
    reason: str


class WasReset(RunAnswer, kw_only=True):
    reset_to: int


class ForkBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """`input` and `output` are by the number of the call's command."""

    id: str
    at: int | None = None
    args: list[Any] | None = None
    input: dict[int, list[Any]] | None = None
    output: dict[int, Any] | None = None
    reason: str = ""


class ForkedRun(RunAnswer, kw_only=True):
    forked_from: str


class DeletedRun(RunAnswer, kw_only=True):
    deleted: int


def because(reason: str) -> str:
    """A reason that must be given. Raises InvalidInput."""
    if not reason.strip():
        raise InvalidInput("reason must say why: it is kept in the audit log")
    return check_reason(reason)


async def signal(call: Call) -> SignalSent:
    handle, body = await call.run(), call.body
    await handle.signal(body.name, body.value, message_id=body.message_id)
    return SignalSent(id=handle.id, run_id=handle.run_id, signal=body.name)


async def update(call: Call) -> Answer:
    body: UpdateBody = call.body
    check_wait("timeout", body.timeout)
    handle, update_id = await call.run(), body.update_id or _update_id(call)
    try:
        answer = await handle.update(body.name, *body.args, update_id=update_id, timeout=body.timeout)
    except TimeoutError:
        waits = Updated(id=handle.id, update=body.name, update_id=update_id, pending=True)
        return Answer(body=waits, status=202, headers={"Retry-After": "1"})
    return Answer(body=Updated(id=handle.id, update=body.name, update_id=update_id, answer=answer))


def _update_id(call: Call) -> str:
    """Of an update without one: the idempotency key makes one, so that a repeated request waits for the same answer."""
    key = call.request.headers.get("idempotency-key")
    if key is None:
        return new_message_id()
    check_key(key)
    asked = f"{call.principal.caller}\0{key}\0{call.body.name}".encode() + encode(call.body.args)
    return f"request-{sha256(asked).hexdigest()}"


async def query(call: Call) -> Queried:
    handle, body = await call.run(), call.body
    try:
        answer = await handle.query(body.name, *body.args)
    except QueryFailed as error:
        if error.needs_code:
            raise await needs_code(call, (await handle.describe()).workflow, "a query") from None
        raise
    return Queried(id=handle.id, query=body.name, answer=answer)


async def needs_code(call: Call, name: str, what: str) -> Refused:
    """This server has no code of users: say which workers have it."""
    found = [
        worker.worker_id
        for worker in await call.client.workers.list()
        if worker.live and any(code.partition("@")[0] == name for code in worker.code)
    ]
    where = f"workers {', '.join(found[:5])} have it" if found else "no live worker has it: start one"
    detail = f"{what} needs the code of {name!r}, which this server lacks: {where}; ask there with `batuta ... --app`"
    return Refused(409, "needs_code", detail, workers=found)


def requested(handle: Handle[Any], what: str, news: bool | UnsetType = UNSET) -> Requested:
    return Requested(id=handle.id, run_id=handle.run_id, requested=what, news=news)


async def pause(call: Call) -> Requested:
    handle = await call.run()
    return requested(handle, "pause", await handle.pause(call.body.reason))


async def resume(call: Call) -> Requested:
    handle = await call.run()
    return requested(handle, "resume", await handle.resume(call.body.reason))


async def cancel(call: Call) -> Requested:
    handle = await call.run()
    return requested(handle, "cancel", await handle.cancel(call.body.reason, again=call.body.again))


async def retry(call: Call) -> Requested:
    handle = await call.run()
    await handle.retry(call.body.reason)
    return requested(handle, "retry")


async def terminate(call: Call) -> Terminated:
    reason, handle = because(call.body.reason), await call.run()
    await handle.terminate(reason)
    return Terminated(id=handle.id, run_id=handle.run_id)


def edits(body: Any) -> dict[str, Any]:
    """Edits of the run that is made."""
    return {"args": body.args, "input": body.input, "output": body.output}


async def reset(call: Call) -> WasReset:
    body: ResetBody = call.body
    reason, handle = because(body.reason), await call.run()
    await handle.reset(body.to, reason=reason, **edits(body))
    return WasReset(id=handle.id, run_id=handle.run_id, reset_to=body.to)


async def fork(call: Call) -> Answer:
    body: ForkBody = call.body
    handle = await call.run()
    made = await handle.fork(body.id, at=body.at, reason=body.reason, **edits(body))
    answer = ForkedRun(id=made.id, run_id=made.run_id, forked_from=handle.id)
    return Answer(body=answer, headers=call.located("runs", str(made.run_id)))


async def delete(call: Call) -> DeletedRun:
    reason, handle = because(call.query.reason), await call.run()
    return DeletedRun(id=handle.id, run_id=handle.run_id, deleted=await handle.delete(reason))


_ONE = "/api/v1/runs/{id}"
ROUTES = (
    route("POST", f"{_ONE}/signal", signal, "Send a signal to a run.", SignalSent, body=SignalBody, large=True),
    route(
        "POST",
        f"{_ONE}/update",
        update,
        "Send an update to a run, and wait for its answer.",
        Updated,
        body=UpdateBody,
        large=True,
        payloads=True,
        repeat=Repeat.FREE,
    ),
    route(
        "POST",
        f"{_ONE}/query",
        query,
        "Query the state of a run, with its code.",
        Queried,
        body=QueryBody,
        scope=Scope.VIEWER,
        payloads=True,
        repeat=Repeat.FREE,
    ),
    route(
        "POST", f"{_ONE}/pause", pause, "Pause a run: nothing new begins, nothing is lost.", Requested, body=ReasonBody
    ),
    route("POST", f"{_ONE}/resume", resume, "Resume a paused run.", Requested, body=ReasonBody),
    route("POST", f"{_ONE}/cancel", cancel, "Cancel a run; its code may clean up first.", Requested, body=CancelBody),
    route(
        "POST",
        f"{_ONE}/retry",
        retry,
        "Retry a parked or failed run from where it stopped.",
        Requested,
        body=ReasonBody,
    ),
    route(
        "POST",
        f"{_ONE}/terminate",
        terminate,
        "Terminate a run at once, without telling its code.",
        Terminated,
        body=WhyBody,
    ),
    route(
        "POST", f"{_ONE}/reset", reset, "Reset a run to an entry of its journal.", WasReset, body=ResetBody, large=True
    ),
    route(
        "POST",
        f"{_ONE}/fork",
        fork,
        "Fork a run: begin another one from an entry of its journal.",
        ForkedRun,
        body=ForkBody,
        large=True,
        status=201,
    ),
    route(
        "DELETE",
        _ONE,
        delete,
        "Delete a closed run with all that belongs to it.",
        DeletedRun,
        scope=Scope.ADMIN,
        query=ReasonQuery,
    ),
)
