"""A TCP proxy in front of PostgreSQL whose wires can be cut, or fall silent as behind a NAT that forgot them."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Collection
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit

CHUNK = 65536
_RESET = struct.pack("ii", 1, 0)
"""Of SO_LINGER: a close is a reset."""


class Wire:
    """All connections through it, each known by the port that PostgreSQL sees: pg_stat_activity.client_port."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._host, self._port = self._parts.hostname or "127.0.0.1", self._parts.port or 5432
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._is_cut = self._is_silent = False

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self._end(self._links)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        """The same database, over this wire."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        user, at, _ = self._parts.netloc.rpartition("@")
        return urlunsplit(self._parts._replace(netloc=f"{user}{at}127.0.0.1:{port}"))

    # -- what happens to it

    def cut(self) -> None:
        """Reset what is connected, on both sides, and whatever connects from now on."""
        self._is_cut = True
        self._end(self._links)

    def fall_silent(self) -> None:
        """From now on nothing comes through, neither of what is connected nor of what connects; nobody is told."""
        self._is_silent = True
        for link in self._links:
            link.is_silent = True

    def silence(self, ports: Collection[int]) -> int:
        """The same for these connections alone; the others, and new ones, work. Returns how many they are."""
        chosen = [link for link in self._links if link.port in ports]
        for link in chosen:
            link.is_silent = True
        return len(chosen)

    def mend(self) -> None:
        """New connections work. What is silent stays so."""
        self._is_cut = self._is_silent = False

    def _end(self, links: Collection[_Link]) -> None:
        for link in list(links):
            link.reset()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        link = _Link((reader, writer), is_silent=self._is_silent)
        self._links.add(link)
        try:
            if not self._is_cut:
                await link.run(self._host, self._port)
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            link.reset()
            self._links.discard(link)
            self._tasks.discard(task)


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One connection."""

    def __init__(self, here: Stream, *, is_silent: bool) -> None:
        self.is_silent = is_silent
        self.port = 0
        self._here, self._there = here, here

    async def run(self, host: str, port: int) -> None:
        self._there = await asyncio.open_connection(host, port)
        self.port = self._there[1].get_extra_info("sockname")[1]
        both = [asyncio.create_task(self._pass(*ends)) for ends in self._directions()]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    def _directions(self) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        return [(self._here[0], self._there[1]), (self._there[0], self._here[1])]

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            if not self.is_silent:
                writer.write(data)
                await writer.drain()
        if self.is_silent:  # nor is the other side told that this one has left
            await asyncio.Event().wait()

    def reset(self) -> None:
        for _, writer in (self._here, self._there):
            raw = writer.get_extra_info("socket")
            if raw is not None and not writer.is_closing():
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
