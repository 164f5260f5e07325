"""The native backend with middleware around starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from batuta.authoring.backend import Answer, ClientMessage, RunRef, StartRequest
from batuta.authoring.client.enqueue import JobRequest
from batuta.authoring.client.start import check_headers, check_tags
from batuta.authoring.definitions import Workflow
from batuta.authoring.middleware import TRACE, AroundStart, Middleware, Sent
from batuta.clock import Clock
from batuta.engine.backend.actor import Actor
from batuta.engine.backend.caller_transaction import ReadyWrite
from batuta.engine.backend.messaging import Messenger
from batuta.engine.backend.native import NativeBackend
from batuta.engine.worker.middleware import MiddlewareStack, as_start, chained
from batuta.engine.worker.waiters import Waiters
from batuta.errors import ClientError
from batuta.journal.store import Store

T = TypeVar("T")

_LONG = 100
"""A trace below this length, beside checked headers, is not checked like other headers."""


async def _answer_of(handlers: Sequence[Any], given: Any, act: Callable[[], Awaitable[T]], done: str) -> T:
    """What the act gives, with handlers around it. Raises ClientError when they let nothing be `done`."""
    answers: list[T] = []

    async def innermost() -> None:
        answers.append(await act())

    await chained(handlers, given, innermost)
    if not answers:
        raise ClientError(f"middleware has not called proceed(): nothing was {done}")
    return answers[-1]


class MiddlewareMessenger(Messenger):
    """Every message goes through the middleware first."""

    def __init__(
        self,
        store: Store,
        waiters: Waiters,
        code_here: Callable[[str], Workflow[..., Any] | None],
        around: MiddlewareStack,
    ) -> None:
        super().__init__(store, waiters, code_here)
        self._around = around

    async def signal(self, ref: RunRef, client_message: ClientMessage) -> None:
        await self._with("signal", ref, client_message, partial(Messenger.signal, self, ref, client_message))

    async def enter_signal(self, transaction: object, ref: RunRef, client_message: ClientMessage) -> ReadyWrite:
        act = partial(Messenger.enter_signal, self, transaction, ref, client_message)
        return await self._with("signal", ref, client_message, act)

    async def update(self, ref: RunRef, client_message: ClientMessage) -> Answer:
        return await self._with("update", ref, client_message, partial(Messenger.update, self, ref, client_message))

    async def _with(self, kind: str, ref: RunRef, client_message: ClientMessage, act: Callable[[], Awaitable[T]]) -> T:
        if not self._around.send:
            return await act()
        message = Sent(kind, client_message.name, ref.id, {})

        async def send() -> T:
            client_message.headers = dict(check_headers(message.headers)) or None
            return await act()

        return await _answer_of(self._around.send, message, send, "sent")


class MiddlewareBackend(NativeBackend):
    """Every call that starts runs goes through the middleware first."""

    def __init__(
        self, store: Store, clock: Clock | None, middleware: Sequence[Middleware], actor: str | Actor | None = None
    ) -> None:
        super().__init__(store, clock, actor, middleware)
        self._around = MiddlewareStack(middleware)
        self._before = self._around.before_start
        self.messages = MiddlewareMessenger(store, self._waiters, self._code_here, self._around)

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
    ) -> Coroutine[Any, Any, ReadyWrite]:
        every = [*requests] if after is None else [*requests, after]
        return self._through(every, NativeBackend.enter, transaction, requests, after)

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
        """Act, with what the middleware returned beforehand. None: it was not asked."""
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

        async def start() -> T:
            for one in starts:
                if one.headers:
                    check_headers(one.headers)
                if one.tags:
                    check_tags(one.tags)
            return await act()

        return await _answer_of(handlers, starts, start, "started")


def backend_for(
    store: Store, clock: Clock | None = None, middleware: Sequence[Middleware] = (), actor: str | Actor | None = None
) -> NativeBackend:
    """A backend, with middleware around its starts, messages and runs."""
    around = MiddlewareStack(middleware) if middleware else None
    if around is not None and (around.start or around.send):
        return MiddlewareBackend(store, clock, middleware, actor)
    return NativeBackend(store, clock, actor, middleware)
