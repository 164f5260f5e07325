"""Who may ask: one access check for every route, which refuses unless something allows the request."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import Protocol

from msgspec import Struct
from starlette.requests import Request

from batuta.server.access.request_limits import CostlyRequests
from batuta.server.http.call import Principal, Refused
from batuta.server.http.routing import Route, Scope

CSRF_HEADER = "X-CSRF-Token"
EVERY_NAMESPACE = "*"
_SAFE = frozenset({"GET", "HEAD"})
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})

Decide = Callable[[Request], Awaitable[Principal | None]]
"""An application's own decision about a caller; None: it does not know the caller."""


class Admission(Struct, frozen=True):
    """A credential that was recognised."""

    principal: Principal
    ambient: bool
    """The browser sends it by itself: requests that change something need the CSRF token, too."""
    session: str = ""
    """The session that the CSRF token is bound to."""


class Recognise(Protocol):
    """A way to recognise the caller: by key, by session, by the application. OpenID Connect would be one more."""

    async def recognise(self, request: Request) -> Admission | None:
        """None: this way knows nothing about the request. Raises Refused for a credential that is wrong."""
        ...


class Signer:
    """Signs sessions, and the CSRF tokens that are bound to them."""

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret or secrets.token_bytes(32)

    def csrf_token(self, session: str) -> str:
        return hmac.digest(self._secret, f"csrf {session}".encode(), "sha256").hex()

    def sign(self, text: str) -> str:
        """The text with a signature that only this server can make."""
        return f"{text}.{hmac.digest(self._secret, f'session {text}'.encode(), 'sha256').hex()}"

    def unsign(self, signed: str) -> str | None:
        """The text, if its signature is ours."""
        text, _, _ = signed.rpartition(".")
        return text if text and hmac.compare_digest(self.sign(text).encode(), signed.encode()) else None


class AccessCheck:
    """Asks each way in turn; the first that knows the request decides."""

    def __init__(self, ways: list[Recognise], signer: Signer, costly: CostlyRequests) -> None:
        self._ways, self._signer, self._costly = ways, signer, costly

    async def admission(self, request: Request) -> Admission | None:
        for way in self._ways:
            if (found := await way.recognise(request)) is not None:
                return found
        return None

    async def admit(self, request: Request, route: Route) -> Principal:
        """Raises Refused unless the request may use the route."""
        if route.scope is Scope.PUBLIC:
            return Principal(name="", kind="public", scope=Scope.PUBLIC, namespace="")
        found = await self.admission(request)
        if found is None:
            raise Refused(401, "unauthenticated", "no credential came: sign in, or send `Authorization: Bearer KEY`")
        if found.principal.scope < route.scope:
            need, have = route.scope.word, found.principal.scope.word
            raise Refused(403, "forbidden", f"this needs scope {need}, and the credential has {have}: use another key")
        if found.ambient and request.method not in _SAFE:
            self.check_csrf(request, found.session)
        self._costly.admit(found.principal, route)
        return found.principal

    def check_csrf(self, request: Request, session: str) -> None:
        """Raises Refused."""
        given = request.headers.get(CSRF_HEADER, "")
        if not hmac.compare_digest(given.encode(), self._signer.csrf_token(session).encode()):
            raise Refused(
                403,
                "csrf_failed",
                f"the header {CSRF_HEADER} is missing or wrong: take it from GET /api/v1/session, or send an API key",
            )


def check_local(request: Request) -> None:
    """Raises Refused for what does not come from this machine, or for a name that a stranger's page may point here."""
    host = request.client.host if request.client is not None else ""
    named = (
        request.headers.get("host", "").rsplit(":", 1)[0]
        if not request.headers.get("host", "").endswith("]")
        else request.headers["host"]
    )
    if not is_loopback(host) or named.lower() not in _LOOPBACK_NAMES:
        raise Refused(
            403,
            "forbidden",
            "there is no API key yet, so only this machine may ask, at localhost: run `batuta api-keys create`",
        )


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class FromApp:
    """The application that the server is mounted in decides."""

    def __init__(self, namespace: str, decide: Decide | None) -> None:
        self._namespace, self._decide = namespace, decide

    async def recognise(self, request: Request) -> Admission | None:
        if self._decide is None:
            principal: Principal | None = Principal(name="", kind="app", scope=Scope.ADMIN, namespace=self._namespace)
        else:
            principal = await self._decide(request)
        if principal is None:
            return None
        return Admission(principal, ambient=True, session=hashlib.sha256(principal.actor.encode()).hexdigest())
