"""The native backend with middleware around what it starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from batuta.authoring.backend import RunRef, StartRequest
from batuta.authoring.enqueueing import JobRequest
from batuta.authoring.middleware import Middleware
from batuta.authoring.starting import check_headers, check_tags
from batuta.clock import Clock
from batuta.engine.around import Around, as_start, chained
from batuta.engine.guests import Entering
from batuta.engine.native import NativeBackend
from batuta.errors import ClientError
from batuta.journal.store import Store

T = TypeVar("T")


class AroundBackend(NativeBackend):
    """Every call that starts runs goes through the middleware first."""

    def __init__(
        self, store: Store, clock: Clock | None, middleware: Sequence[Middleware], actor: str | None = None
    ) -> None:
        super().__init__(store, clock, actor)
        self._middleware = list(middleware)
        self._around = Around(middleware)

    async def start(self, request: StartRequest) -> RunRef:
        return await self._through([request], lambda: super(AroundBackend, self).start(request))

    async def enqueue(self, request: JobRequest) -> RunRef:
        return await self._through([request], lambda: super(AroundBackend, self).enqueue(request))

    async def enqueue_many(self, requests: Sequence[JobRequest], after: JobRequest | None) -> list[RunRef]:
        every = [*requests] if after is None else [*requests, after]
        return await self._through(every, lambda: super(AroundBackend, self).enqueue_many(requests, after))

    async def enter(
        self, transaction: object, requests: Sequence[StartRequest | JobRequest], after: JobRequest | None
    ) -> Entering:
        every = [*requests] if after is None else [*requests, after]
        return await self._through(every, lambda: super(AroundBackend, self).enter(transaction, requests, after))

    async def _through(self, requests: Sequence[StartRequest | JobRequest], act: Callable[[], Awaitable[T]]) -> T:
        if not self._around.start:
            return await act()
        starts = [as_start(request) for request in requests]
        done: list[T] = []

        async def innermost() -> None:
            for one in starts:
                check_headers(one.headers)
                check_tags(one.tags)
            done[:] = [await act()]

        await chained(self._around.start, starts, innermost)
        if not done:
            raise ClientError("middleware has not called proceed(): nothing was started")
        return done[0]


def backend_for(
    store: Store, clock: Clock | None = None, middleware: Sequence[Middleware] = (), actor: str | None = None
) -> NativeBackend:
    """A backend, with middleware around what it starts and runs."""
    return AroundBackend(store, clock, middleware, actor) if middleware else NativeBackend(store, clock, actor)
