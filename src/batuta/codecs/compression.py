"""Payloads made smaller."""

from __future__ import annotations

import zlib

from batuta.codecs.base import Bound, PayloadCodec
from batuta.errors import InvalidInput, PayloadDamaged

_LARGEST = 256 * 1024 * 1024
"""Bytes that a payload may have when it is unpacked: more than any limit on payloads lets in."""


class Compression(PayloadCodec):
    """Payloads of `least` bytes or more are written with zlib, where that makes them smaller."""

    name = "zlib"

    def __init__(self, least: int = 512, level: int = 1) -> None:
        if type(least) is not int or least < 0 or type(level) is not int or not 1 <= level <= 9:
            raise InvalidInput(f"Compression(least={least!r}, level={level!r}): a size, and a level from 1 to 9")
        self._least, self._level = least, level

    def encode(self, data: bytes, bound: Bound) -> bytes | None:
        if len(data) < self._least:
            return None
        packed = zlib.compress(data, self._level)
        return packed if len(packed) < len(data) else None

    def decode(self, data: bytes, label: str, bound: Bound) -> bytes:
        unpacking = zlib.decompressobj()
        try:
            found = unpacking.decompress(data, _LARGEST)
        except zlib.error as error:
            raise PayloadDamaged(f"it does not unpack: {error}") from None
        if not unpacking.eof or unpacking.unused_data:
            raise PayloadDamaged("it does not unpack: it is cut short, or larger than any payload is")
        return found
