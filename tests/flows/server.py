"""A real HTTP server on this machine, which answers as a function says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, NamedTuple


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Answer(NamedTuple):
    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = MappingProxyType({})


Handler = Callable[[Request], Awaitable[Answer]]


class Server:
    """Keeps what came."""

    def __init__(self, handler: Handler | None) -> None:
        self.received: list[Request] = []
        self.answers: list[Answer] = []
        """Given first, one each."""
        self.handler = handler
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, path, _ = head[0].split(" ")
            pairs = (line.partition(":") for line in head[1:] if line)
            headers = {name.lower(): value.strip() for name, _, value in pairs}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            request = Request(method, path, headers, body)
            self.received.append(request)
            writer.write(_written(await self._answer(request)))
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, request: Request) -> Answer:
        if self.answers:
            return self.answers.pop(0)
        return Answer() if self.handler is None else await self.handler(request)


def _written(answer: Answer) -> bytes:
    data = answer.body.encode() if isinstance(answer.body, str) else json.dumps(answer.body).encode()
    kind = "text/plain" if isinstance(answer.body, str) else "application/json"
    said = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
    head = f"HTTP/1.1 {answer.status} X\r\n{said}Content-Type: {kind}\r\nContent-Length: {len(data)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + data


@asynccontextmanager
async def serving(handler: Handler | None = None) -> AsyncIterator[Server]:
    found = Server(handler)
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield found
