"""Where a measurement keeps its data: fresh databases on one PostgreSQL, and files on the same disk."""

import asyncio
import itertools
import os
import shutil
from pathlib import Path
from typing import Final, Literal

from batuta.testing.servers import PostgresServer

StoreKind = Literal["pg", "sqlite"]
STORES: Final[tuple[StoreKind, ...]] = ("pg", "sqlite")
IN_MEMORY: Final = ("tmpfs", "ramfs")


class NotADisk(Exception):
    """The data would be kept in memory, where a commit costs nothing and every figure would be wrong."""


class Places:
    """Gives each measurement a database of its own. PostgreSQL runs with fsync and synchronous_commit on."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._server = PostgresServer(fsync=True)
        self.directory = self._server.directory / "files"
        self.directory.mkdir()
        _refuse_memory(self.directory)

    def fresh(self, store: StoreKind) -> str:
        """The url of an empty database."""
        return f"sqlite:///{self.file('.db')}" if store == "sqlite" else self._server.create_database()

    def file(self, suffix: str) -> Path:
        """A new path on the same disk."""
        return self.directory / f"bench-{next(self._numbers)}{suffix}"

    def settle(self) -> None:
        """Let no measurement pay for the dirty pages of the one before."""
        self._server.execute("CHECKPOINT")
        os.sync()

    def let_go(self, url: str) -> None:
        """Give back the space of a database that is no longer needed."""
        if not url.startswith("sqlite:///"):
            self._server.drop_database(url)
            return
        path = Path(url.removeprefix("sqlite:///"))
        for beside in path.parent.glob(f"{path.name}*"):
            shutil.rmtree(beside) if beside.is_dir() else beside.unlink()

    def postgres_setting(self, name: str) -> str:
        """What the server itself says about one of its settings."""
        return asyncio.run(_setting(self._server.url, name))

    def close(self) -> None:
        self._server.close()


async def _setting(url: str, name: str) -> str:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        return str(await connection.fetchval("SELECT current_setting($1)", name))
    finally:
        await connection.close()


def _refuse_memory(directory: Path) -> None:
    kind = filesystem(directory)
    if kind in IN_MEMORY:
        raise NotADisk(f"the temporary directory is on {kind}, which is not a disk; set TMPDIR to a directory on one")


def filesystem(directory: Path) -> str:
    """The type of the file system that holds a directory, "" where that can't be told."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return ""
    place, best = directory.resolve(), ("", "")
    for line in mounts.read_text().splitlines():
        _, point, kind, *_ = line.split()
        if place.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]
