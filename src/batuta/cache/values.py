"""Values as bytes: JSON, compressed with gzip when they are large. The first bytes tell which it is."""

from __future__ import annotations

import gzip
import zlib
from typing import Any, Final

from batuta.errors import BatutaError
from batuta.serde import Decoder, decode, encode

COMPRESS_ABOVE: Final = 10 * 1024
"""Bytes of JSON above which a value is compressed."""
LARGEST: Final = 8 * 1024 * 1024
"""Bytes of JSON that a value may have, also after decompression."""
ABSENT: Final = b"null"
"""Written for something that is known not to exist."""
_GZIP = b"\x1f\x8b"


def pack(value: Any, what: str) -> bytes:
    """Raises NotSerialisable or TooLarge."""
    data = encode(value, what, LARGEST)
    return data if len(data) <= COMPRESS_ABOVE else gzip.compress(data, compresslevel=5, mtime=0)


def unpack(data: bytes, decoder: Decoder, what: str) -> Any:
    """Raises BatutaError when the bytes were not written by `pack`, or not for this type."""
    return decode(inflate(data, what), decoder, what)


def inflate(data: bytes, what: str) -> bytes:
    """The JSON. Raises BatutaError."""
    if not data.startswith(_GZIP):
        return data
    inflater = zlib.decompressobj(wbits=31)
    try:
        text = inflater.decompress(data, LARGEST + 1)
    except zlib.error as error:
        raise BatutaError(f"{what} is damaged: {error}") from None
    if len(text) > LARGEST or not inflater.eof:
        raise BatutaError(f"{what} is damaged, or has more than {LARGEST:,} bytes")
    return text
