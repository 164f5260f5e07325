"""A wire to a server that can be cut: a TCP proxy on this machine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

_PIECE = 64 * 1024


class Wire:
    """Passes bytes on. While it is cut, nothing listens, and no connection is left. The port stays its own."""

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self.port = 0
        """Where it listens, at 127.0.0.1."""
        self._held: socket.socket | None = None
        self._listening: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @classmethod
    @asynccontextmanager
    async def to(cls, host: str, port: int) -> AsyncIterator[Wire]:
        """One that is open, until the end of the block."""
        wire = cls(host, port)
        try:
            await wire.mend()
            yield wire
        finally:
            await wire.cut()
            if wire._held is not None:
                wire._held.close()

    async def mend(self) -> None:
        """Listen, at the port that it always had."""
        if self._held is None:  # bound and not listening: while the wire is cut, no other program may get the port
            self._held = socket.socket()
            self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._held.bind(("127.0.0.1", 0))
            self.port = self._held.getsockname()[1]
        if self._listening is None:
            self._listening = await asyncio.start_server(self._connected, "127.0.0.1", self.port, reuse_port=True)

    async def cut(self) -> None:
        """Refuse connections, and end those that are open."""
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.close()
        ending = [*self._connections]
        for one in ending:
            one.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        this = asyncio.current_task()
        assert this is not None  # noqa: S101 - streams are served in tasks
        self._connections.add(this)
        there: asyncio.StreamWriter | None = None
        try:
            if self._listening is None:
                return  # it was cut just now
            back, there = await asyncio.open_connection(*self._to)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pass_on(reader, there))
                both.create_task(_pass_on(back, writer))
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass  # one side went, or the wire was cut: both ends learn of it below
        finally:
            self._connections.discard(this)
            for end in (writer, there):
                if end is not None:
                    end.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
    raise EOFError  # ends the other direction, too


def place_of(url: str, port: int) -> tuple[str, int] | None:
    """Host and port of a URL. None: it names a socket file, several servers, or no host. `port`: the usual one."""
    found = urlsplit(url)
    try:
        return None if not found.hostname or "," in found.netloc else (found.hostname, found.port or port)
    except ValueError:
        return None


def through(url: str, wire: Wire) -> str:
    """The same URL, over the wire."""
    found = urlsplit(url)
    name, mark, _ = found.netloc.rpartition("@")
    return urlunsplit(found._replace(netloc=f"{name}{mark}127.0.0.1:{wire.port}"))
