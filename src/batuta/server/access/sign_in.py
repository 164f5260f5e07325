"""Recognising callers by API key and by session."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.requests import Request

from batuta.authoring.client.api_keys import ApiKey
from batuta.client import Batuta
from batuta.clock import SECOND, Clock, SystemClock
from batuta.errors import StoreUnavailable
from batuta.journal.server.api_keys import digest_of
from batuta.journal.server.documents import ENDED_SESSIONS
from batuta.server.access.check import EVERY_NAMESPACE, Admission, Signer, check_local
from batuta.server.access.request_limits import WrongKeys
from batuta.server.http.call import Principal, Refused
from batuta.server.http.routing import SCOPES, Scope

COOKIE = "batuta_session"
SESSION_SECONDS = 12 * 3600
KNOWN_SECONDS = 0.5
"""How long the result of a key check is used: a revoked key is refused within a second."""
_KEPT = 1_000

T = TypeVar("T")


class Known(OrderedDict[str, tuple[float, T]]):
    """Recent results of key checks. Bounded. While the store is away, where nothing can be revoked either, it stays."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    async def find(self, name: str, look: Callable[[], Awaitable[T]]) -> T:
        found, moment = self.get(name), self._clock.monotonic()
        if found is None or moment - found[0] > KNOWN_SECONDS:
            try:
                looked = await look()
            except StoreUnavailable:
                if found is None:
                    raise
                looked = found[1]
            found = self[name] = (moment, looked)
            self.move_to_end(name)
            while len(self) > _KEPT:
                self.popitem(last=False)
        return found[1]


class Credentials:
    """Keys and sessions."""

    def __init__(self, client: Batuta, signer: Signer) -> None:
        self._client, self._keys, self._signer, self._clock = client, client.api_keys, signer, SystemClock()
        self._by_digest: Known[ApiKey | None] = Known(self._clock)
        self._by_id: Known[ApiKey | None] = Known(self._clock)
        self._is_ended: Known[bool] = Known(self._clock)
        self._any: Known[bool] = Known(self._clock)
        self._wrong = WrongKeys(self._clock)

    async def any(self) -> bool:
        """Whether there is a key at all."""
        return await self._any.find("", self._keys.any)

    def keys_changed(self) -> None:
        """Forget results of key checks: this server made, rotated or revoked one."""
        for known in (self._any, self._by_digest, self._by_id):
            known.clear()

    async def check(self, key: str, request: Request, *, by_hand: bool = False) -> ApiKey:
        """Raises Refused when it is no key, or not any more. A program with a good key is let in whatever others send;
        a person (`by_hand`) waits after wrong keys from the same address."""
        address = request.client.host if request.client is not None else "unknown"
        if by_hand:
            self._wrong.check(address)
        found = await self._by_digest.find(digest_of(key), lambda: self._keys.verify(key))
        if found is None:
            self._wrong.note(address)
            raise Refused(401, "unauthenticated", "the key is wrong, expired or revoked: ask an admin for another one")
        return found

    async def recognise(self, request: Request) -> Admission | None:
        """By `Authorization: Bearer KEY`, or by the cookie of a session."""
        given = request.headers.get("authorization")
        if given is not None:
            scheme, _, key = given.partition(" ")
            if scheme.lower() != "bearer":
                raise Refused(401, "unauthenticated", "the credential must be `Authorization: Bearer KEY`")
            return Admission(principal_of(await self.check(key.strip(), request)), ambient=False)
        cookie = request.cookies.get(COOKIE)
        return None if cookie is None else await self._session(cookie)

    async def _session(self, cookie: str) -> Admission | None:
        text, left = self._read(cookie)
        if left <= 0 or await self._is_ended.find(text, lambda: self._was_ended(text)):
            return None
        id = text.partition(":")[0]
        key = await self._by_id.find(id, lambda: self._keys.find(id))
        return None if key is None else Admission(principal_of(key), ambient=True, session=text)

    def _read(self, cookie: str) -> tuple[str, int]:
        """The name of the session, and the microseconds that are left of it: 0 when the cookie is not ours."""
        text = self._signer.unsign(cookie) or ""
        ends = text.partition(":")[2].partition(":")[0]
        return text, max(0, int(ends) * SECOND - self._clock.now()) if ends.isdecimal() else 0

    async def _was_ended(self, text: str) -> bool:
        return await self._client.namespace.documents.document(ENDED_SESSIONS, digest_of(text)) is not None

    async def end_session(self, cookie: str) -> None:
        """From now on every server refuses the cookie and its copies."""
        text, left = self._read(cookie)
        if left > 0:
            await self._client.namespace.documents.put_documents(ENDED_SESSIONS, {digest_of(text): "{}"}, left)
            self._is_ended.pop(text, None)

    def new_session(self, key: ApiKey) -> tuple[str, str]:
        """The cookie of a session, and what its CSRF token is bound to."""
        text = f"{key.id}:{self._clock.now() // SECOND + SESSION_SECONDS}:{secrets.token_hex(16)}"
        return self._signer.sign(text), text


class LoopbackWithoutKeys:
    """This machine, as long as there is no key: everything is allowed."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def recognise(self, request: Request) -> Admission | None:
        if await self._credentials.any():
            return None
        check_local(request)
        principal = Principal(name="", kind="loopback", scope=Scope.ADMIN, namespace=EVERY_NAMESPACE)
        return Admission(principal, ambient=True, session="loopback")


def principal_of(key: ApiKey) -> Principal:
    return Principal(
        name=f"{key.name} ({key.id})", kind="key", scope=SCOPES[key.scope], namespace=key.namespace, key_id=key.id
    )
