"""How a payload lies in the store when it went through codecs: JSON text that says which ones, in their order.

"~1:zlib+aes.k1.0a1b2c3d:<base64>"
"""

from __future__ import annotations

import binascii
import functools
from typing import NamedTuple

from batuta.errors import PayloadDamaged, PayloadSealed

MARK = '"~1:'
"""No other payload begins with it, but for the string of somebody who means to deceive: see `Payloads.encode`."""


class Coded(NamedTuple):
    """The parts of such a text."""

    tags: tuple[tuple[str, str], ...]
    """Names and labels of the codecs, the first to be applied first."""
    data: bytes


def is_coded(text: str) -> bool:
    return text.startswith(MARK)


def join(tags: list[str], data: bytes) -> str:
    """The text of a payload that went through codecs with these names and labels."""
    return f'{MARK}{"+".join(tags)}:{binascii.b2a_base64(data, newline=False).decode()}"'


def split(text: str) -> Coded:
    """Raises PayloadDamaged."""
    header, colon, rest = text[len(MARK) :].partition(":")
    try:
        if not colon or not rest.endswith('"'):
            raise ValueError
        encoded = rest[:-1].encode("ascii")
        data = binascii.a2b_base64(encoded)
        if binascii.b2a_base64(data, newline=False) != encoded:  # another text for the same bytes
            raise ValueError
    except ValueError:  # of which binascii.Error and UnicodeError are
        raise PayloadDamaged("it is not what was written: cut short, or changed") from None
    return Coded(_tags(header), data)


@functools.lru_cache(1_024)
def _tags(header: str) -> tuple[tuple[str, str], ...]:
    parts = [tag.partition(".") for tag in header.split("+")] if header else []
    return tuple((name, label) for name, _, label in parts)


def refuse_coded(text: str, what: str) -> None:
    """Raises PayloadSealed for a payload that must go through codecs before it is used."""
    if text.startswith(MARK):
        header = text[len(MARK) :].partition(":")[0]
        raise PayloadSealed(f"{what} cannot be read: it is coded ({header[:80]}), and there is no codec here: {ADVICE}")


ADVICE = "connect with the codec or the keys that it was written with (BATUTA_KEYS)"
