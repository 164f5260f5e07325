"""Stores for virtual time."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from batuta.clock import Clock
from batuta.failpoints import failpoint
from batuta.journal.records import Change, Hint, Refusal, Verdict
from batuta.stores.memory import MemoryStore
from batuta.stores.sqlite import SqliteStore
from batuta.stores.sqlite.database.readers import Readers
from batuta.stores.sqlite.database.writer import Last, Work, Writer
from batuta.stores.sqlite.hints import Watcher

T = TypeVar("T")

StoreName = Literal["memory", "sqlite"]
AnyStoreName = Literal["memory", "sqlite", "postgres"]


class _PlainWriter(Writer):
    """Writes where it is called: there are no other writers, and a thread would make the order of events random."""

    async def write(self, work: Work[T], *, last: Last[T] | None = None, small: bool = False, aside: bool = False) -> T:
        while not self._try_enter():  # noqa: ASYNC110 - an activity has its transaction open, for a moment
            await asyncio.sleep(0)
        result = self._work(work)
        self._end(last, result)
        return result

    async def commit(self) -> None:
        self._commit()


class _PlainReaders(Readers):
    async def read_apart(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return self.read(work)


class LonelySqliteStore(SqliteStore):
    """A file that no other process opens: this process sends all hints.

    So nothing has to poll the file, and a month without news passes at once.
    """

    poll_seconds: float | None = None

    def __init__(self, path: str | Path, namespace: str = "default", clock: Clock | None = None) -> None:
        super().__init__(path, namespace, clock)
        self._writer = _PlainWriter(self.path)
        self._readers = _PlainReaders(self.path)
        self._watcher = Watcher(self._writer, self._listeners, self.unit)

    def listen(self, callback: Callable[[Hint], None]) -> Callable[[], None]:
        return self._listeners.add(callback)


class FragileMemoryStore(MemoryStore):
    """A store in memory whose commits pass the same failpoint as those of the others."""

    async def commit(self, worker_id: str, changes: Sequence[Change]) -> dict[int, Verdict | list[Refusal]]:
        answers = await super().commit(worker_id, changes)
        failpoint("commit.after")
        return answers


def sqlite_store(file: Path, clock: Clock, *, virtual: bool) -> SqliteStore:
    """A store in that file."""
    return (LonelySqliteStore if virtual else SqliteStore)(file, clock=clock)


def quick_folder() -> str | None:
    """Nothing here has to outlive this process: where there is a disk in memory, no other need be written to."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - folders of our own are made in it
