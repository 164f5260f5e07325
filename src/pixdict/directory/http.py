"""The directory over HTTP: reads requests within bounds, lets faults happen, and answers."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs

from pixdict.dict.problems import DirectoryRefused
from pixdict.directory.admin import Admin
from pixdict.directory.faults import STATUSES, Fault, FaultKind, Faults
from pixdict.directory.requests import Reply, Request, route
from pixdict.directory.service import Service

logger = logging.getLogger("pixdict.directory")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

KEEP_ALIVE = 60
"""Seconds that a connection without requests is kept; every answer tells it."""
_GZIP_FROM = 1024
"""Bytes of an answer that is worth compressing."""
_MOST_PARAMETERS = 100
_PASSED_OVER = 64 * 1024 * 1024
"""Bytes of a request that is too large, which are read and thrown away."""


class _Gone(Exception):
    """The client went away before its request had arrived."""


class Application:
    """An ASGI application. Everything below `/admin/` is for tests and people, all else is the directory's own API."""

    def __init__(self, service: Service, faults: Faults) -> None:
        self._service = service
        self._faults = faults
        self._admin = Admin(service, faults)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            raise RuntimeError(f"the directory speaks HTTP, not {scope['type']}")
        try:
            body = await self._body(scope, receive)
        except DirectoryRefused as refused:
            await _answer(scope, send, self._service.refusal(refused), last=False)
            await self._pass_over(receive)
            await send({"type": "http.response.body"})
            return
        except _Gone:
            return
        try:
            request = _request(scope, body, _peer(receive) if self._service.settings.tls else None)
        except ValueError:
            too_many = DirectoryRefused("BadRequest", f"the request has more than {_MOST_PARAMETERS} parameters")
            await _answer(scope, send, self._service.refusal(too_many))
            return
        if request.path.startswith("/admin/"):
            await _answer(scope, send, self._admin.handle(request))
            return
        found = route(request.method, request.path)
        happening = self._faults.take(found.operation.name) if found else {}
        reply = await self._reply(request, happening, receive)
        if reply is None:
            await _drop(receive, send)
        else:
            await _answer(scope, send, reply)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        try:
            return await asyncio.wait_for(self._read(scope, receive), self._service.settings.body_timeout)
        except TimeoutError:
            seconds = self._service.settings.body_timeout
            raise DirectoryRefused("BadRequest", f"the request did not arrive within {seconds:g} s") from None

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        most = self._service.settings.max_body
        encoding = _header(scope, b"content-encoding")
        if encoding not in (b"", b"identity"):
            raise DirectoryRefused("BadRequest", "compressed requests are not supported")
        length = _header(scope, b"content-length")
        if length.isdigit() and int(length) > most:
            raise DirectoryRefused("BadRequest", f"the request has {int(length)} bytes; at most {most} are taken")
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > most:
                raise DirectoryRefused("BadRequest", f"the request has more than {most} bytes")
            if not message.get("more_body"):
                return b"".join(parts)

    async def _pass_over(self, receive: Receive) -> None:
        """The rest of a request that is refused. Closed at once, the connection would break off the sending, and the
        client would not see the answer."""
        left = _PASSED_OVER
        with suppress(TimeoutError):
            async with asyncio.timeout(self._service.settings.body_timeout):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if message["type"] == "http.disconnect" or not message.get("more_body"):
                        return

    async def _reply(self, request: Request, faults: dict[FaultKind, Fault], receive: Receive) -> Reply | None:
        """The answer, or None to close the connection instead."""
        if fault := faults.get(FaultKind.LATENCY):
            await asyncio.sleep(fault.seconds)
        if fault := faults.get(FaultKind.TIMEOUT):
            await _silence(receive, fault.seconds)
            return None
        if FaultKind.DROP in faults:
            return None
        refuse = None
        if fault := faults.get(FaultKind.STATUS):
            refuse = DirectoryRefused(STATUSES[fault.status], "a fault on purpose", retry_after=fault.retry_after)
        reply = self._handled(request, refuse)
        if FaultKind.LOST_ANSWER in faults:
            return None
        return _tampered(reply) if FaultKind.WRONG_SIGNATURE in faults else reply

    def _handled(self, request: Request, refuse: DirectoryRefused | None) -> Reply:
        try:
            return self._service.handle(request, refuse=refuse)
        except Exception:
            logger.exception("request failed")
            return self._service.refusal(DirectoryRefused("InternalServerError"))


def _request(scope: Scope, body: bytes, peer: str | None) -> Request:
    query = scope["query_string"].decode("latin-1")
    return Request(
        method=scope["method"],
        path=scope["raw_path"].decode("latin-1"),
        parameters=parse_qs(query, keep_blank_values=True, max_num_fields=_MOST_PARAMETERS),
        headers={name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]},
        body=body,
        peer=peer,
    )


def _transport(receive: Receive) -> Any:
    """ASGI has no word for it: uvicorn's own object is behind `receive`. None of another server."""
    return getattr(getattr(receive, "__self__", None), "transport", None)


def _peer(receive: Receive) -> str:
    """The common name of the certificate that the client showed; "" has no rights."""
    transport = _transport(receive)
    shown = transport.get_extra_info("peercert") if transport is not None else None
    names: dict[str, str] = {name: value for part in (shown or {}).get("subject", ()) for name, value in part}
    return names.get("commonName", "")


def _header(scope: Scope, name: bytes) -> bytes:
    return next((value for key, value in scope["headers"] if key == name), b"")


async def _answer(scope: Scope, send: Send, reply: Reply, *, last: bool = True) -> None:
    """`last`: not, when the request is not read yet. Then the connection is closed after it."""
    headers = [(b"content-type", f"{reply.content_type}; charset=utf-8".encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in reply.headers.items()]
    body = reply.body
    if len(body) >= _GZIP_FROM and b"gzip" in _header(scope, b"accept-encoding"):
        body = gzip.compress(body, compresslevel=1)
        headers.append((b"content-encoding", b"gzip"))
    headers.append((b"content-length", str(len(body)).encode()))
    headers.append((b"keep-alive", b"timeout=%d" % KEEP_ALIVE) if last else (b"connection", b"close"))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": not last})


async def _silence(receive: Receive, seconds: float) -> None:
    """Until the client goes away, or for so long."""
    try:
        async with asyncio.timeout(seconds or None):
            while (await receive())["type"] != "http.disconnect":
                pass
    except TimeoutError:
        pass  # long enough


async def _drop(receive: Receive, send: Send) -> None:
    """Close the connection without a byte."""
    transport = _transport(receive)
    if transport is not None:
        transport.abort()
        await _silence(receive, 0)  # until uvicorn has noticed: else it would answer with a 500
    else:  # another server: an answer that breaks off is the next best
        await send({"type": "http.response.start", "status": 500, "headers": [(b"content-length", b"1")]})


def _tampered(reply: Reply) -> Reply:
    """The same answer with another character in its signature, or in its id where there is none."""
    for mark in (b"<ds:SignatureValue>", b"<CorrelationId>", b"<correlationId>"):
        at = reply.body.find(mark)
        if at >= 0:
            at += len(mark)
            other = b"A" if reply.body[at : at + 1] != b"A" else b"B"
            body = reply.body[:at] + other + reply.body[at + 1 :]
            return Reply(status=reply.status, body=body, content_type=reply.content_type, headers=reply.headers)
    return reply
