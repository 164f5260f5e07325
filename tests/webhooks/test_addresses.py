"""No private address is called, whatever way it is written."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import unquote

import pytest

from batuta.errors import AddressRefused, InvalidInput, InvalidURL, PartnerUnreachable
from batuta.webhooks import AddressPolicy, HttpLimits, SafeHttpClient, parse_target

PRIVATE = """
127.0.0.1 127.0.0.2 127.255.255.254 0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 172.16.0.1 172.31.255.255 192.168.0.1
168.63.129.16 [64:ff9b::168.63.129.16] 169.254.169.254 169.254.0.1 100.64.0.1 100.100.100.200 192.0.0.192
192.0.2.1 198.18.0.1 198.51.100.7 203.0.113.7
224.0.0.1 239.1.2.3 240.0.0.1 255.255.255.255 192.88.99.1
[::1] [::] [::ffff:127.0.0.1] [::ffff:10.0.0.1] [::ffff:7f00:1] [::127.0.0.1] [::ffff:0:127.0.0.1] [64:ff9b::7f00:1]
[64:ff9b::10.0.0.1] [64:ff9b:1::1] [2002:7f00:1::] [2002:a00:1::1] [2001:0:4136:e378:8000:63bf:3fff:fdd2] [fe80::1]
[2400:cb00::5efe:127.0.0.1] [2400:cb00::200:5efe:10.0.0.1] [2620:4f:8000::1]
[fc00::1] [fd00:ec2::254] [fec0::1] [ff02::1] [2001:db8::1] [100::1] [3fff::1] 192.31.196.1 192.52.193.1 192.175.48.1
localhost LOCALHOST localhost. ip6-localhost
""".split()
WRITTEN_OTHERWISE = """
http://2130706433/ http://0x7f000001/ http://0x7f.1/ http://017700000001/ http://0177.0.0.1/ http://127.1/ http://127.0.1/
http://0/ http://3232235521/ http://1.2.3/ http://127.0.0.1.1/ http://0x7f.0x0.0x0.0x1/ http://127.0.0.01/
http://user@10.0.0.1/ http://user:secret@example.com/ http://example.com@127.0.0.1/ http://127.0.0.1#@example.com/
http://127.0.0.1\\@example.com/ http://example.com\\.evil.com/ http:///x
http://[::1 http://[fe80::1%25eth0]/ http://[::ffff:127.0.0.1%eth0]/ ftp://example.com/ file:/etc/passwd
gopher://127.0.0.1/ javascript:alert(1) //example.com/ example.com http://example.com:0/ http://example.com:99999/
http://example.com:80:80/ http://-example.com/ http://exam_ple..com/ http://%31%32%37.0.0.1/ http://\u2488\u2488/
http://example.com/#fragment http://\x00example.com/
""".split()
WRITTEN_OTHERWISE += ["https://exa mple.com/", "http://example.com\t/", "http://example.com\n.evil/"]
WRITTEN_OTHERWISE += ["http://example.com/\ud800", "http://example.com/?\udfff"]


class Names:
    """A resolver with answers of our own; anything else is really looked up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: dict[str, list[list[str]]] = {}
        self.looked: list[str] = []
        really = asyncio.BaseEventLoop.getaddrinfo

        async def getaddrinfo(loop: Any, host: str, port: int, **options: Any) -> Any:
            self.looked.append(host)
            if host not in self.answers:
                return await really(loop, host, port, **options)
            answers = self.answers[host]
            found = answers.pop(0) if len(answers) > 1 else answers[0]
            return [(socket.AF_INET6 if ":" in one else socket.AF_INET, 1, 6, "", (one, port)) for one in found]

        monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


@pytest.fixture
async def receiver() -> AsyncIterator[int]:
    """A server on this machine that answers 200, and says which host was asked for."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        path = unquote(head.split(" ")[1])
        host = next(line[6:] for line in head.split("\r\n") if line.startswith("host: "))
        if path.startswith("/to/"):
            reply = f"HTTP/1.1 302 Found\r\nLocation: {path[4:]}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        else:
            reply = f"HTTP/1.1 200 OK\r\nContent-Length: {len(host)}\r\nConnection: close\r\n\r\n{host}"
        writer.write(reply.encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("host", PRIVATE)
async def test_a_private_address_is_not_called(host: str) -> None:
    async with SafeHttpClient(AddressPolicy([])) as client:
        with pytest.raises((AddressRefused, InvalidURL, PartnerUnreachable)) as refused:
            await client.request("GET", f"http://{host}:9/")
    if not isinstance(refused.value, AddressRefused):  # this machine may not know the name
        assert host == "ip6-localhost" or "resolve" in str(refused.value), refused.value


@pytest.mark.parametrize("url", WRITTEN_OTHERWISE)
async def test_an_address_that_parsers_read_in_two_ways_is_refused(url: str) -> None:
    with pytest.raises(InvalidURL) as refused:
        parse_target(url)
    assert "secret" not in str(refused.value)


async def test_a_name_with_one_private_address_among_its_addresses_is_refused(names: Names) -> None:
    names.answers["mixed.example"] = [["93.184.216.34", "127.0.0.1"]]
    async with SafeHttpClient(AddressPolicy([])) as client:
        with pytest.raises(AddressRefused, match=r"mixed\.example may not be called \(127\.0\.0\.1\)"):
            await client.request("POST", "http://mixed.example/", body=b"{}")


async def test_a_name_is_resolved_once_and_the_checked_address_is_called(names: Names, receiver: int) -> None:
    """DNS rebinding: the second answer would be another address, and is never asked for."""
    names.answers["rebind.example"] = [["127.0.0.1"], ["169.254.169.254"]]
    async with SafeHttpClient(AddressPolicy([f"127.0.0.1:{receiver}"])) as client:
        response = await client.request("GET", f"http://rebind.example:{receiver}/")
    assert response.body.decode() == f"rebind.example:{receiver}"
    assert names.looked.count("rebind.example") == 1


async def test_international_digits_that_spell_a_private_address_are_refused(names: Names) -> None:
    async with SafeHttpClient(AddressPolicy([])) as client:
        with pytest.raises((AddressRefused, InvalidURL)):
            await client.request("GET", "http://①②⑦.⓪.⓪.①/")
        with pytest.raises((AddressRefused, InvalidURL)):
            await client.request("GET", "http://１２７.0.0.1/")
    assert not [name for name in names.looked if not name.isascii()]


async def test_redirects_are_not_followed_unless_allowed_and_each_target_is_checked(receiver: int) -> None:
    policy = AddressPolicy([f"127.0.0.1:{receiver}"])
    here = f"http://127.0.0.1:{receiver}"
    async with SafeHttpClient(policy) as client:
        assert (await client.request("GET", f"{here}/to/http://10.0.0.1/")).status == 302
    async with SafeHttpClient(policy, HttpLimits(redirects=2)) as client:
        assert (await client.request("GET", f"{here}/to//done")).status == 200
        assert (await client.request("GET", f"{here}/to//done%23part")).status == 200
        for place in ("http://169.254.169.254/latest", "http://localhost:1/", f"http://[::1]:{receiver}/"):
            with pytest.raises(AddressRefused):
                await client.request("GET", f"{here}/to/{place}")
        for place in ("file:/etc/passwd", "http://user@127.0.0.1/", "gopher://x/", "http://[::1", "//[x"):
            with pytest.raises(InvalidURL):
                await client.request("GET", f"{here}/to/{place}")
        with pytest.raises(PartnerUnreachable, match="more than 2 redirects"):
            await client.request("GET", f"{here}/to//to//to//to/x")


@pytest.mark.parametrize("allow", ["127.0.0.1", "127.0.0.0/8", "localhost", "127.0.0.1:{port}", "localhost:{port}"])
async def test_an_allowed_target_is_called(receiver: int, allow: str) -> None:
    policy = AddressPolicy(env={"BATUTA_WEBHOOK_ALLOW": f"example.org, {allow.format(port=receiver)} ,"})
    host = "localhost" if allow.startswith("localhost") else "127.0.0.1"
    async with SafeHttpClient(policy) as client:
        assert (await client.request("GET", f"http://{host}:{receiver}/")).status == 200
        if ":" in allow:
            with pytest.raises(AddressRefused):
                await client.request("GET", f"http://{host}:9/")


@pytest.mark.parametrize("allow", ["10.0.0.0/99", "http://x", "a b", "host:port", "host:0", "[::1]:x", ""])
def test_an_allowance_that_cannot_be_read_is_refused(allow: str) -> None:
    with pytest.raises(InvalidInput, match="allowed webhook target"):
        AddressPolicy([allow])


def test_one_text_is_no_list_of_allowed_targets() -> None:
    with pytest.raises(InvalidInput, match="allowed webhook targets"):
        AddressPolicy("localhost")


@pytest.mark.parametrize(
    ("url", "host", "authority", "path"),
    [
        ("https://Example.COM", "example.com", "example.com", "/"),
        ("https://example.com:443/a?b=c", "example.com", "example.com", "/a?b=c"),
        ("http://example.com.:8080/é", "example.com", "example.com:8080", "/%C3%A9"),
        ("https://bücher.example/", "xn--bcher-kva.example", "xn--bcher-kva.example", "/"),
        ("https://[2606:4700::1111]/", "2606:4700::1111", "[2606:4700::1111]", "/"),
        ("https://93.184.216.34/", "93.184.216.34", "93.184.216.34", "/"),
    ],
)
def test_an_ordinary_address_is_taken_apart(url: str, host: str, authority: str, path: str) -> None:
    target = parse_target(url)
    assert (target.host, target.authority, target.path) == (host, authority, path)
