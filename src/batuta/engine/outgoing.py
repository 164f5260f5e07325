"""The native backend with middleware around what it starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from batuta.authoring.backend import Answer, Letter, RunRef, StartRequest
from batuta.authoring.enqueueing import JobRequest
from batuta.authoring.middleware import TRACE, AroundStart, Middleware, Sent
from batuta.authoring.starting import check_headers, check_tags
from batuta.clock import Clock
from batuta.engine.around import Around, as_start, chained
from batuta.engine.guests import Entering
from batuta.engine.native import NativeBackend
from batuta.errors import ClientError
from batuta.journal.store import Store

T = TypeVar("T")

_LONG = 100
"""A trace of fewer characters, beside headers that were checked, is not checked like other headers."""


class AroundBackend(NativeBackend):
    """Every call that starts runs goes through the middleware first."""

    def __init__(
        self, store: Store, clock: Clock | None, middleware: Sequence[Middleware], actor: str | None = None
    ) -> None:
        super().__init__(store, clock, actor, middleware)
        self._around = Around(middleware)
        self._before = self._around.before_start

    def start(self, request: StartRequest) -> Coroutine[Any, Any, RunRef]:
        found = None if self._before is None else self._before()
        if type(found) is str and len(found) < _LONG and "\x00" not in found:
            request.headers = {**request.headers, TRACE: found}
            return NativeBackend.start(self, request)
        return self._past(found, [request], NativeBackend.start, request)

    def enqueue(self, request: JobRequest) -> Coroutine[Any, Any, RunRef]:
        return self._through([request], NativeBackend.enqueue, request)

    def enqueue_many(
        self, requests: Sequence[JobRequest], after: JobRequest | None
    ) -> Coroutine[Any, Any, list[RunRef]]:
        every = [*requests] if after is None else [*requests, after]
        return self._through(every, NativeBackend.enqueue_many, requests, after)

    def enter(
        self, transaction: object, requests: Sequence[StartRequest | JobRequest], after: JobRequest | None
    ) -> Coroutine[Any, Any, Entering]:
        every = [*requests] if after is None else [*requests, after]
        return self._through(every, NativeBackend.enter, transaction, requests, after)

    async def signal(self, ref: RunRef, letter: Letter) -> None:
        message = Sent("signal", letter.name, ref.id, {})
        await self._with(message, letter, partial(NativeBackend.signal, self, ref, letter))

    async def update(self, ref: RunRef, letter: Letter) -> Answer:
        message = Sent("update", letter.name, ref.id, {})
        return await self._with(message, letter, partial(NativeBackend.update, self, ref, letter))

    async def _with(self, message: Sent, letter: Letter, act: Callable[[], Awaitable[T]]) -> T:
        if not self._around.send:
            return await act()
        done: list[T] = []

        async def innermost() -> None:
            letter.headers = dict(check_headers(message.headers)) or None
            done.append(await act())

        await chained(self._around.send, message, innermost)
        if not done:
            raise ClientError("middleware has not called proceed(): nothing was sent")
        return done[-1]

    def _through(
        self, requests: Sequence[StartRequest | JobRequest], act: Callable[..., Coroutine[Any, Any, T]], *given: Any
    ) -> Coroutine[Any, Any, T]:
        return self._past(None if self._before is None else self._before(), requests, act, *given)

    def _past(
        self,
        found: Mapping[str, str] | str | AroundStart | None,
        requests: Sequence[StartRequest | JobRequest],
        act: Callable[..., Coroutine[Any, Any, T]],
        *given: Any,
    ) -> Coroutine[Any, Any, T]:
        """Act, with what the middleware has said of it beforehand. None: it was not asked."""
        handlers = self._around.start if found is None else [found] if callable(found) else []
        if handlers:
            return self._around_starts(handlers, requests, partial(act, self, *given))
        if found is not None:
            headers = {TRACE: found} if isinstance(found, str) else cast(Mapping[str, str], found)
            for one in requests:
                one.headers = {**one.headers, **headers}
                check_headers(one.headers)
        return act(self, *given)

    async def _around_starts(
        self,
        handlers: Sequence[AroundStart],
        requests: Sequence[StartRequest | JobRequest],
        act: Callable[[], Awaitable[T]],
    ) -> T:
        starts = [as_start(request) for request in requests]
        done: list[T] = []

        async def innermost() -> None:
            for one in starts:
                if one.headers:
                    check_headers(one.headers)
                if one.tags:
                    check_tags(one.tags)
            done.append(await act())

        await chained(handlers, starts, innermost)
        if not done:
            raise ClientError("middleware has not called proceed(): nothing was started")
        return done[-1]


def backend_for(
    store: Store, clock: Clock | None = None, middleware: Sequence[Middleware] = (), actor: str | None = None
) -> NativeBackend:
    """A backend, with middleware around what it starts, sends and runs."""
    around = Around(middleware) if middleware else None
    if around is not None and (around.start or around.send):
        return AroundBackend(store, clock, middleware, actor)
    return NativeBackend(store, clock, actor, middleware)
