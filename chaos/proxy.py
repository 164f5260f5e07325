"""A TCP proxy in front of PostgreSQL that lets a request through and loses its reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit

SSL_REQUEST = 80877103
HEADER = 5
CHUNK = 65536


class Proxy:
    """Counts requests of all connections; the reply to the nth is swallowed whole, then the connection is cut.

    A request is a message that executes: the server has done what it was asked before anything is cut.
    """

    def __init__(self, url: str, lose: int = 0) -> None:
        parts = urlsplit(url)
        self._parts = parts
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 5432
        self._lose = lose
        self.requests = 0
        self.lost = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        """The same database, through the proxy."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        user, at, _ = self._parts.netloc.rpartition("@")
        return urlunsplit(self._parts._replace(netloc=f"{user}{at}127.0.0.1:{port}"))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            there = await asyncio.open_connection(self._host, self._port)
            await _Link(self, (reader, writer), there).run()
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    def is_to_be_lost(self) -> bool:
        """One more request: whether its reply is lost."""
        self.requests += 1
        return self.requests == self._lose


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, here: Stream, there: Stream) -> None:
        self._proxy, self._here, self._there = proxy, here, there
        self._swallow = False

    async def run(self) -> None:
        both = [asyncio.create_task(self._requests()), asyncio.create_task(self._replies())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            self._there[1].close()

    async def _requests(self) -> None:
        reader, writer = self._here[0], self._there[1]
        while True:  # the first messages have no type
            length = await reader.readexactly(4)
            rest = await reader.readexactly(int.from_bytes(length) - 4)
            writer.write(length + rest)
            if int.from_bytes(rest[:4]) != SSL_REQUEST:
                break
        await self._messages(reader, writer, self._note_request)

    def _note_request(self, kind: bytes) -> bool:
        if kind in (b"E", b"Q") and self._proxy.is_to_be_lost():
            self._swallow = True
        return True

    async def _replies(self) -> None:
        reader, writer = self._there[0], self._here[1]
        first = await reader.readexactly(1)
        if first == b"N":  # the answer to a request for TLS is one letter
            writer.write(first)
            first = await reader.readexactly(1)
        await self._messages(reader, writer, self._pass_reply, first)

    def _pass_reply(self, kind: bytes) -> bool:
        if self._swallow and kind == b"Z":
            self._proxy.lost += 1
            raise EOFError("cut")
        return not self._swallow

    async def _messages(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        passes: Callable[[bytes], bool],
        first: bytes = b"",
    ) -> None:
        while True:
            head = first + await reader.readexactly(HEADER - len(first))
            first = b""
            body = await reader.readexactly(int.from_bytes(head[1:]) - 4)
            if passes(head[:1]):
                writer.write(head + body)
                await writer.drain()
