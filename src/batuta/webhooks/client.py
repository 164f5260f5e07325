"""HTTP to strangers: bounded in time and size, and only to addresses that may be called."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urljoin

from msgspec import Struct

from batuta.durations import fields_in_seconds
from batuta.errors import (
    AddressRefused,
    BatutaError,
    InvalidInput,
    InvalidURL,
    MissingExtra,
    PartnerUnreachable,
    ResponseTooLarge,
)
from batuta.names import check_number
from batuta.webhooks.addresses import AddressPolicy
from batuta.webhooks.urls import Target, parse_target

if TYPE_CHECKING:
    from httpcore2 import AsyncConnectionPool

_HEADER = frozenset("abcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~")
_OURS: Final = frozenset(("host", "content-length", "transfer-encoding", "connection", "te", "upgrade", "trailer"))
_SECRETS: Final = frozenset(("authorization", "cookie", "proxy-authorization"))
_REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))


class HttpLimits(Struct, frozen=True, kw_only=True):
    """Limits for a stranger's server. Times are seconds or timedeltas."""

    total: float = 30.0
    """For everything: look-up, connection, redirects, the whole answer."""
    connect: float = 5.0
    read: float = 10.0
    """The longest wait between two pieces of the answer."""
    response_bytes: int = 1024 * 1024
    """Bytes of the answer's body. A longer one is an error."""
    request_bytes: int = 1024 * 1024
    redirects: int = 0
    """How many are followed. Each target is checked like the first."""
    connections: int = 100
    """Connections of one client at once."""

    def __post_init__(self) -> None:
        fields_in_seconds(self, "total", "connect", "read")
        for name in ("total", "connect", "read"):
            check_number(f"HttpLimits: {name}", getattr(self, name), 0.001)
        for name in ("response_bytes", "request_bytes", "redirects", "connections"):
            check_number(f"HttpLimits: {name}", getattr(self, name), 0 if name == "redirects" else 1, whole=True)


class HttpResponse(Struct, frozen=True):
    """An answer."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    url: str
    """Where it came from, after redirects."""


class SafeHttpClient:
    """An HTTP client for addresses that other people choose.

    It resolves a host once, refuses it if one of its addresses may not be called, and connects to the address that was
    checked, with the name in `Host` and TLS. It follows no redirects unless told to, and no proxies of the environment.
    """

    def __init__(
        self,
        policy: AddressPolicy | None = None,
        limits: HttpLimits | None = None,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.policy = policy or AddressPolicy()
        self.limits = limits or HttpLimits()
        self._pool = _make_pool(self.policy, self.limits, tls)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._pool.aclose()

    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> HttpResponse:
        """Send a request and read the whole answer, whatever its status.

        Raises AddressRefused, InvalidURL and InvalidInput (trying again does not help), PartnerUnreachable (it may),
        ResponseTooLarge.
        """
        target, sent = parse_target(url), check_headers(headers or {})
        if len(body) > self.limits.request_bytes:
            raise InvalidInput(f"the body has {len(body):,} bytes, over the limit of {self.limits.request_bytes:,}")
        if not method.isascii() or not method.isalpha():
            raise InvalidInput(f"{method!r} is not an HTTP method")
        try:
            async with asyncio.timeout(self.limits.total):
                return await self._follow(method.upper(), target, sent, body)
        except TimeoutError:
            raise PartnerUnreachable(target.authority, f"no answer within {self.limits.total:g} s") from None

    async def _follow(self, method: str, target: Target, headers: dict[str, str], body: bytes) -> HttpResponse:
        for _ in range(self.limits.redirects + 1):
            response = await self._once(method, target, headers, body)
            place = response.headers.get("location")
            if response.status not in _REDIRECTS or place is None or self.limits.redirects == 0:
                return response
            following = parse_target(_joined(target, place))
            if following.authority != target.authority or following.scheme != target.scheme:
                headers = {name: value for name, value in headers.items() if name not in _SECRETS}
            if target.scheme == "https" and following.scheme == "http":
                raise AddressRefused(following.host, "a redirect from https to http")
            if response.status == 303 or (response.status in (301, 302) and method == "POST"):
                method, body = "GET", b""
            target = following
        raise PartnerUnreachable(target.authority, f"more than {self.limits.redirects} redirects")

    async def _once(self, method: str, target: Target, headers: dict[str, str], body: bytes) -> HttpResponse:
        import httpcore2

        sent = {"host": target.authority, **headers}
        if body or method in ("POST", "PUT", "PATCH"):
            sent["content-length"] = str(len(body))
        limits = self.limits
        times = {"connect": limits.connect, "read": limits.read, "write": limits.read, "pool": limits.total}
        url = httpcore2.URL(
            scheme=target.scheme.encode(), host=target.host.encode(), port=target.port, target=target.path.encode()
        )
        try:
            async with self._pool.stream(
                method, url, headers=list(sent.items()), content=body, extensions={"timeout": times}
            ) as response:
                received = await self._read(target, response.aiter_stream())
                named = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
                return HttpResponse(response.status, named, received, str(target))
        except BatutaError:
            raise
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, OSError) as error:
            raise PartnerUnreachable(target.authority, f"{type(error).__name__}: {error}") from error

    async def _read(self, target: Target, pieces: Any) -> bytes:
        received = bytearray()
        async for piece in pieces:
            received += piece
            if len(received) > self.limits.response_bytes:
                raise ResponseTooLarge(target.authority, self.limits.response_bytes)
        return bytes(received)


def _joined(target: Target, place: str) -> str:
    """Where a redirect leads to. Its fragment is for browsers."""
    try:
        return urljoin(str(target), place).partition("#")[0]
    except ValueError as error:
        raise InvalidURL(f"{target.authority} redirects to an address that is not a URL: {error}") from None


def _make_pool(policy: AddressPolicy, limits: HttpLimits, tls: ssl.SSLContext | None) -> AsyncConnectionPool:
    try:
        import httpcore2
    except ImportError:
        raise MissingExtra("HTTP to others", "webhooks") from None
    plain = httpcore2.AnyIOBackend()

    class CheckedBackend(httpcore2.AsyncNetworkBackend):
        """Connects to addresses that were checked, and to no others."""

        async def connect_tcp(
            self,
            host: str,
            port: int,
            timeout: float | None = None,
            local_address: str | None = None,
            socket_options: Iterable[Any] | None = None,
        ) -> httpcore2.AsyncNetworkStream:
            failure: Exception | None = None
            for address in policy.check(host, port, await _resolve(host, port)):
                try:
                    return await plain.connect_tcp(address, port, timeout, local_address, socket_options)
                except httpcore2.NetworkError as error:
                    failure = error
            raise failure or httpcore2.ConnectError(f"{host} has no address")

        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(seconds)

    return httpcore2.AsyncConnectionPool(
        ssl_context=tls or ssl.create_default_context(),
        max_connections=limits.connections,
        keepalive_expiry=15.0,
        network_backend=CheckedBackend(),
    )


async def _resolve(host: str, port: int) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise PartnerUnreachable(host, f"its name can't be resolved: {error}") from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def check_headers(given: Mapping[str, str]) -> dict[str, str]:
    """Headers that a caller may choose, with names in lower case. Raises InvalidInput."""
    found: dict[str, str] = {}
    for name, value in given.items():
        known = name.lower()
        if not known or not _HEADER.issuperset(known):
            raise InvalidInput(f"{name!r} is not the name of a header")
        if known in _OURS:
            raise InvalidInput(f"the header {name!r} is set by the client itself")
        if not value.isascii() or not value.isprintable():
            raise InvalidInput(f"the value of the header {name!r} must be printable ASCII")
        found[known] = value
    return found
