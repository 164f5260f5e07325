"""Addresses of strangers, taken apart in one way only: parsers that disagree are how checks are got around."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import quote, urlsplit

from msgspec import Struct

from batuta.errors import InvalidURL

LONGEST: Final = 2_000
_HOST = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*\Z")
_NUMBER = re.compile(r"(0x[0-9a-f]*|[0-9]+)\Z")
_IPV4 = re.compile(r"(0|[1-9][0-9]{0,2})(\.(0|[1-9][0-9]{0,2})){3}\Z")
_IPV6 = re.compile(r"[0-9a-f:.]+\Z")
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f\\\ud800-\udfff]")


class Target(Struct, frozen=True):
    """A URL, taken apart."""

    scheme: str
    host: str
    """Lower case, ASCII; an IPv6 address without brackets."""
    port: int
    path: str
    """With its query."""

    @property
    def authority(self) -> str:
        """For the `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


_PORTS: Final = {"http": 80, "https": 443}


def parse_target(url: str) -> Target:
    """Raises InvalidURL, which does not repeat the URL's query: it may hold secrets."""
    given: Any = url
    if not isinstance(given, str) or len(url) > LONGEST:
        raise InvalidURL(f"the address of a webhook must be a text of at most {LONGEST:,} characters")
    if _FORBIDDEN.search(url):
        raise InvalidURL("the address of a webhook must not have spaces, backslashes or control characters")
    try:
        parts = urlsplit(url)
        port = parts.port
        host = parts.hostname or ""
    except ValueError as error:
        raise InvalidURL(f"the address of a webhook is not a URL: {error}") from None
    if parts.scheme not in _PORTS:
        raise InvalidURL(f"the address of a webhook must begin with https:// or http://, not {parts.scheme!r}")
    if "@" in parts.netloc:
        raise InvalidURL("the address of a webhook must not have a user or password: put them into a header")
    if parts.fragment or url.endswith("#"):
        raise InvalidURL("the address of a webhook must not have a fragment (#...)")
    if port == 0:
        raise InvalidURL("the port of a webhook's address must be 1 to 65535")
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._") + (f"?{parts.query}" if parts.query else "")
    if not path.isascii():
        path = quote(path, safe="/%:@!$&'()*+,;=~-._?")
    return Target(parts.scheme, _host(host), port or _PORTS[parts.scheme], path)


def _host(text: str) -> str:
    host = text.lower()
    if ":" in host:
        if _IPV6.match(host) is None:
            raise InvalidURL("the host of a webhook's address is not an IPv6 address")
        return host
    if not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError as error:
            raise InvalidURL(f"the host of a webhook's address is no international domain name: {error}") from None
    host = host.removesuffix(".")
    if _HOST.match(host) is None or len(host) > 253 or any(len(label) > 63 for label in host.split(".")):
        raise InvalidURL("the host of a webhook's address is not a host name")
    # `2130706433`, `0x7f.1` and `0177.0.0.1` are 127.0.0.1 for some programs: an address has one form here.
    if _NUMBER.match(host.rpartition(".")[2]) and _IPV4.match(host) is None:
        raise InvalidURL("the host of a webhook's address is a number: write an IPv4 address as 203.0.113.7")
    return host
