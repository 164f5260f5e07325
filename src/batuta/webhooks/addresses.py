"""Which addresses may be called: public ones, and those that an operator allows. Against SSRF."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from batuta.errors import AddressRefused, InvalidInput

Address = IPv4Address | IPv6Address
VARIABLE: Final = "BATUTA_WEBHOOK_ALLOW"

_NAT64: Final = (ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/48"))
# Ways to write an IPv4 address as IPv6 that no public server has as its own. Versions of Python differ about them.
_TUNNELS: Final = tuple(map(ip_network, ("::/96", "2001::/32", "2002::/16", "fec0::/10", "5f00::/16", "3fff::/20")))
# Public by registry, but never a stranger's server.
_SPECIAL: Final = tuple(
    map(
        ip_network,
        "192.88.99.0/24 100.64.0.0/10 192.0.0.0/24 198.18.0.0/15 192.31.196.0/24 192.52.193.0/24 192.175.48.0/24 "
        "168.63.129.16/32 "
        "2620:4f:8000::/48".split(),
    )
)
_ISATAP: Final = (0x00005EFE, 0x02005EFE)
"""What stands before the IPv4 address, below any prefix of a network."""


class AddressPolicy:
    """Public addresses are allowed. `allow` names others: `host`, `host:port`, `10.1.2.3`, `10.0.0.0/8` or
    `[::1]:8080`. Without it the variable BATUTA_WEBHOOK_ALLOW lists them, with commas between.

    A name in the list allows whatever it resolves to; a network allows its addresses under any name.
    """

    def __init__(self, allow: Iterable[str] | None = None, env: Mapping[str, str] | None = None) -> None:
        if allow is None:
            text = (os.environ if env is None else env).get(VARIABLE, "")
            allow = [part for part in (one.strip() for one in text.split(",")) if part]
        if isinstance(allow, str):
            raise InvalidInput(f"the allowed webhook targets must be a list, such as [{allow!r}]")
        self._hosts: set[tuple[str, int | None]] = set()
        self._networks: list[tuple[IPv4Network | IPv6Network, int | None]] = []
        for entry in allow:
            self._add(entry)

    def _add(self, entry: str) -> None:
        host, port = _split(entry)
        try:
            self._networks.append((ip_network(host, strict=False), port))
        except ValueError:
            if "/" in host or not host or not host.replace("-", "").replace(".", "").isalnum():
                raise InvalidInput(
                    f"{entry!r} in the allowed webhook targets must be a host, an address or a network, with a port or "
                    f"without"
                ) from None
            self._hosts.add((host.lower().rstrip("."), port))

    def check(self, host: str, port: int, addresses: Iterable[str]) -> list[str]:
        """The addresses of a host, if every one of them may be called. Raises AddressRefused."""
        found = list(addresses)
        named = (host.lower().rstrip("."), port)
        if named in self._hosts or (named[0], None) in self._hosts:
            return found
        for text in found:
            address = ip_address(text.partition("%")[0])
            if not (self._is_allowed(address, port) or is_public(address)):
                raise AddressRefused(host, text)
        return found

    def _is_allowed(self, address: Address, port: int) -> bool:
        known = unwrapped(address)
        return any(known in network and number in (None, port) for network, number in self._networks)


def unwrapped(address: Address) -> Address:
    """The IPv4 address inside an IPv6 one, where translators put one."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64[0]:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_public(address: Address) -> bool:
    """Whether it is the address of a server on the public internet."""
    known = unwrapped(address)
    if isinstance(known, IPv6Address):
        if any(known in network for network in (_NAT64[1], *_TUNNELS)):
            return False
        if int(known) >> 32 & 0xFFFFFFFF in _ISATAP and not is_public(IPv4Address(int(known) & 0xFFFFFFFF)):
            return False
    if any(known in network for network in _SPECIAL):
        return False
    return known.is_global and not (known.is_multicast or known.is_reserved or known.is_unspecified)


def _split(entry: str) -> tuple[str, int | None]:
    text = entry.strip()
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    else:
        host, port = text, ""
    if port and not (port.isdecimal() and 0 < int(port) < 65536):
        raise InvalidInput(f"the port in the allowed webhook target {entry!r} must be 1 to 65535")
    return host, int(port) if port else None
