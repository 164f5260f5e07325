"""Orders that others leave to chance: sets of objects whose hash is their address.

Workflow code meets them through asyncio and anyio, and what they decide (which task is cancelled first) ends up in the
journal. Both are changed for the loops of runs alone; for any other loop they stay what they are.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Hashable
from contextlib import suppress
from importlib import import_module
from typing import Any


def order_gathers(is_ours: Callable[[Any], bool]) -> None:
    """Count the hashes of the futures that `asyncio.gather` makes: `asyncio.wait` puts them into sets. Its class is one
    of Python, and no loop is asked to make them."""
    kind = getattr(asyncio.tasks, "_GatheringFuture", None)
    if kind is None:
        return

    def counted(future: Any) -> int:
        number: int | None = getattr(future, "_batuta_number", None)
        if number is None:
            loop = future.get_loop()
            number = future._batuta_number = loop.next_gather_hash() if is_ours(loop) else object.__hash__(future)
        return number

    kind.__hash__ = counted


def order_as_completed(is_ours: Callable[[Any], bool]) -> None:
    """Have `asyncio.as_completed` make its tasks in the order of its arguments: it puts coroutines into a set first.

    Code that imported the function by its name before keeps the other one: `batuta check` knows it (W303)."""
    original = asyncio.as_completed

    @functools.wraps(original)
    def as_completed(fs: Any, *args: Any, **options: Any) -> Any:
        loop = asyncio.events._get_running_loop()
        if loop is not None and is_ours(loop) and not (asyncio.isfuture(fs) or asyncio.iscoroutine(fs)):
            fs = [asyncio.ensure_future(one, loop=loop) for one in dict.fromkeys(fs)]
        return original(fs, *args, **options)

    asyncio.as_completed = asyncio.tasks.as_completed = as_completed


class _InOrder(dict[Hashable, None]):
    """As much of a set as anyio asks of one, in order of insertion."""

    def add(self, one: Hashable) -> None:
        self[one] = None

    def remove(self, one: Hashable) -> None:
        del self[one]

    def discard(self, one: Hashable) -> None:
        self.pop(one, None)


def order_scopes() -> None:
    """Have anyio's cancel scopes keep the scopes within them in order: it cancels their tasks one after the other. And
    have them leave it to later turns to cancel what does not end in this one. Only in programs that have imported
    anyio."""
    if "anyio" in sys.modules:
        _order_scopes()


@functools.cache
def _order_scopes() -> None:
    with suppress(ImportError, AttributeError):  # another anyio than we know
        kind: Any = import_module("anyio._backends._asyncio").CancelScope
        begin = kind.__init__

        @functools.wraps(begin)
        def ordered(scope: Any, *args: Any, **kwargs: Any) -> None:
            begin(scope, *args, **kwargs)
            if getattr(scope, "_child_scopes", None) == set():
                scope._child_scopes = _InOrder()

        kind.__init__ = ordered
        deliver = kind._deliver_cancellation

        @functools.wraps(deliver)
        def bounded(scope: Any, origin: Any) -> Any:
            later = getattr(asyncio.events._get_running_loop(), "deliver_later", None)
            if later is not None and scope is origin and (handle := later(scope._deliver_cancellation, origin)):
                scope._cancel_handle = handle
                return True
            return deliver(scope, origin)

        kind._deliver_cancellation = bounded
