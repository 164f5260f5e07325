"""Tokens: one attempt of one activity, named in a text that can go into a link, a form or a message."""

from __future__ import annotations

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from uuid import UUID

import msgspec
from msgspec import Struct

from batuta.errors import InvalidToken
from batuta.ids import RunId

_FIRST = "t."
"""Before a token, which could begin with a hyphen else, and be taken for an option of a command."""


class AttemptRef(Struct, array_like=True, frozen=True):
    """Which attempt of which call of which run."""

    namespace: str
    run_id: RunId
    seq: int
    attempt: int
    entry: int = -1
    """The entry that called it: what ended the call comes later. Not in the tokens of older versions."""

    def token(self) -> str:
        """Opaque to its holders. As hard to guess as a run's id; whoever has it can complete the attempt."""
        data = msgspec.msgpack.encode(_Packed(self.namespace, self.run_id.bytes, self.seq, self.attempt, self.entry))
        return _FIRST + urlsafe_b64encode(zlib.crc32(data).to_bytes(4, "big") + data).decode().rstrip("=")


class _Packed(Struct, array_like=True):
    namespace: str
    run_id: bytes
    seq: int
    attempt: int
    entry: int = -1


_decoder = msgspec.msgpack.Decoder(_Packed)


def parse_token(token: object) -> AttemptRef:
    """The attempt that a token names. Raises InvalidToken."""
    try:
        if not isinstance(token, str):
            raise TypeError(f"it is {type(token).__name__}, not text")
        text = token.removeprefix(_FIRST)  # not in the tokens of older versions
        raw = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
        if zlib.crc32(raw[4:]).to_bytes(4, "big") != raw[:4]:
            raise ValueError("its check sum is wrong")
        found = _decoder.decode(raw[4:])
        return AttemptRef(found.namespace, UUID(bytes=found.run_id), found.seq, found.attempt, found.entry)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidToken(
            f"{str(token)[:100]!r} is no token of an activity ({error}): pass on `activity_info().token` unchanged"
        ) from None
