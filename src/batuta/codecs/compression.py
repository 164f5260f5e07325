"""Payloads made smaller."""

from __future__ import annotations

import zlib

from batuta.codecs.base import Bound, PayloadCodec
from batuta.errors import InvalidInput, PayloadDamaged
from batuta.settings import Settings

_VALUES = 4
"""How many values of the largest size one payload may hold: an entry holds an answer and the calls of its turn."""


class Compression(PayloadCodec):
    """Payloads of `least` bytes or more are written with zlib, where that makes them smaller.

    One of more than four times BATUTA_MAX_PAYLOAD (or its default, if that is more) is left as it is, and none is
    unpacked to more than that: a few bytes in the database must not fill the memory of a worker."""

    name = "zlib"
    unpacks = True

    def __init__(self, least: int = 512, level: int = 1) -> None:
        if type(least) is not int or least < 0 or type(level) is not int or not 1 <= level <= 9:
            raise InvalidInput(f"Compression(least={least!r}, level={level!r}): a size, and a level from 1 to 9")
        self._least, self._level = least, level
        self._largest = _VALUES * max(Settings.from_env().max_payload, Settings().max_payload)

    def encode(self, data: bytes, bound: Bound) -> bytes | None:
        if not self._least <= len(data) <= self._largest:
            return None
        packed = zlib.compress(data, self._level)
        return packed if len(packed) < len(data) else None

    def decode(self, data: bytes, label: str, bound: Bound) -> bytes:
        unpacking = zlib.decompressobj()
        try:
            found = unpacking.decompress(data, self._largest + 1)
        except zlib.error as error:
            raise PayloadDamaged(f"it does not decompress: {error}") from None
        if len(found) > self._largest:
            raise PayloadDamaged(
                f"it decompresses to more than {self._largest:,} bytes: if it was written with a larger "
                f"BATUTA_MAX_PAYLOAD, set that here, too"
            )
        if not unpacking.eof or unpacking.unused_data:
            raise PayloadDamaged("it does not decompress: it is cut short")
        return found
