"""Clients that send slowly, on real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import uvicorn

from batuta.server import Server
from batuta.server.http import connections

WHOLE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
async def port(server: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(connections, "SLOWEST_HEADERS", 0.2)
    running = uvicorn.Server(
        uvicorn.Config(
            server.serve, port=0, log_config=None, lifespan="off", interface="asgi3", http=connections.Connection
        )
    )
    serving = asyncio.create_task(running.serve())
    while not running.started:
        await asyncio.sleep(0.01)
    yield running.servers[0].sockets[0].getsockname()[1]
    running.should_exit = True
    await serving


@pytest.mark.parametrize(
    "sent", [b"", b"GET /healthz HTTP/1.1\r\nHo", WHOLE + b"GET /he"], ids=["none", "half", "second"]
)
async def test_headers_that_do_not_come_close_the_connection(port: int, sent: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    answered = await asyncio.wait_for(reader.read(), 20)
    assert (b"200 OK" in answered) is sent.startswith(WHOLE)
    writer.close()


async def test_headers_that_drip_close_the_connection(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\n")
    closed = asyncio.ensure_future(reader.read())
    while not closed.done():
        with suppress(ConnectionError):
            writer.write(b"X-A: b\r\n")
        await asyncio.wait({closed}, timeout=0.05)
    assert closed.exception() is not None or closed.result() == b""
    writer.close()


async def test_a_connection_that_is_used_again_stays(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(3):
        writer.write(WHOLE)
        assert b'{"status":"ok"}' in await asyncio.wait_for(reader.readuntil(b"}"), 20)
    writer.close()
