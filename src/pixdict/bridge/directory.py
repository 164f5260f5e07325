"""The directory over HTTP: one request, one answer. No retries, no limits: `pixdict.bridge.calls` adds them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Self
from urllib.parse import urlencode

import httpcore2
from msgspec import Struct, structs

from pixdict.bridge.settings import BridgeSettings
from pixdict.dict import signatures, xml
from pixdict.dict.headers import PROBLEM_XML, REQUESTING_PARTICIPANT, XML
from pixdict.dict.messages import GetEntryResponse
from pixdict.dict.operations import BASE, NON_PRIORITY_BASE, Operation
from pixdict.dict.problems import DirectoryRefused, Problem
from pixdict.readings import LookUp

_MOST = xml.MAX_BYTES


class DirectoryUnreachable(ConnectionError):
    """No connection, a broken one, or no answer in time. Whether the request was carried out is not known."""


class BrokenAnswer(ConnectionError):
    """An answer that cannot be read, or whose signature is missing or wrong. Whether the request was carried out is not
    known."""


class DirectoryRequest(Struct, frozen=True, kw_only=True):
    """One request of an operation."""

    operation: Operation
    path: Mapping[str, str] = {}
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = {}
    message: Struct | None = None


class DirectoryClient:
    """A pool of connections that are kept open."""

    def __init__(self, settings: BridgeSettings) -> None:
        self._settings = settings
        self._base = settings.directory.rstrip("/")
        self._pool = httpcore2.AsyncConnectionPool(
            max_connections=settings.connections,
            max_keepalive_connections=settings.connections,
            keepalive_expiry=60.0,
            ssl_context=None if settings.tls is None else settings.tls.client_context(),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.aclose()

    async def send(self, request: DirectoryRequest, seconds: float) -> Struct:
        """The answer. Raises DirectoryRefused, DirectoryUnreachable, BrokenAnswer."""
        operation = request.operation
        url = self._base + operation.path_for(**request.path)
        if operation.name == "checkKeys":
            url = url.replace(BASE, NON_PRIORITY_BASE, 1)
        if request.query:
            url += "?" + urlencode(request.query)
        headers = {"Accept": XML, REQUESTING_PARTICIPANT: self._settings.participant, **request.headers}
        body = None
        if request.message is not None:
            body, headers["Content-Type"] = self._written(request.message, signed=operation.signed), XML
        try:
            async with asyncio.timeout(seconds):
                response = await self._pool.request(operation.method, url, headers=list(headers.items()), content=body)
        except TimeoutError as error:
            raise DirectoryUnreachable(f"{operation.name}: no answer within {seconds:.3g} s") from error
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, OSError) as error:
            raise DirectoryUnreachable(f"{operation.name}: {type(error).__name__} {error}".strip()) from error
        return self._read(operation, response)

    def _written(self, message: Struct, *, signed: bool) -> bytes:
        root = xml.to_element(message)
        if signed and self._settings.signer is not None:
            signatures.sign(root, self._settings.signer)
        return xml.serialised(root)

    def _read(self, operation: Operation, response: httpcore2.Response) -> Struct:
        status, content = response.status, response.content
        try:
            if len(content) > _MOST:
                raise xml.InvalidXml(f"the answer has {len(content)} bytes")
            root = xml.parse(content)
            if self._settings.trusted is not None:
                signatures.verify(root, self._settings.trusted)
            if 200 <= status < 300:
                answer = xml.from_element(operation.response, root)
                if isinstance(answer, GetEntryResponse):
                    return LookUp(**structs.asdict(answer), max_age=_max_age(response))
                return answer
            problem = xml.from_element(Problem, root)
        except (xml.InvalidXml, signatures.InvalidSignature) as error:
            raise _unreadable(operation, response, str(error)) from None
        raise DirectoryRefused.of(problem, retry_after=_retry_after(response))


def _unreadable(operation: Operation, response: httpcore2.Response, why: str) -> Exception:
    """A status says enough where the body says nothing: a proxy answers in HTML."""
    status, kind = response.status, _header(response, b"content-type")
    if status in (429, 500, 503) and PROBLEM_XML not in kind:
        names = {429: "RateLimited", 500: "InternalServerError", 503: "ServiceUnavailable"}
        return DirectoryRefused(names[status], status=status, retry_after=_retry_after(response))
    return BrokenAnswer(f"{operation.name}: status {status}, and {why}")


def _header(response: httpcore2.Response, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in response.headers if key.lower() == name), "")


def _retry_after(response: httpcore2.Response) -> int | None:
    text = _header(response, b"retry-after").strip()
    return min(int(text), 86_400) if _is_number(text) else None


def _max_age(response: httpcore2.Response) -> int:
    """For how many seconds the answer may be kept by who asked; 0 for what is not allowed, not said or not readable."""
    values = (value.decode("latin-1") for key, value in response.headers if key.lower() == b"cache-control")
    said = [one.strip() for one in ",".join(values).lower().split(",")]
    if "no-store" in said or "no-cache" in said:
        return 0
    ages = [one.removeprefix("max-age=") for one in said if one.startswith("max-age=")]
    age = _header(response, b"age").strip() or "0"
    if len(ages) != 1 or not _is_number(ages[0]) or not _is_number(age):
        return 0
    return max(0, int(ages[0]) - int(age))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 9
