"""A directory that runs: storage, rules and an HTTP server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from cryptography import x509

from batuta.clock import Clock
from pixdict.directory.faults import Faults
from pixdict.directory.http import KEEP_ALIVE, Application
from pixdict.directory.service import Service
from pixdict.directory.settings import DirectorySettings
from pixdict.directory.storage import Storage


def listen(host: str, port: int) -> socket.socket:
    """A socket for `uvicorn`. Raises OSError.

    Its protocol is told (`socket.create_server` leaves it open): else asyncio would wait for acknowledgements between
    the parts of an answer.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, kind, protocol or socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(256)
    except OSError:
        made.close()
        raise
    return made


class _Embedded(uvicorn.Server):
    """Without handlers of signals: the program that it is a part of has its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Directory:
    """A directory. `async with Directory.serve() as directory` runs one; `application` is for other ASGI servers."""

    def __init__(
        self, settings: DirectorySettings | None = None, *, path: str | Path = ":memory:", clock: Clock | None = None
    ) -> None:
        self.settings = settings or DirectorySettings()
        self.storage = Storage(path)
        self.service = Service(self.settings, self.storage, clock)
        self.faults = Faults()
        self.application: Callable[..., Any] = Application(self.service, self.faults)
        self.url = ""
        """Where it listens, without a slash at the end; "" before it does."""

    @property
    def certificate(self) -> x509.Certificate | None:
        """What its answers are verified with; None when it does not sign."""
        return self.service.signer.certificate if self.service.signer else None

    @property
    def scheme(self) -> str:
        """How its address begins."""
        return "https" if self.settings.tls else "http"

    def now(self) -> int:
        """Its time in microseconds."""
        return self.service.now()

    def advance(self, seconds: float) -> None:
        """Move its time forward."""
        self.service.advance(seconds)

    def close(self) -> None:
        """Close its file."""
        self.storage.close()

    @classmethod
    @asynccontextmanager
    async def serve(
        cls,
        settings: DirectorySettings | None = None,
        *,
        path: str | Path = ":memory:",
        clock: Clock | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> AsyncIterator[Directory]:
        """Run one in this event loop. `path` is its SQLite file; without one it forgets everything at the end.
        With `port=0` the system chooses a port: see `url`."""
        directory = cls(settings, path=path, clock=clock)
        try:
            with listen(host, port) as listening:
                directory.url = f"{directory.scheme}://{host}:{listening.getsockname()[1]}"
                server = _Embedded(directory.server_config())
                serving = asyncio.create_task(server.serve(sockets=[listening]))
                try:
                    while not server.started and not serving.done():  # uvicorn has no event for it
                        await asyncio.wait({serving}, timeout=0.01)
                    yield directory
                finally:
                    server.should_exit = True
                    await serving
        finally:
            directory.close()

    def server_config(self, **options: Any) -> uvicorn.Config:
        """How uvicorn runs it."""
        defaults: dict[str, Any] = {
            "interface": "asgi3",
            "lifespan": "off",
            "log_config": None,
            "access_log": False,
            "server_header": False,
            "timeout_keep_alive": KEEP_ALIVE,
            "timeout_graceful_shutdown": 1,
            "ws": "none",
        }
        tls = self.settings.tls.server_options() if self.settings.tls else {}
        return uvicorn.Config(self.application, **(defaults | tls | options))
