"""Sync activities: each attempt has a thread."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from batuta.authoring.attempt import current_activity
from batuta.engine.calls import Call

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
    while not may_act():
        if call.over:
            raise asyncio.CancelledError
        time.sleep(0.05)
    if call.over:  # it has waited, for a thread or in middleware, and nobody waits for it any more
        raise asyncio.CancelledError
    if context is None:
        context = contextvars.Context()
        context.run(current_activity.set, call)
    try:
        return context.run(fn or call.activity.fn, *args, **kwargs)
    except StopIteration as error:  # no future takes it: the attempt would never come to an end
        raise RuntimeError(f"activity {call.pending.name!r} raised StopIteration") from error


class Threads:
    """A thread for each call, kept for another one.

    What `ThreadPoolExecutor` does for a call (a future with a condition, a semaphore) passes through seventeen
    functions, which was a tenth of a transactional step on SQLite. These are daemons: nobody waits for the answer of
    one that is at work when the process ends.
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
            threading.Thread(target=self._serve, args=(inbox,), name=self._name, daemon=True).start()
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
        """Those that are idle end now, the others with what they do."""
        self._is_closed = True
        with suppress(IndexError):
            while True:
                self._idle.pop().put(None)
