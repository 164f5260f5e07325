"""Gates outside of workflows: `async with client.gates(...)`, and a call for backends that know no gates."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

from batuta.authoring.gates import (
    Gate,
    GateHost,
    Keeper,
    Keepers,
    Outcome,
    check_gates,
    enter_all,
    leave_all,
    refusal_error,
)
from batuta.authoring.services import StoreAccess
from batuta.errors import GateFailed, RetryLater, UnknownPartner
from batuta.telemetry import Event

T = TypeVar("T")


class _Call:
    """A call outside of workflows, as gates see it."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._args, self._kwargs = args, kwargs

    def gate_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self._args, self._kwargs


class ClientGates:
    """The gates of one client. Implements `GateHost`."""

    def __init__(self, backend: StoreAccess) -> None:
        self.store, self.namespace, self.monotonic = backend.store, backend.namespace, backend.monotonic
        self._keepers = Keepers(cast(GateHost, self))
        self._services: dict[Any, Any] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        for service in self._services.values():
            service.close()
        self._services.clear()
        self._keepers.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @asynccontextmanager
    async def through(
        self, gates: Sequence[Gate], args: tuple[Any, ...], kwargs: dict[str, Any], *, retry_later: bool = False
    ) -> AsyncIterator[None]:
        """Wait until all gates let the block in, and tell them how it ended. Raises GateRefused, GateFailed,
        UnknownPartner. `retry_later`: raises RetryLater instead of a wait."""
        self._closed = False
        passes = await self._enter(check_gates(gates), _Call(args, kwargs), retry_later=retry_later)
        began = self.monotonic()
        try:
            yield
        except BaseException as error:
            ran = not isinstance(error, asyncio.CancelledError)
            leave_all(passes, Outcome(error, self.monotonic() - began, ran))
            raise
        leave_all(passes, Outcome(None, self.monotonic() - began))

    async def _enter(self, gates: tuple[Gate, ...], call: _Call, *, retry_later: bool) -> list[tuple[Keeper, object]]:
        began = self.monotonic()
        while True:
            try:
                found = enter_all([(gate, self._keepers.of(gate)) for gate in gates], call)
            except UnknownPartner:
                raise
            except Exception as error:
                raise GateFailed(", ".join(gate.name for gate in gates), error) from error
            if isinstance(found, list):
                return found
            gate, refusal = found
            wait = refusal.wait + refusal.spread
            if gate.longest_wait is not None:
                wait = min(wait, began + gate.longest_wait - self.monotonic())
            if not refusal.pending and (gate.on_refusal == "fail" or wait <= 0):
                raise refusal_error(gate, refusal)
            if retry_later and not refusal.pending:
                raise RetryLater(wait, f"gate {gate.name!r} refused the call ({refusal.why})")
            await self._wait(refusal.topic or refusal.gate or gate.name, wait)

    async def _wait(self, topic: str, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        row = self._waiting.setdefault(topic, deque())
        row.append(woken)
        try:
            async with asyncio.timeout(max(0.001, seconds)):
                await woken
        except TimeoutError:
            pass
        finally:
            if woken in row:
                row.remove(woken)

    # -- what gates have

    def wake(self, topic: str, most: int | None = None) -> None:
        row = self._waiting.get(topic)
        while row and (most is None or most > 0):
            woken = row.popleft()
            if not woken.done():
                woken.set_result(None)
                most = None if most is None else most - 1

    def waiting(self, topic: str) -> int:
        return len(self._waiting.get(topic, ()))

    def service(self, kind: Callable[[GateHost], T]) -> T:
        found = self._services.get(kind)
        if found is None:
            found = self._services[kind] = kind(cast(GateHost, self))
        return cast(T, found)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._closed:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the store is away: who asked waits, and asks again

    def call_later(self, seconds: float, act: Callable[[], None]) -> None:
        def due() -> None:
            if not self._closed:
                act()

        asyncio.get_running_loop().call_later(seconds, due)

    def report(self, event: Event) -> None:
        """Clients send no events."""


def gated(
    host: ClientGates, gates: Sequence[Gate], fn: Callable[..., Awaitable[T]]
) -> Callable[..., Coroutine[Any, Any, T]]:
    """The function behind its gates, for a backend that does not ask them itself: it raises RetryLater when they
    refuse, and the backend tries again then."""

    async def call(*args: Any, **kwargs: Any) -> T:
        async with host.through(gates, args, kwargs, retry_later=True):
            return await fn(*args, **kwargs)

    return call
