"""An event loop on which waiting takes no time.

Whenever nothing can happen but the passing of time, the loop's clock jumps to the next timer: a workflow that sleeps
for a month ends in milliseconds, and everything happens in the order in which it would have happened.
"""

from __future__ import annotations

import asyncio
import functools
import math
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from batuta.clock import SECOND, SystemClock
from batuta.testing.stuck import where_tasks_wait

P = ParamSpec("P")
T = TypeVar("T")

EPOCH = 1_700_000_000 * SECOND
_PATIENCE = 0.5
_ITS_OWN = 1  # file descriptors that every loop watches: the pipe that wakes it


class Stuck(RuntimeError):
    """Everything waits, and neither time nor a thread nor a socket can wake any of it.

    The message lists the waiters.
    """


class VirtualClock:
    """A clock that an event loop moves. It is a `batuta.clock.Clock`."""

    def __init__(self, now: int = EPOCH) -> None:
        self._epoch = now
        self._passed = 0

    def now(self) -> int:
        return self._epoch + self._passed

    def monotonic(self) -> float:
        return self._passed / SECOND

    def pass_by(self, seconds: float) -> None:
        """Move on, rounded up: events after `seconds` are due then."""
        self._passed += math.ceil(round(seconds * SECOND, 3))


class _SkippingSelector(selectors.BaseSelector):
    """Waits by moving the clock. Waits in real time only for threads and sockets, which know no other."""

    def __init__(self, clock: VirtualClock) -> None:
        self._real = selectors.DefaultSelector()
        self._clock = clock
        self.busy_threads = 0
        self.threads_hold_time = True
        self.replies = 0
        """Answers that are on their way through a quiet socket."""
        self.quiet: set[int] = set()
        """Sockets of which it is known when something comes: they hold no time."""
        self.news_within = 0.0
        """Seconds of real time in which something may come through them all the same."""
        self.idle: list[asyncio.Future[None]] = []
        self.explain: Callable[[], list[str]] = list

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = self._real.select(0)
        if found or (timeout is not None and timeout <= 0):
            return found
        if self.replies or (self.busy_threads and self.threads_hold_time):
            return self._real.select(None)
        if self.news_within and (found := self._real.select(self.news_within)):
            return found
        if self.idle:
            self._tell_idle()
            return []
        if len(self._real.get_map()) - len(self.quiet) > _ITS_OWN:
            return self._wait_as_usual(timeout)
        if timeout is None:
            return self._wait_for_a_stranger()
        self._clock.pass_by(timeout)
        return []

    def _tell_idle(self) -> None:
        for waiter in self.idle:
            if not waiter.done():
                waiter.set_result(None)
        self.idle.clear()

    def _wait_as_usual(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """A socket is open, and the other side may take its time: here a second is a second."""
        real = SystemClock()
        begun = real.monotonic()
        found = self._real.select(timeout)
        self._clock.pass_by(real.monotonic() - begun)
        return found

    def _wait_for_a_stranger(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Nothing will happen by itself; an unknown thread may still call."""
        found = self._real.select(_PATIENCE)
        if not found:
            why = "everything in this test waits for something that cannot come"
            raise Stuck("\n  ".join([f"{why}:", *told]) if (told := self.explain()) else why)
        return found

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = self._real.unregister(fileobj)
        self.quiet.discard(key.fd)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Any:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class VirtualLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, with a clock that jumps. Threads of its executors hold the clock while they work."""

    def __init__(self, clock: VirtualClock | None = None) -> None:
        self.clock = clock or VirtualClock()
        self._skipping = _SkippingSelector(self.clock)
        super().__init__(self._skipping)
        self._clock_resolution = 1 / SECOND
        self._skipping.explain = self._explain
        self.explainers: list[Callable[[], list[str]]] = []
        """Asked for sentences when everything waits."""

    def _explain(self) -> list[str]:
        return [*where_tasks_wait(self), *(sentence for explain in self.explainers for sentence in explain())]

    def time(self) -> float:
        return self.clock.monotonic()

    def run_in_executor(  # type: ignore[override]  # arguments are not tied to the function's here
        self, executor: Any, func: Any, *args: Any
    ) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, func, *args)
        self.hold_time_until(future)
        return future

    def hold_time_until(self, done: asyncio.Future[Any]) -> None:
        """A thread is working: until it is done, the clock does not jump. The engine marks its own threads."""
        self._skipping.busy_threads += 1
        done.add_done_callback(self._thread_ended)

    def _thread_ended(self, _: asyncio.Future[Any]) -> None:
        self._skipping.busy_threads -= 1

    async def held(self, answer: Awaitable[T]) -> T:
        """Wait for an answer through a socket, without any time passing."""
        self._skipping.replies += 1
        try:
            return await answer
        finally:
            self._skipping.replies -= 1

    def let_time_pass(self, socket: int) -> None:
        """Although this socket is open: what comes through it is an answer that is `held`."""
        self._skipping.quiet.add(socket)

    def wait_for_news(self, seconds: float) -> None:
        """From now on something else may come, too: so much real time is waited for it whenever time would pass."""
        self._skipping.news_within = seconds

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        self._skipping.busy_threads += 1  # asyncio waits for its threads with a timeout: time must stand still
        try:
            await super().shutdown_default_executor()
        finally:
            self._skipping.busy_threads -= 1

    async def settled(self) -> None:
        """Wait until nothing more can happen without time passing."""
        waiter = self.create_future()
        self._skipping.idle.append(waiter)
        await waiter

    async def let_pass(self, seconds: float, *, threads_hold_time: bool = False) -> None:
        """Let time pass, with all that is due in it, also while threads work unless they are to hold it."""
        end = self.create_future()
        self.call_later(seconds, end.set_result, None)
        self._skipping.threads_hold_time = threads_hold_time
        try:
            await end
            await self.settled()
        finally:
            self._skipping.threads_hold_time = True


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Decorates an async test: it becomes a plain one, which any test runner can call."""

    @functools.wraps(test)
    def plain(*args: P.args, **kwargs: P.kwargs) -> T:
        return run(test(*args, **kwargs))

    return plain
