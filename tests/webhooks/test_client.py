"""Strangers' servers that are slow, endless or lying cost a bounded amount."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from batuta.errors import InvalidInput, PartnerUnreachable, ResponseTooLarge
from batuta.webhooks import AddressPolicy, HttpLimits, SafeHttpClient

HERE = AddressPolicy(["127.0.0.1"])
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def _drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")


async def _rubbish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\xff not http at all\r\n\r\n")


async def _endless_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(200_000):
        writer.write(b"x-%d: y\r\n" % number)
        await writer.drain()


async def _dripping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"1\r\nx\r\n")
        await writer.drain()
        await asyncio.sleep(0.01)


async def _lying_length(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nshort")
    await writer.drain()


async def _two_lengths(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!")


async def _endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        await writer.drain()


@pytest.mark.parametrize("answer", [_silent, _drop, _rubbish, _endless_headers, _dripping, _lying_length, _two_lengths])
async def test_a_server_without_a_proper_answer_is_unreachable(answer: Answer) -> None:
    limits = HttpLimits(total=1, connect=1, read=0.5)
    async with serving(answer) as url, SafeHttpClient(HERE, limits) as client:
        with pytest.raises(PartnerUnreachable, match=r"127\.0\.0\.1:\d+ gave no answer"):
            await client.request("POST", url, body=b"{}")


async def test_an_endless_answer_is_cut_off() -> None:
    async with serving(_endless) as url, SafeHttpClient(HERE, HttpLimits(response_bytes=200_000)) as client:
        with pytest.raises(ResponseTooLarge, match="200,000 bytes"):
            await client.request("GET", url)


async def test_after_bad_answers_the_client_still_works() -> None:
    """A broken connection takes no place of the pool with it."""
    limits = HttpLimits(total=1, connect=1, read=0.2, connections=2)

    async def fine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()

    async with serving(_silent) as bad, serving(fine) as good, SafeHttpClient(HERE, limits) as client:
        for _ in range(3):
            asked = [asyncio.create_task(client.request("GET", bad)) for _ in range(4)]
            await asyncio.sleep(0)
            asked[0].cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        assert (await client.request("GET", good)).status == 204


@pytest.mark.parametrize(
    ("method", "headers", "body"),
    [
        ("GET", {"x\r\nevil": "1"}, b""),
        ("GET", {"x": "1\r\nevil: 2"}, b""),
        ("GET", {"Host": "other"}, b""),
        ("GET", {"Content-Length": "5"}, b""),
        ("GET", {"": "1"}, b""),
        ("GET / HTTP/1.1\r\n", {}, b""),
        ("POST", {}, b"x" * 2_000_000),
    ],
)
async def test_a_request_that_cannot_be_sent_is_refused(method: str, headers: dict[str, str], body: bytes) -> None:
    async with SafeHttpClient(HERE) as client:
        with pytest.raises(InvalidInput):
            await client.request(method, "http://127.0.0.1:9/", headers=headers, body=body)


def test_limits_that_cannot_be_are_refused() -> None:
    for name in ("total", "connect", "read", "response_bytes", "redirects", "connections"):
        with pytest.raises(InvalidInput, match=name):
            HttpLimits(**{name: -1})
        with pytest.raises(InvalidInput, match=name):
            HttpLimits(**{name: "1"})  # type: ignore[arg-type]
