"""Callbacks for changes that may have happened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from batuta.journal.records import Hint

Callback = Callable[[Hint], None]
NOTHING = Hint()
"""A hint that need not be told."""


class Listeners:
    """Callbacks of one store object, called on the event loop that opened it, from any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._callbacks: dict[object, Callback] = {}

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def bind(self) -> None:
        """Hints go to the running loop from now on."""
        self._loop = asyncio.get_running_loop()

    def unbind(self) -> None:
        """No more hints: the store is closed."""
        self._loop = None

    def add(self, callback: Callback) -> Callable[[], None]:
        key = object()
        self._callbacks[key] = callback
        return lambda: _discard(self._callbacks, key)

    def tell(self, hint: Hint) -> None:
        """Pass a hint on. Never raises: a hint may get lost."""
        loop = self._loop
        if not self._callbacks or loop is None:
            return
        try:
            here = asyncio._get_running_loop() is loop
            (loop.call_soon if here else loop.call_soon_threadsafe)(self._deliver, hint)
        except RuntimeError:
            pass  # the loop is closed: there are no listeners left

    def _deliver(self, hint: Hint) -> None:
        for callback in list(self._callbacks.values()):
            callback(hint)


def _discard(callbacks: dict[object, Callback], key: object) -> None:
    callbacks.pop(key, None)
