"""A receiver of webhooks: a real HTTP server on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from batuta.webhooks import verify_webhook


class Received(NamedTuple):
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


class Receiver:
    """Answers with the statuses that it is told, then 200, and keeps what came."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.received: list[Received] = []
        self.url = ""
        self.usual = 200

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            lines = head.split("\r\n")[1:]
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
            }
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.received.append(Received(headers, body))
            status, more = self.answers.pop(0) if self.answers else (self.usual, {})
            said = "".join(f"{name}: {value}\r\n" for name, value in more.items())
            writer.write(f"HTTP/1.1 {status} X\r\n{said}Content-Length: 2\r\nConnection: close\r\n\r\nok".encode())
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def verified(self, secret: str) -> list[str]:
        """The ids of all that came, each with a signature that this secret made."""
        return [verify_webhook(one.headers, one.body, [secret]) for one in self.received]


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    found = Receiver()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    async with server:
        yield found
