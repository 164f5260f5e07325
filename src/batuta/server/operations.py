"""Operations on many things: begun at once, followed by their id.

One server process carries an operation out at a time, and holds a lock on it in the store. The store keeps what was
asked and how far it is: when the process ends, another server, or the same one after its restart, goes on with what is
left. What was done stays done, and is not done again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Raw, Struct

from batuta.authoring.client.acting import acting_as
from batuta.client import Batuta
from batuta.clock import SECOND, SystemClock, as_datetime
from batuta.errors import BatutaError, OutcomeUnknown, StoreUnavailable
from batuta.ids import new_message_id, new_trace_id
from batuta.journal.server.documents import OPEN_OPERATIONS, OPERATIONS, Document
from batuta.problems import internal_error, problem_of
from batuta.server.http.call import Answer, Call, Refused, ago, check_wait, now
from batuta.server.http.routing import route

log = logging.getLogger("batuta.server")

WRITTEN = 2.0
"""Seconds between two writes of how far an operation is."""
SILENT = 15.0
"""Seconds after which the process that carried out a running operation is taken to have ended."""
LOOKED = 5.0
"""Seconds between two looks for operations whose process has ended."""
MOST_RESUMED = 10
"""An operation that ends so many processes is not tried again."""
_GOES_ON = "the server process ended before the operation was done: another server continues it"
_TOO_OFTEN = f"{MOST_RESUMED} server processes ended while they carried it out: see their logs, then start it again"
_KEPT = 7 * 86_400 * SECOND
_LISTED = 200


class Operation(Struct, kw_only=True):
    """An act on many runs or dead letters."""

    id: str
    verb: str
    namespace: str
    actor: str = ""
    """The caller who began it."""
    state: str = "running"
    """`running`, `done`, `failed`, or `interrupted`: the server process that carried it out has ended, and another one
    goes on with it."""
    matched: int = 0
    done: int = 0
    refused: dict[str, int] = {}
    """By the code of the problem."""
    resumed: int = 0
    """How many times another process went on with it."""
    started_at: datetime
    ended_at: datetime | None = None
    problem: dict[str, Any] | None = None
    result: Any = None


class Operations(Struct):
    operations: list[Operation]


Left = Callable[[], Awaitable[int]]


class Task(Struct, frozen=True, kw_only=True):
    """A bulk operation in a form that any server process can carry out or continue."""

    name: str
    body: type[Any]
    """The request, kept as JSON."""
    work: Callable[[Batuta, Any, Operation], Awaitable[None]]
    """Does all that matches, and notes in the operation what became of it."""
    left: Callable[[Batuta, Any], Left | None]
    """Counts how many are still to be done; None: that cannot be told."""
    rest: Callable[[Any, datetime], Any]
    """What was asked, kept to things that were there when it was: for another process that goes on."""
    counts_all: bool = False
    """Whether `work` counts what processes before did, too."""


class _Kept(Operation, kw_only=True):
    """As the store has it."""

    task: str = ""
    asked: Raw = Raw(b"null")
    trace_id: str = ""


class _Lock:
    """Held by the process that carries an operation out."""

    def __init__(self, client: Batuta, id: str) -> None:
        self._requests, self._name, self._owner = client.namespace.requests, f"operation {id}", new_message_id()

    async def take(self) -> bool:
        kept = await self._requests.begin_request(self._name, "", self._owner, round(SILENT * SECOND), _KEPT)
        return kept.owner == self._owner

    async def renew(self) -> bool:
        return await self._requests.renew_request(self._name, self._owner, round(SILENT * SECOND))

    async def release(self) -> None:
        await self._requests.drop_request(self._name, self._owner)


class OperationBook:
    """Operations of this process, and of other processes as the store has them."""

    def __init__(self, tasks: Sequence[Task], home: Batuta, client_of: Callable[[str], Awaitable[Batuta]]) -> None:
        """`home`: the client of the server's own namespace, where servers find operations that wait for one of them."""
        self._tasks, self._home, self._client_of = {task.name: task for task in tasks}, home, client_of
        self._own: dict[str, tuple[_Kept, asyncio.Task[None]]] = {}
        """Operations that this process carries out now."""
        self._clock = SystemClock()
        self._looked = float("-inf")
        self._looking: asyncio.Task[None] | None = None

    async def begin(self, call: Call, task: Task, verb: str, matched: int, *, wait: float) -> Answer:
        """Carry out what the body of the request asks for, in the background, and wait so many seconds for its end."""
        check_wait("wait", wait, "follow the operation for longer")
        kept = _Kept(
            id=new_trace_id(),
            verb=verb,
            namespace=call.client.namespace.name,
            actor=call.principal.actor,
            matched=matched,
            started_at=now(),
            task=task.name,
            asked=Raw(msgspec.json.encode(call.body)),
            trace_id=call.trace_id,
        )
        lock = _Lock(call.client, kept.id)
        await lock.take()
        await self._note_open(kept, _KEPT)
        await _write(call.client, kept)
        running = self._run(call.client, kept, task, call.body, lock)
        await asyncio.wait({running}, timeout=wait)
        headers = call.located("operations", kept.id)
        return Answer(body=_shown(kept), status=200 if kept.ended_at else 202, headers=headers)

    def look(self) -> None:
        """See, at times, whether another process has ended in the middle of an operation: go on with it."""
        moment = self._clock.monotonic()
        if moment - self._looked >= LOOKED and (self._looking is None or self._looking.done()):
            self._looked = moment
            self._looking = asyncio.create_task(self._look())

    async def keep_looking(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(LOOKED)

    async def find(self, call: Call) -> Operation:
        """As of now. Raises Refused."""
        if (own := self._own.get(call.id)) is not None and own[0].namespace == call.client.namespace.name:
            return _shown(own[0])
        found = await call.client.namespace.documents.document(OPERATIONS, call.id)
        if found is None:
            raise Refused(404, "unknown_operation", f"no operation {call.id[:100]!r}: it is kept for a week")
        return _as_told(found, call.trace_id)

    async def of(self, call: Call) -> list[Operation]:
        """Newest first."""
        found = await call.client.namespace.documents.documents(OPERATIONS, _LISTED)
        own = self._own
        return [_shown(own[one.key][0]) if one.key in own else _as_told(one, call.trace_id) for one in found]

    async def close(self) -> None:
        """Stop. Another process finishes the open operations."""
        tasks = [task for _, task in self._own.values()]
        tasks += [] if self._looking is None else [self._looking]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- carrying out

    def _run(self, client: Batuta, kept: _Kept, task: Task, body: Any, lock: _Lock) -> asyncio.Task[None]:
        running = asyncio.create_task(self._carry_out(client, kept, task, body, lock))
        self._own[kept.id] = kept, running
        running.add_done_callback(lambda _: self._own.pop(kept.id, None))
        return running

    async def _carry_out(self, client: Batuta, kept: _Kept, task: Task, body: Any, lock: _Lock) -> None:
        left = task.left(client, body)
        working = asyncio.create_task(_work(client, kept, task, body, left))
        telling = asyncio.create_task(_keep_telling(client, kept, left, lock, working))
        try:
            await working
            kept.state = "done"
        except (asyncio.CancelledError, StoreUnavailable, OutcomeUnknown):
            kept.state = "interrupted"  # it ends here, or has lost its lock, or its database: it can be gone on with
        except Exception as error:
            problem = problem_of(error) if isinstance(error, BatutaError) else internal_error()
            if problem.status >= 500:
                log.error("operation %s (%s) failed, trace id %s", kept.id, kept.verb, kept.trace_id, exc_info=error)
            kept.state, kept.problem = "failed", problem.document(kept.trace_id)
        finally:
            working.cancel()
            telling.cancel()
            with suppress(BatutaError):  # a database that is away: it is found when the lock has run out
                await self._end(client, kept, lock)

    async def _end(self, client: Batuta, kept: _Kept, lock: _Lock) -> None:
        if not await lock.renew():
            return  # another process has it
        if kept.state != "interrupted":
            kept.ended_at = now()
        await _write(client, kept)
        if kept.ended_at is not None:
            await self._note_open(kept, 1)
        await lock.release()

    async def _note_open(self, kept: _Kept, keep: int) -> None:
        await self._home.namespace.documents.put_documents(OPEN_OPERATIONS, {kept.id: f'"{kept.namespace}"'}, keep)

    # -- going on

    async def _look(self) -> None:
        waiting: list[Document] = []
        with suppress(BatutaError):  # the database is away: the next look is soon
            waiting = await self._home.namespace.documents.documents(OPEN_OPERATIONS, _LISTED)
        for one in waiting:
            if one.key in self._own:
                continue
            try:
                await self._take_over(await self._client_of(msgspec.json.decode(one.body, type=str)), one.key)
            except (BatutaError, Refused, msgspec.MsgspecError, RecursionError) as error:  # others do not wait for it
                log.warning("operation %s waits for a server, and cannot be gone on with here: %s", one.key, error)

    async def _take_over(self, client: Batuta, id: str) -> None:
        """Go on with an operation, if no other process carries it out."""
        documents, lock = client.namespace.documents, _Lock(client, id)
        found = await documents.document(OPERATIONS, id)
        if (found is not None and not _waits(found)) or not await lock.take():
            return
        found = await documents.document(OPERATIONS, id)  # as its last holder left it
        kept = None if found is None else msgspec.json.decode(found.body, type=_Kept)
        task = None if kept is None else self._tasks.get(kept.task)
        if found is None or kept is None or task is None or kept.ended_at is not None:
            await self._home.namespace.documents.put_documents(OPEN_OPERATIONS, {id: '""'}, 1)
            await lock.release()
            return
        kept.resumed += 1
        if kept.resumed > MOST_RESUMED:
            kept.state, kept.problem = "failed", _interrupted(_TOO_OFTEN, kept.trace_id)
            await self._end(client, kept, lock)
            return
        kept.state, kept.problem = "running", None
        kept.started_at = as_datetime(found.created_at)  # by the clock of the store, as that of all that it did
        await _write(client, kept)
        log.warning("going on with operation %s (%s): the process that carried it out has ended", kept.id, kept.verb)
        body = task.rest(msgspec.json.decode(kept.asked, type=task.body), kept.started_at)
        self._run(client, kept, task, body, lock)
        await asyncio.sleep(0)  # one that never began could not release its lock


async def _work(client: Batuta, kept: _Kept, task: Task, body: Any, left: Left | None) -> None:
    """The numbers of the processes before are added, if the task does not count them itself."""
    matched, done, refused = kept.matched, kept.done if kept.resumed else 0, dict(kept.refused)
    with acting_as(kept.actor):
        await task.work(client, body, kept)
    if kept.resumed:
        if task.counts_all:
            kept.matched = max(matched, kept.matched)
        else:
            kept.matched, kept.done = max(matched, done + kept.matched), done + kept.done
            kept.refused = {name: refused.get(name, 0) + kept.refused.get(name, 0) for name in refused | kept.refused}
        if left is not None:  # what was done just before the other process ended is in no count
            kept.done = max(kept.done, kept.matched - await left())


async def _keep_telling(
    client: Batuta, kept: _Kept, left: Left | None, lock: _Lock, working: asyncio.Task[None]
) -> None:
    while True:
        await asyncio.sleep(WRITTEN)
        with suppress(BatutaError):
            if not await lock.renew():
                working.cancel()
                return
            if left is not None:
                kept.done = max(kept.done, kept.matched - await left())
            await _write(client, kept)


async def _write(client: Batuta, kept: _Kept) -> None:
    body = msgspec.json.encode(kept).decode()
    await client.namespace.documents.put_documents(OPERATIONS, {kept.id: body}, _KEPT)


def _waits(found: Document) -> bool:
    """Whether no process carries it out. One whose end was written may have been left in the list of open ones."""
    state = msgspec.json.decode(found.body, type=Operation).state
    return state != "running" or found.age > SILENT * SECOND


def _as_told(found: Document, trace_id: str) -> Operation:
    kept = msgspec.json.decode(found.body, type=_Kept)
    if kept.state == "interrupted" or (kept.state == "running" and found.age > SILENT * SECOND):
        kept.state, kept.problem = "interrupted", _interrupted(_GOES_ON, trace_id)
    return _shown(kept)


def _shown(kept: _Kept) -> Operation:
    return Operation(**{name: getattr(kept, name) for name in Operation.__struct_fields__})


def _interrupted(why: str, trace_id: str) -> dict[str, Any]:
    return Refused(503, "interrupted", why).problem.document(trace_id)


def earlier(text: str | None, other: datetime) -> str:
    """The earlier of a time that a filter has and another one."""
    return min(other, ago(text, "until") or other).isoformat()


async def list_operations(call: Call) -> Operations:
    return Operations(await call.server.operations.of(call))


async def show(call: Call) -> Operation:
    found: Operation = await call.server.operations.find(call)
    return found


ROUTES = (
    route(
        "GET",
        "/api/v1/operations",
        list_operations,
        "Operations on many things, newest first.",
        Operations,
        payloads=True,
    ),
    route("GET", "/api/v1/operations/{id}", show, "One operation, and how far it is.", Operation, payloads=True),
)
