"""Telling people of dead letters: a log line, and a function of the user's own."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from batuta.engine.activities.threads import DaemonExecutor
from batuta.errors import InvalidInput
from batuta.journal.dead_letters import DeadLetter

log = logging.getLogger("batuta.dead_letters")

Hook = Callable[[DeadLetter], Any]
_MOST_WAITING = 10_000
_LAST_CALLS = 5.0
"""Seconds that a stop waits for the calls that are left."""


class Alerts:
    """Calls the user's function for each dead letter of this worker, one after another, after its commit."""

    def __init__(self, hook: Hook | None) -> None:
        if hook is not None and not callable(hook):
            raise InvalidInput(f"on_dead_letter={hook!r} must be a function of one argument, the dead letter")
        self._hook = hook
        self._waiting: deque[DeadLetter] = deque()
        self._calling: asyncio.Task[None] | None = None
        self._threads = DaemonExecutor("batuta-dead-letter")
        self.count = 0
        """Dead letters that it was told of."""

    def arrived(self, letter: DeadLetter) -> None:
        """It is durable. Called on the worker's loop, and returns at once."""
        self.count += 1
        log.warning(
            "%s %s (%s) is a dead letter: %s, %s: %.200s",
            letter.kind,
            letter.id,
            letter.name,
            letter.reason,
            letter.error,
            letter.message,
            extra={"batuta_run": letter.id, "batuta_fingerprint": letter.fingerprint},
        )
        if self._hook is None:
            return
        if len(self._waiting) >= _MOST_WAITING:
            log.error("on_dead_letter does not keep up: it is not told of run %s", letter.id)
            return
        self._waiting.append(letter)
        if self._calling is None or self._calling.done():
            self._calling = asyncio.get_running_loop().create_task(self._call_all(self._hook))

    async def _call_all(self, hook: Hook) -> None:
        while self._waiting:
            letter = self._waiting.popleft()
            try:
                if iscoroutinefunction(hook):
                    await hook(letter)
                else:  # it may talk to the network, and must not hold up the loop
                    call = contextvars.copy_context().run
                    answer = await asyncio.get_running_loop().run_in_executor(self._threads, call, hook, letter)
                    if isawaitable(answer):  # an object whose call is async, or a lambda around one
                        await answer
            except KeyboardInterrupt:
                raise
            except BaseException:
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    raise  # the worker stops, and waits no longer
                log.exception("on_dead_letter raised for run %s", letter.id)

    async def close(self) -> None:
        """Let the remaining calls end, within bounds."""
        if self._calling is None:
            return
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._calling, _LAST_CALLS)
        self._threads.shutdown()
        if self._waiting:
            log.error("on_dead_letter was not told of %d dead letters: the worker has stopped", len(self._waiting))
