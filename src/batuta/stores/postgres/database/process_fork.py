"""Forks wait for connections that are being opened: their sockets are not known yet, and a child would keep them.

The server takes a worker for alive while one of its sockets is open somewhere.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 2.0
"""How long a fork waits."""


class Opening:
    """Counts the connections that each thread is opening."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._by_thread: dict[int, int] = {}

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """While a connection is opened, until its session knows it."""
        thread = threading.get_ident()
        self._add(thread, 1)
        try:
            yield
        finally:
            self._add(thread, -1)

    def _add(self, thread: int, number: int) -> None:
        with self._changed:
            self._by_thread[thread] = self._by_thread.get(thread, 0) + number
            if not self._by_thread[thread]:
                del self._by_thread[thread]
                self._changed.notify_all()

    def before_fork(self) -> None:
        """No other thread opens one until the fork is done. The own thread's can't end while it forks."""
        thread = threading.get_ident()
        self._changed.acquire()
        self._changed.wait_for(lambda: not self._by_thread.keys() - {thread}, PATIENCE_S)

    def in_parent(self) -> None:
        self._changed.release()

    def in_child(self) -> None:
        self._changed = threading.Condition()
        self._by_thread.clear()


opening = Opening()
os.register_at_fork(before=opening.before_fork, after_in_parent=opening.in_parent, after_in_child=opening.in_child)
