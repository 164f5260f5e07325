"""Requests that are carried out once for each key: repeated ones get the same answer."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import logging
import time
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Any, ParamSpec, Protocol, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from batuta.authoring.call_options import check_seconds, check_wait
from batuta.clock import SECOND
from batuta.durations import Duration, in_seconds
from batuta.errors import BatutaError, IdempotencyInProgress, IdempotencyKeyReused, InvalidInput
from batuta.failpoints import failpoint
from batuta.ids import new_message_id
from batuta.journal.server.requests import RequestStore
from batuta.names import check_name, shortened
from batuta.serde import Codec

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("batuta.idempotency")

LOCK_SECONDS = 30.0
"""Seconds after which another request with the key may take over, unless the holder renews."""
KEEP_SECONDS = 24 * 3600.0
"""How long an answer is kept, in seconds."""
WAIT_SECONDS = 5.0
"""How long a duplicate waits for the first answer, in seconds."""
LARGEST = 64 * 1024
"""Characters of an answer that are kept."""
_LONGEST_SCOPE = 300
_LONGEST_FAST = 150
_FIRST_LOOK, _LAST_LOOK, _TRY = 0.01, 0.2, 0.5
"""Seconds between looks at a request of another owner, and between tries to take it over."""

Work = Callable[[], Awaitable[tuple[str, bool]]]
"""Gives the answer, and whether to keep it. A request without a kept answer may be carried out again."""

Shorten = Callable[[str], str]


def _nothing(_answer: str) -> str:
    return ""


class Counts(Struct):
    """Outcomes of requests with a key, since the process began."""

    done: int = 0
    """Carried out."""
    replayed: int = 0
    """Answered with a kept answer."""
    conflicts: int = 0
    """Refused: another request came with the same key."""
    in_progress: int = 0
    """Refused: the first one took longer than the duplicate waits."""
    taken_over: int = 0
    """Answered by another owner, because this one was held up for longer than its lock."""


class KeptAnswer(Struct):
    """An answer that the store has, kept where it is found faster."""

    digest: str
    """The digest of the request."""
    answer: str


class FastAnswers(Protocol):
    """A faster look at answers that are in the store: an `Entity` of `batuta.cache` with `KeptAnswer`, whose pattern
    has the identifier `request_id`, such as `bridge:idempotency:{request_id}`."""

    async def get(self, **identifiers: object) -> KeptAnswer | None: ...
    async def put(self, value: KeptAnswer, **identifiers: object) -> None: ...


class Idempotency:
    """Carries out requests once. `lock`, `keep` and `wait` are seconds or timedeltas."""

    def __init__(
        self,
        store: RequestStore,
        *,
        lock: Duration = LOCK_SECONDS,
        keep: Duration = KEEP_SECONDS,
        wait: Duration = WAIT_SECONDS,
        largest: int = LARGEST,
        answers: FastAnswers | None = None,
    ) -> None:
        """`answers`: looked at before the store. It only ever has answers that are durable there, so that a request is
        carried out once whatever becomes of it."""
        self._store, self._answers = store, answers
        self._lock_seconds = _positive("lock", lock)
        self._lock, self._keep = round(self._lock_seconds * SECOND), round(_positive("keep", keep) * SECOND)
        self._wait, self._largest = check_wait("wait", wait), largest
        self.counts = Counts()

    @functools.cached_property
    def _namespace(self) -> str:
        return self._store.namespace

    async def once(
        self, scope: str, key: str, asked: bytes, work: Work, *, shorten: Shorten | None = None
    ) -> tuple[str, bool]:
        """The answer to what was asked, and whether it was given before. `scope`: in another one the same key is
        another key. `shorten` gives what is kept of an answer that is too large.

        A duplicate waits for the first answer. Raises IdempotencyKeyReused when the key came with another request,
        IdempotencyInProgress when the answer does not come in time. When `work` raises, nothing is kept."""
        name, owner = name_of(scope, key), new_message_id()
        digest = hashlib.sha256(scope.encode() + b"\0" + asked).hexdigest()
        until = time.monotonic() + self._wait
        fast = None if self._answers is None else await self._answers.get(request_id=_fast_name(name))
        if fast is not None and fast.digest == self._fast_digest(digest):  # else the store says what that means
            self.counts.replayed += 1
            return fast.answer, True
        while True:
            kept = await self._store.begin_request(name, digest, owner, self._lock, self._keep)
            if kept.digest != digest:
                self.counts.conflicts += 1
                raise IdempotencyKeyReused(key)
            if kept.answer is None and kept.owner == owner:
                answer = await self._carry_out(name, digest, owner, work, shorten or _nothing)
                if answer is not None:
                    self.counts.done += 1
                    return answer, False
                self.counts.taken_over += 1
                log.warning("a request with idempotency key %r was held up: another process carries it out", key)
            found = kept.answer if kept.answer is not None else await self._answer_of_other(name, until)
            if found is not None:
                await self._keep_fast(name, digest, found)
                self.counts.replayed += 1
                return found, True
            if time.monotonic() >= until:
                self.counts.in_progress += 1
                raise IdempotencyInProgress(key)

    async def _carry_out(self, name: str, digest: str, owner: str, work: Work, shorten: Shorten) -> str | None:
        """Its answer; None when another owner has taken the request over meanwhile."""
        failpoint("idempotency.begun")
        renewing = asyncio.ensure_future(self._renew(name, owner))
        try:
            answer, keep = await work()
        except BaseException:
            await asyncio.shield(self._store.drop_request(name, owner))
            raise
        finally:
            renewing.cancel()
        failpoint("idempotency.done")
        if not keep:
            await self._store.drop_request(name, owner)
            return answer
        kept = answer if len(answer) <= self._largest else shorten(answer)
        if not await self._store.finish_request(name, owner, kept):
            return None
        await self._keep_fast(name, digest, kept)
        failpoint("idempotency.kept")
        return answer

    async def _keep_fast(self, name: str, digest: str, answer: str) -> None:
        if self._answers is not None:
            await self._answers.put(KeptAnswer(self._fast_digest(digest), answer), request_id=_fast_name(name))

    def _fast_digest(self, digest: str) -> str:
        """With the namespace: others may keep their answers in the same Redis."""
        return hashlib.sha256(f"{self._namespace}\0{digest}".encode()).hexdigest()

    async def _renew(self, name: str, owner: str) -> None:
        """As long as its holder lives and its loop turns, no other one takes the request over."""
        while True:
            await asyncio.sleep(self._lock_seconds / 3)
            with suppress(BatutaError):  # the store is away: the lock lasts two more tries
                if not await self._store.renew_request(name, owner, self._lock):
                    return

    async def _answer_of_other(self, name: str, until: float) -> str | None:
        """The answer of the owner that the request has; None when it may be tried to take it over, or at the end."""
        pause, now = _FIRST_LOOK, time.monotonic()
        end = min(until, now + _TRY)
        while now < end:
            await asyncio.sleep(min(pause, end - now))
            found = await self._store.find_request(name)
            if found is None or found.answer is not None:
                return None if found is None else found.answer
            pause, now = min(pause * 1.5, _LAST_LOOK), time.monotonic()
        return None


def name_of(scope: str, key: str) -> str:
    """The name that a store knows a key by: with where it was used, so that people can find it. Raises InvalidInput."""
    checked = check_key(key)
    if len(scope) > _LONGEST_SCOPE:
        scope = f"{scope[: _LONGEST_SCOPE - 17]}~{hashlib.blake2b(scope.encode(), digest_size=8).hexdigest()}"
    return f"{scope} {spaced(checked)}" if scope else checked


def _fast_name(name: str) -> str:
    """The name, short enough for the key of a cache, where a space has three characters."""
    return shortened(name, _LONGEST_FAST)


def spaced(*parts: str) -> str:
    """One text of several, another one for other parts: a space inside a part is written otherwise."""
    return " ".join(part.replace("%", "%25").replace(" ", "%20") for part in parts)


def check_key(key: str) -> str:
    """Raises InvalidInput."""
    if not key.isascii():
        raise InvalidInput("an idempotency key must be 1 to 200 printable ASCII characters")
    return check_name(key, "idempotency key")


def _positive(name: str, given: Duration) -> float:
    seconds: float = in_seconds(given)
    check_seconds(name, seconds)
    return seconds


class KeptResponse(Struct, omit_defaults=True):
    """An HTTP answer as it is kept."""

    status: int
    headers: list[tuple[str, str]]
    body: str | None = None
    """None: it was too large, or must not be shown twice."""
    binary: bool = False
    """The body is base64."""

    @classmethod
    def of(cls, status: int, headers: list[tuple[str, str]], body: bytes | None) -> KeptResponse:
        if body is None:
            return cls(status, headers)
        try:
            return cls(status, headers, body.decode())
        except UnicodeDecodeError:
            return cls(status, headers, b64encode(body).decode(), binary=True)

    @staticmethod
    def without_body(text: str) -> str:
        """The same, where the body is too large to be kept."""
        return replace(KeptResponse.decode(text), body=None).encode()

    def encode(self) -> str:
        """Without cookies: the session of a user is not kept in the database, and given once."""
        kept = [(name, value) for name, value in self.headers if name.lower() != "set-cookie"]
        return msgspec.json.encode(replace(self, headers=kept)).decode()

    @classmethod
    def decode(cls, text: str) -> KeptResponse:
        return msgspec.json.decode(text, type=cls)

    @property
    def content(self) -> bytes | None:
        if self.body is None:
            return None
        return b64decode(self.body) if self.binary else self.body.encode()


def canonical(body: bytes, content_type: str) -> bytes:
    """The body for comparison: JSON without the order of its members and without spaces, others as they are."""
    if "json" in content_type.lower():
        with suppress(msgspec.MsgspecError, RecursionError, ArithmeticError):  # such as 1e9999999999999999999
            return _SORTED.encode(_EXACT.decode(body))
    return body


def _exact(text: str) -> float | Decimal:
    """A number with a fraction; a decimal one where a float would take it for another."""
    number, exact = float(text), Decimal(text)
    return number if Decimal(repr(number)) == exact else exact


_EXACT = msgspec.json.Decoder(float_hook=_exact)
_SORTED = msgspec.json.Encoder(order="sorted", decimal_format="number")


class HasRequests(Protocol):
    """A client."""

    @property
    def namespace(self) -> Any: ...


def idempotent(
    client: HasRequests | Callable[[], HasRequests],
    *,
    key: str | Callable[..., str],
    scope: str | None = None,
    lock: Duration = LOCK_SECONDS,
    keep: Duration = KEEP_SECONDS,
    wait: Duration = WAIT_SECONDS,
    answers: FastAnswers | None = None,
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Carry out an async function once for each key, and give its kept result to later calls.

        @idempotent(client, key="request_id")
        async def create_claim(request_id: str, claim: Claim) -> Receipt: ...

    `key`: the name of a parameter, or a function of the arguments. `scope`: another function's keys are other keys
    unless it has the same; the function's name without one. Arguments and result need a JSON form. Only results are
    kept: after an error the function may be called again. Raises IdempotencyKeyReused when the key comes with other
    arguments, IdempotencyInProgress when the first call takes longer than `wait`. `answers`: as for `Idempotency`.
    """

    def of(requests: RequestStore) -> Idempotency:
        return Idempotency(requests, lock=lock, keep=keep, wait=wait, answers=answers)

    of(None)  # type: ignore[arg-type]  # times that cannot be are found here

    def decorate(fn: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        if not inspect.iscoroutinefunction(fn):
            raise InvalidInput(f"idempotent function {fn!r} must be defined with `async def`")
        codec, signature = Codec(fn, f"idempotent function {fn.__name__!r}"), inspect.signature(fn)
        if isinstance(key, str) and key not in signature.parameters:
            raise InvalidInput(f"key={key!r} is no parameter of {fn.__name__!r}: {', '.join(signature.parameters)}")
        known: dict[int, Idempotency] = {}

        @functools.wraps(fn)
        async def called(*args: P.args, **kwargs: P.kwargs) -> T:
            here = client() if callable(client) and not hasattr(client, "namespace") else client
            requests = here.namespace.requests
            once = known.get(id(requests)) or known.setdefault(id(requests), of(requests))
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            chosen = key(*args, **kwargs) if callable(key) else bound.arguments[key]
            if not isinstance(chosen, str):
                raise InvalidInput(f"the idempotency key of {fn.__name__!r} must be a string, not {chosen!r}")
            asked = codec.encode_args(args, dict(kwargs))

            async def work() -> tuple[str, bool]:
                return codec.encode_result(await fn(*args, **kwargs)).decode(), True

            answer, _ = await once.once(scope if scope is not None else fn.__name__, chosen, asked, work)
            if not answer:
                raise InvalidInput(f"the result of {fn.__name__!r} was too large to be kept for key {chosen!r}")
            value: T = codec.decode_result(answer.encode())
            return value

        return called

    return decorate


def text_headers(headers: Mapping[str, str] | list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Headers as they are kept: without those that belong to one connection."""
    items = headers.items() if isinstance(headers, Mapping) else headers
    return [(name, value) for name, value in items if name.lower() not in _NOT_KEPT]


_NOT_KEPT = frozenset(("connection", "date", "keep-alive", "server", "transfer-encoding", "content-length"))
