"""Faults inside a store, armed in a worker process by a text: `verb:step:nth:fault[:times]`, separated by commas.

On SQLite a verb is one of the store's (start, commit, beat, ...), a step one of the driver's (begin, work, commit,
committed, read), and a fault EIO, ENOSPC, BUSY or UNKNOWN; it comes at the nth call of the verb and at `times` calls
from there on. On PostgreSQL the verbs are commit and claim, and the only fault is LOST: done, but the reply is lost.

On both, any verb may have the fault BUG at the step `before` or `after`: an error that nobody expects. A worker that
meets one says `fault`.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from batuta.errors import OutcomeUnknown, StoreError
from batuta.journal.store import Store
from batuta.stores.sqlite import SqliteStore
from batuta.stores.sqlite.heartbeat import SqliteHeartbeat

WRITES = ("register", "start", "send", "claim", "commit", "beat", "reap", "retire")
READS = ("unread", "load", "outcome", "get")
OURS = ("claim", "commit", "beat", "reap", "unread", "hand_over", "due_at", "schedule_at", "give_up", "retire")
"""Verbs that workers alone use."""
FAULTS = {
    "EIO": (sqlite3.SQLITE_IOERR | (4 << 8), "SQLITE_IOERR_FSYNC", "disk I/O error"),
    "ENOSPC": (sqlite3.SQLITE_FULL, "SQLITE_FULL", "database or disk is full"),
    "BUSY": (sqlite3.SQLITE_BUSY, "SQLITE_BUSY", "database is locked"),
}


class Planned(Struct):
    """One fault that waits for its call."""

    verb: str
    step: str
    nth: int
    fault: str
    times: int = 1

    def covers(self, number: int) -> bool:
        return self.nth <= number < self.nth + self.times


def parse(text: str) -> list[Planned]:
    return [_planned(part.split(":")) for part in text.split(",")]


def _planned(words: list[str]) -> Planned:
    verb, step, nth, fault, *times = words
    return Planned(verb, step, int(nth), fault, int(times[0]) if times else 1)


HEARTS = ("beat", "reap")
VERBS = tuple(name for name, verb in inspect.getmembers(Store) if inspect.iscoroutinefunction(verb))
"""What a store can be asked to do. It is also asked for hearts, which have verbs of their own."""
FOREVER = 1_000_000_000


class Bug(Exception):
    """An error that nobody expects."""


def arm(store: Store, text: str) -> None:
    """Make the store fail as the text says."""
    bugs = [planned for planned in parse(text) if planned.fault == "BUG"]
    if bugs:
        _arm_bugs(store, bugs)
    elif isinstance(store, SqliteStore):
        _Hook(parse(text)).wrap(store)
    else:
        calls: Counter[str] = Counter()

        def lose(verb: str) -> None:
            calls[verb] += 1
            if any(planned.verb == verb and planned.covers(calls[verb]) for planned in parse(text)):
                raise OSError("the reply was lost")

        store.faults = lose  # type: ignore[attr-defined]  # of PostgresStore, which need not be installed


Around = Callable[[Callable[..., Any]], Callable[..., Any]]


def count(store: Any, path: Path) -> None:
    """Write the name of each verb that the store is asked for into a file."""

    def counted(verb: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        async def called(*args: Any, **kwargs: Any) -> Any:
            with path.open("a") as file:
                file.write(f"{verb}\n")
            return await call(*args, **kwargs)

        return called

    for verb in (*VERBS, *HEARTS):
        _put_around(store, verb, functools.partial(counted, verb))


def _arm_bugs(store: Any, bugs: list[Planned]) -> None:
    for planned in bugs:
        numbers = itertools.count(1)
        _put_around(store, planned.verb, functools.partial(_buggy, planned, numbers))


def _put_around(store: Any, verb: str, around: Around) -> None:
    if verb not in HEARTS:
        setattr(store, verb, around(getattr(store, verb)))
        return
    heartbeat = store.heartbeat

    @asynccontextmanager
    async def opened(worker_id: str) -> AsyncIterator[Any]:
        async with heartbeat(worker_id) as made:
            setattr(made, verb, around(getattr(made, verb)))
            yield made

    store.heartbeat = opened


def _buggy(planned: Planned, numbers: Iterator[int], call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    async def called(*args: Any, **kwargs: Any) -> Any:
        fails = planned.covers(next(numbers))
        if fails and planned.step == "before":
            raise _bug(planned.verb)
        answer = await call(*args, **kwargs)
        if fails:
            raise _bug(planned.verb)
        return answer

    return called


def _bug(verb: str) -> Exception:
    """What callers of clients see must be a store's error: they are told of no others."""
    sys.stdout.write("fault\n")
    sys.stdout.flush()
    return Bug(f"of {verb}") if verb in OURS else StoreError(f"of {verb}: nobody knows this one")


class _Hook:
    """Knows which verb each thread is in, and fails its steps."""

    def __init__(self, plan: list[Planned]) -> None:
        self._plan = plan
        self._calls: Counter[str] = Counter()
        self._due: list[Planned] = []
        self._lock = threading.Lock()

    def wrap(self, store: SqliteStore) -> None:
        store.faults = self.step
        for verb in (*WRITES, *READS):
            if verb in ("beat", "reap"):
                setattr(SqliteHeartbeat, verb, self._counted(verb, getattr(SqliteHeartbeat, verb)))
            else:
                setattr(store, verb, self._counted(verb, getattr(store, verb)))

    def _counted(self, verb: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        async def counted(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self._calls[verb] += 1
                due = [planned for planned in self._plan if planned.verb == verb and planned.covers(self._calls[verb])]
                self._due += due
            try:
                return await call(*args, **kwargs)
            finally:
                with self._lock:
                    self._due = [planned for planned in self._due if planned not in due]

        return counted

    def step(self, step: str) -> None:
        """Called by the driver's wrapper in whatever thread works."""
        beating = threading.current_thread().name == "batuta-lease"
        with self._lock:
            found = next((p for p in self._due if p.step == step and (p.verb in ("beat", "reap")) == beating), None)
            if found is None:
                return
            self._due.remove(found)
        raise _error(found.fault)


def _error(fault: str) -> Exception:
    if fault == "UNKNOWN":
        return OutcomeUnknown("the reply was lost")
    code, name, text = FAULTS[fault]
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    error.sqlite_errorname = name
    return error
