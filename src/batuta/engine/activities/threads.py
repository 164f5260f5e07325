"""Sync activities: each attempt has a thread."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from batuta.authoring.activity.attempt import current_activity
from batuta.engine.activities.call import Call

P = ParamSpec("P")
T = TypeVar("T")
Work = tuple[contextvars.Context, Callable[[], None]]


def in_thread(
    call: Call,
    may_act: Callable[[], bool],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    fn: Callable[..., Any] | None = None,
    context: contextvars.Context | None = None,
) -> Any:
    """Run an attempt, in the thread that calls this. It waits until effects may go out.

    `fn` and `context` are given where there is middleware around it.
    """
    wait_for_permission(call, may_act)
    call.check_gates()
    if context is None:
        context = contextvars.Context()
        context.run(current_activity.set, call)
    try:
        return context.run(fn or call.activity.fn, *args, **kwargs)
    except StopIteration as error:  # no future takes it: the attempt would never come to an end
        raise RuntimeError(f"activity {call.pending.name!r} raised StopIteration") from error


def wait_for_permission(call: Call, may_act: Callable[[], bool]) -> None:
    """Wait until effects may go out. Raises CancelledError when the result of the call is not wanted any more."""
    while not call.over:
        if may_act():
            return
        time.sleep(0.05)
    raise asyncio.CancelledError


async def ended(thread: threading.Thread) -> None:
    """Wait for an ending thread that needs nothing of this event loop to end."""
    try:
        await asyncio.to_thread(thread.join)
    except RuntimeError:  # no thread can be begun: Python lets none begin when the interpreter ends
        thread.join()


class Threads:
    """A thread for each call, kept for another one.

    What `ThreadPoolExecutor` does for a call (a future with a condition, a semaphore) passes through seventeen
    functions, which was a tenth of a transactional step on SQLite. These are daemons: the end of the process does not
    wait for one that is at work.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: deque[SimpleQueue[Work | None]] = deque()
        self._is_closed = False

    def call(self, context: contextvars.Context, work: Callable[[], None]) -> None:
        """Call it soon, in a thread. It must not raise."""
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = SimpleQueue()
            inbox.put((context, work))
            threading.Thread(target=self._serve, args=(inbox,), name=self._name, daemon=True).start()
        else:
            inbox.put((context, work))

    def _serve(self, inbox: SimpleQueue[Work | None]) -> None:
        while (given := inbox.get()) is not None:
            context, work = given
            context.run(work)
            del given, context, work  # and all that they hold
            self._idle.append(inbox)
            if self._is_closed:
                self.close()

    def close(self) -> None:
        """Idle threads end now, the others after their work."""
        self._is_closed = True
        with suppress(IndexError):
            while True:
                self._idle.pop().put(None)


class DaemonExecutor(Executor):
    """As `ThreadPoolExecutor`, with as many threads as calls. The interpreter waits for those of that one when it ends:
    an activity that hangs would keep it from ending."""

    def __init__(self, name: str) -> None:
        self._threads = Threads(name)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            self._threads.call(contextvars.Context(), lambda: _execute(future, lambda: fn(*args, **kwargs)))
        except RuntimeError as error:  # no thread can be begun
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Never waits."""
        self._threads.close()


def _execute(future: Future[T], call: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is the answer
        future.set_exception(error)
        del future  # which the traceback would hold, and it the traceback
    else:
        future.set_result(result)
