"""The stored form of a payload that went through codecs: JSON text that names them, in order.

"~3:zlib+aes.k1.0a1b2c3d:<base64>"

The digit says what the payload is bound to: see `stores.coded.payloads`. Earlier versions wrote 1 and 2.
"""

from __future__ import annotations

import binascii
import functools
from typing import Annotated, NamedTuple, TypeVar, get_args, get_type_hints

from msgspec import DecodeError, Meta, json

from batuta.errors import PayloadDamaged, PayloadSealed

MARK, OLD_MARK, OLDER_MARK = '"~3:', '"~2:', '"~1:'
"""No other payload begins with them, but for the string of somebody who means to deceive: see `Payloads.encode`."""
_MARKS = (MARK, OLD_MARK, OLDER_MARK)
T = TypeVar("T")


Payload = Annotated[str, Meta(description="Goes through the codecs of its store.")]
"""The type of a record's field that holds a payload: `payload_fields` finds it."""


@functools.cache
def payload_fields(record: type) -> tuple[str, ...]:
    """The fields of a record that hold payloads."""
    hints = get_type_hints(record, include_extras=True)
    return tuple(name for name, hint in hints.items() if Payload in (hint, *get_args(hint)))


class Coded(NamedTuple):
    """The parts of such a text."""

    tags: tuple[tuple[str, str], ...]
    """Names and labels of the codecs, the first to be applied first."""
    data: bytes


def is_coded(text: str) -> bool:
    return text.startswith(_MARKS)


def is_old(text: str) -> bool:
    """Whether an earlier version wrote this coded text, and bound it to less."""
    return text.startswith((OLD_MARK, OLDER_MARK))


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
        raise PayloadDamaged("it differs from what was written: it was cut short or changed") from None
    return Coded(_tags(header), data)


@functools.lru_cache(1_024)
def _tags(header: str) -> tuple[tuple[str, str], ...]:
    parts = [tag.partition(".") for tag in header.split("+")] if header else []
    return tuple((name, label) for name, _, label in parts)


def refuse_coded(text: str, what: str) -> None:
    """Raises PayloadSealed for a payload that must go through codecs before it is used."""
    if text.startswith(_MARKS):
        header = text[len(MARK) :].partition(":")[0]
        raise PayloadSealed(
            f"{what} cannot be read: it went through a codec ({header[:80]}), and this process has no codec: {ADVICE}"
        )


def decode_stored(text: str, what: str, type: type[T]) -> T:
    """A value of the database. Raises PayloadSealed, PayloadDamaged."""
    refuse_coded(text, what)
    try:
        return json.decode(text, type=type)
    except (DecodeError, RecursionError) as error:
        raise PayloadDamaged(f"{what} cannot be read: {error}") from None


ADVICE = "connect with the codec or the keys that it was written with (BATUTA_KEYS)"
