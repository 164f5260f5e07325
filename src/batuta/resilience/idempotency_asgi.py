"""`Idempotency-Key` for any ASGI application: each request is carried out once, duplicates get the same answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from batuta.clock import SECOND, SystemClock
from batuta.durations import Duration
from batuta.errors import BatutaError, IdempotencyKeyReused, InvalidInput, TooLarge
from batuta.ids import new_trace_id
from batuta.problems import Problem, problem_of, send_problem, title_of, trace_id_of
from batuta.resilience.answers import check_statuses
from batuta.resilience.idempotency import (
    KEEP_SECONDS,
    LARGEST,
    LOCK_SECONDS,
    WAIT_SECONDS,
    FastAnswers,
    HasRequests,
    Idempotency,
    KeptResponse,
    canonical,
    spaced,
    text_headers,
)
from batuta.telemetry import Event, RequestReplayed

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]

log = logging.getLogger("batuta.idempotency")

NOT_KEPT = frozenset((401, 403, 405, 408, 413, 415, 425, 429, 503))
"""Answers that are not kept: the same request may be answered otherwise later."""
REPLAYED = "idempotency-replayed"
LARGEST_BODY = 1024 * 1024
"""Bytes of a request that are read."""


class IdempotencyKeys:
    """Middleware: `app.add_middleware(IdempotencyKeys)`. A POST or PATCH with an `Idempotency-Key` is carried out once.

    The client is `request.state.batuta` (see `batuta.asgi.lifespan`), or `client`. A key is bound to the client's
    namespace, the method, the path, and to what `caller(scope)` says, such as the name of the user: without it, a
    stranger who repeats a request gets its answer, and no handler asks who that is. While a request is
    in progress its key is locked for `lock` seconds, which its holder renews; a duplicate waits for the answer, up to
    `wait` seconds, then gets 409 `idempotency_in_progress` with Retry-After. Answers are kept for `keep` seconds, but
    for those with a status in `not_kept`. The same key with another request gets `conflict`, 409 or 422. `required`:
    refuse requests without a key. Handlers find the key as `request.state.idempotency_key`: what they give it to, such
    as the id of a run, happens once even if the process dies between the effect and the answer. `tell` is given a
    RequestReplayed for each duplicate, such as `metrics.event` of `batuta.metrics`.
    """

    def __init__(
        self,
        app: Application,
        *,
        client: HasRequests | None = None,
        methods: Collection[str] = ("POST", "PATCH"),
        header: str = "Idempotency-Key",
        required: bool = False,
        caller: Callable[[Scope], str] | None = None,
        lock: Duration = LOCK_SECONDS,
        keep: Duration = KEEP_SECONDS,
        wait: Duration = WAIT_SECONDS,
        conflict: int = 409,
        not_kept: Collection[int] = NOT_KEPT,
        largest: int = LARGEST,
        largest_body: int = LARGEST_BODY,
        tell: Callable[[Event], None] | None = None,
        answers: FastAnswers | None = None,
    ) -> None:
        if conflict not in (409, 422):
            raise InvalidInput(f"conflict={conflict!r} must be 409 or 422")
        if isinstance(methods, str) or not all(isinstance(one, str) for one in methods):
            raise InvalidInput(f"methods={methods!r} must be a list of HTTP methods, such as ['POST', 'PATCH']")
        self._app, self._client, self._methods = app, client, frozenset(one.upper() for one in methods)
        self._header, self._required, self._caller = header.lower().encode("latin-1"), required, caller
        self._times: dict[str, Any] = {"lock": lock, "keep": keep, "wait": wait, "largest": largest, "answers": answers}
        self._most_collected = 4 * largest  # bytes: a character has at most four of them
        self._conflict, self._largest_body = conflict, largest_body
        self._not_kept = frozenset(check_statuses("not_kept", not_kept))
        self._known: dict[int, Idempotency] = {}
        self._tell = tell
        Idempotency(None, **self._times)  # type: ignore[arg-type]  # times that cannot be are found here

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in self._methods:
            await self._app(scope, receive, send)
            return
        key = _header(scope, self._header)
        if key is None and not self._required:
            await self._app(scope, receive, send)
            return
        handled: list[_Handled] = []
        try:
            kept, before = await self._answer(scope, receive, key, handled)
            if before and self._tell is not None:
                self._tell(RequestReplayed(SystemClock().now() / SECOND, scope["path"]))
            if not before and handled[-1].is_large:
                await handled[-1].pass_on(send)
            else:
                await _send(kept, send, replayed=before)
        except BatutaError as error:
            await self._refuse(error, scope, send)
        finally:
            for one in handled:
                await one.rest()

    async def _answer(
        self, scope: Scope, receive: Receive, key: str | None, handled: list[_Handled]
    ) -> tuple[KeptResponse, bool]:
        if key is None:
            raise InvalidInput(f"the request has no {self._header.decode()} header: send one, made anew for each act")
        body = await self._read(receive)
        query = sorted(parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))
        content_type = _header(scope, b"content-type") or ""
        asked = msgspec.json.encode([query, content_type]) + b"\0" + canonical(body, content_type)
        caller = self._caller(scope) if self._caller is not None else ""
        where = spaced(*filter(None, (scope["method"], scope.get("root_path", "") + scope["path"], caller)))
        made: list[KeptResponse] = []

        async def work() -> tuple[str, bool]:
            scope["state"] = {**scope.get("state", {}), "idempotency_key": key}
            handled.append(_Handled(self._app, scope, body, receive, self._most_collected))
            made.append(await handled[-1].answer())
            return made[-1].encode(), made[-1].status not in self._not_kept

        once = self._idempotency(scope).once
        answer, before = await once(where, key, asked, work, shorten=KeptResponse.without_body)
        return (KeptResponse.decode(answer), True) if before else (made[-1], False)

    def _idempotency(self, scope: Scope) -> Idempotency:
        client = self._client or scope.get("state", {}).get("batuta")
        if client is None:
            raise InvalidInput(
                "IdempotencyKeys has no client: give it client=, or the application batuta.asgi.lifespan(url)"
            )
        requests = client.namespace.requests
        return self._known.get(id(requests)) or self._known.setdefault(
            id(requests), Idempotency(requests, **self._times)
        )

    async def _read(self, receive: Receive) -> bytes:
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise InvalidInput("the caller left before the request was complete")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._largest_body:
                raise TooLarge("the request", size, self._largest_body, "send less, or raise largest_body=")
            if not message.get("more_body"):
                return b"".join(parts)

    async def _refuse(self, error: BatutaError, scope: Scope, send: Send) -> None:
        trace_id = trace_id_of(_header(scope, b"traceparent")) or new_trace_id()
        problem = problem_of(error)
        if isinstance(error, IdempotencyKeyReused):
            problem.status = self._conflict
        if problem.status >= 500:
            log.error("a request failed, trace id %s", trace_id, exc_info=error)
        await send_problem(problem, trace_id, send)


class _Handled:
    """A request in the application. It is cancelled by no caller that leaves: a duplicate asks for the answer. The
    application may have more to do when its answer is complete. An answer that comes in pieces is collected up to
    `most` bytes: what is larger waits for `pass_on`."""

    def __init__(self, app: Application, scope: Scope, body: bytes, receive: Receive, most: int) -> None:
        self._body, self._given, self._complete = body, False, False
        self._start: Message = {}
        self._parts, self._left = list[bytes](), most
        self._over, self._receive_more = asyncio.Event(), receive
        self.is_large = False
        self._to: asyncio.Future[Send] = asyncio.get_running_loop().create_future()
        # Without extensions: they let an application answer with what cannot be kept, such as the path of a file.
        self._task = asyncio.ensure_future(app({**scope, "extensions": {}}, self._receive, self._send))
        self._task.add_done_callback(lambda _: self._over.set())

    async def answer(self) -> KeptResponse:
        """The application's answer. Raises the error that came before it."""
        try:
            await self._over.wait()
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait([self._task])
            raise
        if self.is_large:
            return KeptResponse(self._start["status"], self._headers())
        if not self._complete:
            await self._task
            raise RuntimeError("the application gave no complete answer")
        return KeptResponse.of(self._start["status"], self._headers(), b"".join(self._parts))

    def _headers(self) -> list[tuple[str, str]]:
        named = self._start.get("headers", ())
        return text_headers([(name.decode("latin-1"), value.decode("latin-1")) for name, value in named])

    async def pass_on(self, send: Send) -> None:
        """Send what was collected of a large answer, and have the application send the rest itself."""
        await send(self._start)
        while self._parts:
            await send({"type": "http.response.body", "body": self._parts.pop(0), "more_body": True})
        self._to.set_result(send)
        await self._task

    async def rest(self) -> None:
        """What the application does after its answer. Raises what it raises."""
        if self._complete:
            await self._task
        elif self.is_large and not self._to.done():  # no caller gets the answer
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _receive(self) -> Message:
        if not self._given:
            self._given = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._over.wait()
        if self.is_large:
            await asyncio.shield(self._to)
            return await self._receive_more()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self.is_large:
            await (await asyncio.shield(self._to))(message)
        elif message["type"] == "http.response.start":
            self._start = message
        elif message["type"] == "http.response.body" and self._start and not self._complete:
            self._parts.append(message.get("body", b""))
            self._left -= len(self._parts[-1])
            self._complete = not message.get("more_body")
            self.is_large = not self._complete and self._left < 0
            if self._complete or self.is_large:
                self._over.set()


async def _send(kept: KeptResponse, send: Send, *, replayed: bool) -> None:
    content = kept.content
    if content is None:
        problem = Problem(
            status=409,
            code="idempotency_replayed",
            title=title_of("idempotency_replayed"),
            detail=f"it was answered before with status {kept.status}, and the answer was too large to be kept",
        )
        await send_problem(problem, new_trace_id(), send)
        return
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in kept.headers]
    headers.append((b"content-length", str(len(content)).encode()))
    if replayed:
        headers.append((REPLAYED.encode(), b"true"))
    await send({"type": "http.response.start", "status": kept.status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _header(scope: Scope, name: bytes) -> str | None:
    found = [value.decode("latin-1") for one, value in scope["headers"] if one == name]
    return found[0] if found else None
