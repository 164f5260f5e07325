"""Where a case keeps its data: a SQLite file of its own, or a namespace of its own in a PostgreSQL database."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import os
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from msgspec import Struct

from batuta.connect import store_for
from batuta.testing.servers import PostgresServer

StoreKind = Literal["sqlite", "postgres"]
KINDS: tuple[StoreKind, ...] = ("sqlite", "postgres")


class Place(Struct, frozen=True):
    """A database and a namespace in it."""

    kind: StoreKind
    url: str
    namespace: str

    def is_held(self) -> bool:
        """Whether some process is in the middle of a write to the SQLite file. Never so on PostgreSQL."""
        if self.kind == "postgres":
            return False
        file = os.open(self.url.removeprefix("sqlite:///") + "-lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        return False


class Places:
    """Gives places. Without a database it starts a PostgreSQL with fsync on when the first case asks for one."""

    def __init__(self, directory: Path, database: str = "") -> None:
        self._directory = directory
        self._numbers = itertools.count(1)
        self._server: PostgresServer | None = None
        self._database = database
        self._launching = asyncio.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()

    async def fresh(self, kind: StoreKind) -> Place:
        """A place that nobody has used."""
        number = next(self._numbers)
        if kind == "postgres":
            return Place(kind, await self._postgres(), f"case{number}")
        place = Place(kind, f"sqlite:///{self._directory / f'case{number}.db'}", "default")
        await migrate(place.url)
        return place

    async def _postgres(self) -> str:
        async with self._launching:
            if not self._database:
                self._server = await asyncio.to_thread(PostgresServer, fsync=True)
                self._database = await asyncio.to_thread(self._server.create_database)
                await migrate(self._database)
        return self._database


async def migrate(url: str) -> None:
    """Make the tables."""
    store = store_for(url)
    try:
        await store.migrate()
    finally:
        await store.close()
