"""Sockets of servers, bound before anything else begins."""

from __future__ import annotations

import errno
import socket

from batuta.errors import InvalidInput


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets for all addresses of a host. Raises InvalidInput."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InvalidInput(f"{host!r} is no address of this machine: {error.strerror}; use 127.0.0.1, or ::1") from None
    made: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            made.append(socket.socket(family, socket.SOCK_STREAM))
            made[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            made[-1].bind(address)
    except OSError as error:
        for one in made:
            one.close()
        raise InvalidInput(_refusal(host, port, error)) from None
    return made


def _refusal(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is taken: end the program that listens there, or choose another port (0: any)"
    return f"cannot listen at {host}, port {port}: {error.strerror}"
