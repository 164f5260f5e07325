"""Webhooks over TLS: the checked address is called under the name of the URL."""

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from batuta.errors import PartnerUnreachable
from batuta.webhooks import AddressPolicy, SafeHttpClient
from tests.certificates import write_certificate


async def test_the_name_is_in_the_handshake_and_the_host_and_the_certificate_must_be_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = write_certificate(tmp_path / "hooks.pem", "hooks.example")
    named: list[Any] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.sni_callback = lambda _socket, name, _context: named.append(name)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        named.extend(line for line in head.split("\r\n") if line.startswith("host: "))
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async def getaddrinfo(_loop: Any, _host: str, port: int, **_options: Any) -> Any:
        return [(socket.AF_INET, 1, 6, "", ("127.0.0.1", port))]

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    trusting = ssl.create_default_context(cafile=certificate)
    async with server, SafeHttpClient(AddressPolicy(["127.0.0.1"]), tls=trusting) as client:
        assert (await client.request("POST", f"https://hooks.example:{port}/", body=b"{}")).status == 204
        assert named == ["hooks.example", f"host: hooks.example:{port}"]
        with pytest.raises(PartnerUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
            await client.request("POST", f"https://other.example:{port}/", body=b"{}")
