"""The way of a request: find its route, let it in, read it, carry it out, answer. Problems are made here alone."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import Any

import msgspec
from msgspec import Struct
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from batuta.authoring.client.acting import acting_as
from batuta.authoring.log_context import request_trace
from batuta.clock import SECOND, SystemClock
from batuta.errors import BatutaError
from batuta.ids import new_span_id, new_trace_id
from batuta.problems import TRACE_HEADER, Problem, internal_error, problem_of, trace_id_of
from batuta.redaction import Redactor
from batuta.resilience.idempotency import Idempotency, KeptResponse, text_headers
from batuta.server.http.call import Answer, Call, Refused
from batuta.server.http.decoding import read_body, read_query
from batuta.server.http.routing import Found, Repeat, Route, Router, Scope
from batuta.server.http.security_headers import RAW_SECURITY_HEADERS
from batuta.server.http.shared_reads import SharedReads
from batuta.telemetry import RequestReplayed, RequestServed

log = logging.getLogger("batuta.server")

SMALL, LARGE = 64 * 1024, 1024 * 1024
"""Bytes of a body: of most routes, and of those that carry a payload (or the client's own limit, if that is more)."""
SLOWEST = 60.0
"""Seconds for a request, reading its body included."""
SLOWEST_BODY = 20.0
"""Seconds for its body alone."""
_METHODS = frozenset("DELETE GET HEAD PATCH POST PUT".split())
_encode = msgspec.json.encode


class Endpoint:
    """The ASGI application of all routes in the table."""

    def __init__(self, server: Any, router: Router) -> None:
        self._server, self._router, self._clock = server, router, SystemClock()
        self.reads = SharedReads()

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        request, began = Request(scope, receive), self._clock.monotonic()
        found = self._router.find(route_path(scope))
        came = request.headers.get("traceparent", "")
        trace_id = trace_id_of(came) or new_trace_id()
        request_trace.set(trace_id)  # the task is the request's own
        traceparent = came if trace_id_of(came) else f"00-{trace_id}-{new_span_id()}-01"
        try:
            async with asyncio.timeout(SLOWEST) as limit:
                response = await self._answer(request, found, trace_id, traceparent, limit)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets a problem
            response = self._problem(error, request, trace_id)
        response.headers.setdefault(TRACE_HEADER, trace_id)
        response.raw_headers += RAW_SECURITY_HEADERS
        self._count(request.method, found, response.status_code, began)
        await response(scope, receive, send)

    def _count(self, method: str, found: Found, status: int, began: float) -> None:
        """The answer is ready. Strange methods are counted together."""
        at, took = self._clock.now() / SECOND, self._clock.monotonic() - began
        path = next((route.path for route in found.routes.values()), "")
        self._server.metrics.event(RequestServed(at, method if method in _METHODS else "other", path, status, took))

    def _problem(self, error: Exception, request: Request, trace_id: str) -> Response:
        if isinstance(error, Refused):
            problem = error.problem
        elif isinstance(error, TimeoutError):
            problem = Problem(
                status=503,
                code="timeout",
                title="Timeout",
                detail=f"it took longer than {SLOWEST:g} s: try again, or ask for less",
                retry_after=1,
            )
        else:
            problem = problem_of(error) if isinstance(error, BatutaError) else internal_error()
        if problem.status >= 500:
            log.error("%s %s failed, trace id %s", request.method, request.url.path, trace_id, exc_info=error)
        extra = {"Allow": problem.more.pop("allow")} if "allow" in problem.more else {}
        if problem.status == 401:
            extra["WWW-Authenticate"] = "Bearer"
        body = b"" if request.method == "HEAD" else problem.body(trace_id)
        return Response(body, problem.status, problem.headers(trace_id) | extra)

    async def _answer(
        self, request: Request, found: Found, trace_id: str, traceparent: str, limit: asyncio.Timeout
    ) -> Response:
        method = "GET" if request.method == "HEAD" and "HEAD" not in found.routes else request.method
        route = found.routes.get(method)
        if not found.routes or any("\x00" in value for value in found.values):
            raise Refused(404, "not_found", "no such path: /openapi.json lists all paths")
        if route is None or (route.streams and request.method == "HEAD"):
            allowed = ", ".join(_allowed(found))
            raise Refused(405, "method_not_allowed", f"this path takes {allowed}", allow=allowed)
        principal = await self._server.auth.admit(request, route)
        query, apart = read_query(route.query, request.scope.get("query_string", b""), _also(route))
        client = await self._server.client_for(principal, apart.get("namespace"), route)
        call = Call(
            server=self._server,
            route=route,
            client=client,
            principal=principal,
            values=found.values,
            query=query,
            body=None if route.body is None else read_body(route.body, await self._read(request, route)),
            trace_id=trace_id,
            root=request.scope.get("root_path", "").rstrip("/"),
            traceparent=traceparent,
            request=request,
        )
        redactor = await self._redactor(call, apart) if route.payloads else None
        key = request.headers.get("idempotency-key")
        try:
            with acting_as(principal.actor):
                if key is not None and route.method == "POST" and route.repeat in (Repeat.KEPT, Repeat.SECRET):
                    return await self._redacted(await _once(call, key), call, redactor)
                if route.shared:
                    asked = (
                        route.path,
                        tuple(found.values),
                        request.url.query,
                        client.namespace.name,
                        redactor is None,
                    )
                    reply = await self.reads.read(asked, lambda: _read(call, redactor))
                    return _sent(reply, request.headers)
                answer = await route.handler(call)
        except BatutaError as error:
            problem = problem_of(error)
            if problem.status >= 500:
                raise
            return await self._redacted(refusal(problem, trace_id), call, redactor)
        if isinstance(answer, Response):
            limit.reschedule(None)  # a stream lasts as long as it is read
            return answer
        return _sent(_reply(route, answer, redactor), request.headers)

    async def _redacted(self, response: Response, call: Call, redactor: Redactor | None) -> Response:
        """A whole answer without what redaction hides: the words of an error may quote payloads, too."""
        refuses = response.status_code >= 400
        if refuses and not call.route.payloads and call.route.namespaced:
            redactor = await self._server.redactor_for(call.client)
        if redactor is None or not response.body:
            return response
        document = msgspec.json.decode(response.body)
        if refuses:
            document |= {name: redactor.text(document[name]) for name in ("detail", "id") if name in document}
        else:
            document = redactor.value(document)
        headers = {name: value for name, value in response.headers.items() if name != "content-length"}
        return Response(_encode(document), response.status_code, headers)

    async def _read(self, request: Request, route: Route) -> bytes:
        """The body, up to the limit of its route."""
        most = max(LARGE, self._server.max_payload + SMALL) if route.large else SMALL
        kind = request.headers.get("content-type", "")
        if kind and kind.partition(";")[0].strip().lower() != "application/json":
            raise Refused(415, "unsupported_media_type", f"the body is {kind[:100]!r}: send application/json")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise Refused(415, "unsupported_media_type", "the body is compressed: send it as it is")
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > most:
            raise Refused(413, "too_large", f"the body is {length[:20]} bytes, over the limit of {most:,}: send less")
        parts, size = [], 0
        try:
            async with asyncio.timeout(SLOWEST_BODY):
                async for part in request.stream():
                    size += len(part)
                    if size > most:
                        raise Refused(413, "too_large", f"the body is over the limit of {most:,} bytes: send less")
                    parts.append(part)
        except TimeoutError:
            detail = f"the body did not come within {SLOWEST_BODY:g} s: send it at once"
            raise Refused(408, "request_timeout", detail) from None
        if size and not kind:
            raise Refused(415, "unsupported_media_type", "the body has no Content-Type: send application/json")
        return b"".join(parts)

    async def _redactor(self, call: Call, apart: dict[str, str]) -> Redactor | None:
        """The redactor of the answer; None when the caller may see everything."""
        reveal = _flag("reveal", apart.get("reveal"))
        redactor: Redactor | None = await self._server.redactor_for(call.client)
        if redactor is None or not reveal:
            return redactor
        reason = str(apart.get("reason") or getattr(call.query, "reason", ""))
        if call.principal.scope < Scope.OPERATOR:
            raise Refused(403, "forbidden", "only an operator may see what redaction hides: use another key")
        if not reason.strip():
            raise Refused(400, "invalid_input", "reveal needs a reason: it is kept in the audit log", path="reason")
        with acting_as(call.principal.actor):
            target = call.id if call.values else call.route.noun
            await call.client.namespace.note_reveal(target, {"path": call.route.path}, reason)
        return None


async def _once(call: Call, key: str) -> Response:
    """Carry it out once for each key of the caller; the same request gets the same answer again."""
    route = call.route
    asked = _encode([route.path, call.values, call.query, call.body])

    async def work() -> tuple[str, bool]:
        try:
            response = _sent(_reply(route, await route.handler(call), None), call.request.headers)  # kept as it is
        except Refused as error:
            response = refusal(error.problem, call.trace_id)
        except BatutaError as error:
            problem = problem_of(error)
            if problem.status >= 500:
                raise
            response = refusal(problem, call.trace_id)
        keep = response.status_code < 500 and response.status_code != 429
        secret = keep and route.repeat is Repeat.SECRET and response.status_code < 300
        headers = text_headers(dict(response.headers))
        made.append(response)
        return KeptResponse.of(response.status_code, headers, None if secret else bytes(response.body)).encode(), keep

    made: list[Response] = []
    once = Idempotency(call.client.namespace.requests).once
    answer, before = await once(call.principal.caller, key, asked, work, shorten=KeptResponse.without_body)
    if not before:
        return made[0]
    call.server.metrics.event(RequestReplayed(SystemClock().now() / SECOND, route.path))
    kept = KeptResponse.decode(answer)
    if kept.content is None:
        why = "its secret is shown once" if route.repeat is Repeat.SECRET else "its answer was too large to be kept"
        raise Refused(409, "idempotency_replayed", f"it was done before with this key, and {why}: begin anew")
    return Response(kept.content, kept.status, dict(kept.headers) | {"Idempotency-Replayed": "true"})


def _allowed(found: Found) -> list[str]:
    """The methods of a path: HEAD goes with each GET that ends."""
    head = {"HEAD"} if "GET" in found.routes and not found.routes["GET"].streams else set()
    return sorted(found.routes.keys() | head)


def refusal(problem: Problem, trace_id: str) -> Response:
    return Response(problem.body(trace_id), problem.status, problem.headers(trace_id))


def _also(route: Route) -> tuple[str, ...]:
    """Query parameters that every such route takes, beside its own."""
    names = (("namespace",) if route.namespaced else ()) + (("reveal", "reason") if route.payloads else ())
    return tuple(name for name in names if name not in route.query.__struct_fields__)


def _flag(name: str, text: str | None) -> bool:
    if text in (None, "false"):
        return False
    if text != "true":
        raise Refused(400, "invalid_input", f"query parameter {name} must be true or false", path=name)
    return True


def route_path(scope: AsgiScope) -> str:
    """The path below where the server is mounted, still percent-encoded."""
    raw = scope.get("raw_path") or b""
    path = raw.decode("ascii", "replace").partition("?")[0] if raw else str(scope["path"])
    root = str(scope.get("root_path", "")).rstrip("/")
    return path[len(root) :] if root and path.startswith(root + "/") else path


class _Reply(Struct, frozen=True):
    """An answer as bytes, before it is known whether the caller has them."""

    status: int
    headers: dict[str, str]
    data: bytes


async def _read(call: Call, redactor: Redactor | None) -> _Reply:
    return _reply(call.route, await call.route.handler(call), redactor)


def _reply(route: Route, answer: Any, redactor: Redactor | None) -> _Reply:
    headers: dict[str, str] = {"Content-Type": "application/json", "Cache-Control": "no-store"}
    status = route.status
    if isinstance(answer, Answer):
        headers |= answer.headers
        status, answer = answer.status or status, answer.body
    if status == 204:
        return _Reply(204, headers, b"")
    data = _encode(answer)
    if redactor is not None:
        shown = redactor.value(msgspec.json.decode(data))
        _show_names(answer, shown, redactor)
        data = _encode(shown)
    if route.method == "GET" and status == 200:
        headers["ETag"] = f'"{hashlib.blake2b(data, digest_size=12).hexdigest()}"'
        headers["Cache-Control"] = "no-cache, private"
    return _Reply(status, headers, data)


def _show_names(answer: Any, shown: Any, redactor: Redactor) -> None:
    """Redaction may hide the `name` of persons. That of a struct of this API is the name of a step, a gauge, an
    action."""
    if isinstance(shown, dict) and type(answer).__module__.startswith("batuta."):
        for key in shown.keys() & set(getattr(answer, "__struct_fields__", ())):
            one = getattr(answer, key)
            if key == "name" and isinstance(one, str):
                shown[key] = redactor.text(one)
            else:
                _show_names(one, shown[key], redactor)
    elif isinstance(answer, list | tuple) and isinstance(shown, list):
        for one, seen in zip(answer, shown, strict=True):
            _show_names(one, seen, redactor)


def _sent(reply: _Reply, asked: Headers) -> Response:
    known, tag = asked.get("if-none-match", ""), reply.headers.get("ETag")
    if known and tag and (known.strip() == "*" or tag in {one.strip().removeprefix("W/") for one in known.split(",")}):
        return Response(b"", 304, reply.headers)
    return Response(reply.data, reply.status, reply.headers)
