"""Starts and messages inside the caller's own transaction."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from batuta.authoring.backend import RunRef
from batuta.journal.store import CallerTransaction


class ReadyWrite:
    """Implements `authoring.backend.CallerWrite`: all is ready but for the write."""

    def __init__(self, caller: CallerTransaction, write: Callable[[], Coroutine[Any, Any, list[RunRef]]]) -> None:
        self.suits_a_loop = caller.brief or not caller.blocking
        self.suits_a_thread = caller.blocking
        self.write = write
