"""Operations on many things: begun at once, followed by their id.

One server process carries an operation out, and writes how far it is into the store every few seconds: any server can
tell, also after that process has ended. What it had done then stays done, and what is left still matches its filter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from batuta.client import Batuta
from batuta.clock import SECOND, SystemClock
from batuta.errors import BatutaError, InvalidInput
from batuta.ids import new_trace_id
from batuta.journal.server.documents import OPERATIONS
from batuta.problems import internal_error, problem_of
from batuta.server.http.call import Answer, Call, Refused
from batuta.server.http.routing import Route, Scope

log = logging.getLogger("batuta.server")

LONGEST_WAIT = 30.0
WRITTEN = 2.0
"""Seconds between two writes of how far an operation is."""
SILENT = 15.0
"""Seconds after which the process that carried out a running operation is taken to have ended."""
_KEPT = 7 * 86_400 * SECOND
_LISTED = 200


def now() -> datetime:
    return datetime.fromtimestamp(SystemClock().now() / SECOND, UTC)


class Operation(Struct, kw_only=True):
    """An act on many runs or dead letters."""

    id: str
    verb: str
    namespace: str
    actor: str = ""
    """Who began it."""
    state: str = "running"
    """`running`, `done`, `failed`, or `interrupted`: the server process that carried it out has ended."""
    matched: int = 0
    done: int = 0
    refused: dict[str, int] = {}
    """By the code of the problem."""
    started_at: datetime
    ended_at: datetime | None = None
    problem: dict[str, Any] | None = None
    result: Any = None


class Operations(Struct):
    operations: list[Operation]


Count = Callable[[], Awaitable[int]]
Work = Callable[[Operation], Awaitable[None]]


class OperationBook:
    """Operations: those of this process, and what the store knows of others."""

    def __init__(self) -> None:
        self._own: dict[str, tuple[Operation, asyncio.Task[None]]] = {}
        """Those that this process carries out now."""

    async def begin(
        self, call: Call, verb: str, matched: int, work: Work, *, wait: float, left: Count | None = None
    ) -> Answer:
        """Carry it out in the background, and wait so many seconds for its end. `left`: how many are still to be
        done."""
        if not 0 <= wait <= LONGEST_WAIT:
            raise InvalidInput(
                f"wait={wait} must be from 0 to {LONGEST_WAIT:g} seconds: follow the operation for longer"
            )
        operation = Operation(
            id=new_trace_id(),
            verb=verb,
            namespace=call.client.namespace.name,
            actor=call.principal.actor,
            matched=matched,
            started_at=now(),
        )
        await _write(call.client, operation)
        task = asyncio.create_task(self._carry_out(call.client, operation, work, left, call.trace_id))
        self._own[operation.id] = operation, task
        task.add_done_callback(lambda _: self._own.pop(operation.id, None))
        await asyncio.wait({task}, timeout=wait)
        headers = call.located("operations", operation.id)
        return Answer(body=operation, status=200 if operation.ended_at else 202, headers=headers)

    async def _carry_out(
        self, client: Batuta, operation: Operation, work: Work, left: Count | None, trace_id: str
    ) -> None:
        telling = asyncio.create_task(_keep_telling(client, operation, left))
        try:
            await work(operation)
            operation.state = "done"
        except asyncio.CancelledError:
            _interrupt(operation, trace_id)
            raise
        except Exception as error:
            problem = problem_of(error) if isinstance(error, BatutaError) else internal_error()
            if problem.status >= 500:
                log.error(
                    "operation %s (%s) failed, trace id %s", operation.id, operation.verb, trace_id, exc_info=error
                )
            operation.state, operation.problem = "failed", problem.document(trace_id)
        finally:
            telling.cancel()
            operation.ended_at = now()
            with suppress(BatutaError):  # a database that is away: others will find it interrupted
                await _write(client, operation)

    async def find(self, call: Call) -> Operation:
        """As of now. Raises Refused."""
        if (own := self._own.get(call.id)) is not None and own[0].namespace == call.client.namespace.name:
            return own[0]
        kept = await call.client.namespace.documents.document(OPERATIONS, call.id)
        if kept is None:
            raise Refused(404, "unknown_operation", f"no operation {call.id[:100]!r}: it is kept for a week")
        return _read(kept.body, kept.age, call.trace_id)

    async def of(self, call: Call) -> list[Operation]:
        """Newest first."""
        kept = await call.client.namespace.documents.documents(OPERATIONS, _LISTED)
        return [
            self._own[one.key][0] if one.key in self._own else _read(one.body, one.age, call.trace_id) for one in kept
        ]

    async def close(self) -> None:
        """End what runs: it can be begun again."""
        tasks = [task for _, task in self._own.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _keep_telling(client: Batuta, operation: Operation, left: Count | None) -> None:
    while True:
        await asyncio.sleep(WRITTEN)
        with suppress(BatutaError):
            if left is not None:
                operation.done = max(operation.done, operation.matched - await left())
            await _write(client, operation)


async def _write(client: Batuta, operation: Operation) -> None:
    body = msgspec.json.encode(operation).decode()
    await client.namespace.documents.put_documents(OPERATIONS, {operation.id: body}, _KEPT)


def _read(body: str, age: int, trace_id: str) -> Operation:
    found = msgspec.json.decode(body, type=Operation)
    if found.state == "running" and age > SILENT * SECOND:
        _interrupt(found, trace_id)
    return found


def _interrupt(operation: Operation, trace_id: str) -> None:
    operation.state = "interrupted"
    operation.problem = Refused(
        503, "interrupted", "the server process ended before it was done: begin it again for those that are left"
    ).problem.document(trace_id)


async def list_operations(call: Call) -> Operations:
    return Operations(await call.server.operations.of(call))


async def show(call: Call) -> Operation:
    found: Operation = await call.server.operations.find(call)
    return found


ROUTES = (
    Route(
        method="GET",
        path="/api/v1/operations",
        scope=Scope.VIEWER,
        handler=list_operations,
        summary="Operations on many things, newest first.",
        answer=Operations,
    ),
    Route(
        method="GET",
        path="/api/v1/operations/{id}",
        scope=Scope.VIEWER,
        handler=show,
        summary="One operation, and how far it is.",
        answer=Operation,
    ),
)
