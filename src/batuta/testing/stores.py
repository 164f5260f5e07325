"""Stores for virtual time."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from batuta.clock import Clock
from batuta.failpoints import failpoint
from batuta.journal.records import Change, Hint, Page, Refusal, RunFilter, Verdict
from batuta.stores.memory import MemoryStore
from batuta.stores.sqlite import SqliteStore, lists

StoreName = Literal["memory", "sqlite"]


class LonelySqliteStore(SqliteStore):
    """A file that no other process opens: hints from this one are all there are.

    So nothing has to look at the file every now and then, and a month without news passes at once.
    """

    poll_seconds: float | None = None

    def listen(self, callback: Callable[[Hint], None]) -> Callable[[], None]:
        return self._listeners.add(callback)

    async def list_runs(self, where: RunFilter, cursor: str | None = None, limit: int = 50) -> Page:
        before = lists.decode_cursor(cursor)
        return self._readers.read(lambda connection: lists.list_runs(connection, self.namespace, where, before, limit))


class FragileMemoryStore(MemoryStore):
    """A store in memory whose commits pass the failpoint that those of the others pass."""

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
