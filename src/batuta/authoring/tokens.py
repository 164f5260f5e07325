"""Tokens: one attempt of one activity, named in a text that can go into a link, a form or a message."""

from __future__ import annotations

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from uuid import UUID

import msgspec
from msgspec import Struct

from batuta.errors import InvalidToken
from batuta.ids import RunId


class AttemptRef(Struct, array_like=True, frozen=True):
    """Which attempt of which call of which run."""

    namespace: str
    run_id: RunId
    seq: int
    attempt: int

    def token(self) -> str:
        """Opaque to its holders. As hard to guess as a run's id; whoever has it can complete the attempt."""
        packed = (self.namespace, self.run_id.bytes, self.seq, self.attempt)
        data = msgspec.msgpack.encode(packed)
        return urlsafe_b64encode(zlib.crc32(data).to_bytes(4, "big") + data).decode().rstrip("=")


_decoder = msgspec.msgpack.Decoder(tuple[str, bytes, int, int])


def parse_token(token: object) -> AttemptRef:
    """The attempt that a token names. Raises InvalidToken."""
    try:
        if not isinstance(token, str):
            raise TypeError(f"it is {type(token).__name__}, not text")
        raw = urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
        if zlib.crc32(raw[4:]).to_bytes(4, "big") != raw[:4]:
            raise ValueError("its check sum is wrong")
        namespace, run_id, seq, attempt = _decoder.decode(raw[4:])
        return AttemptRef(namespace, UUID(bytes=run_id), seq, attempt)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidToken(
            f"{str(token)[:100]!r} is no token of an activity ({error}): pass on `activity_info().token` unchanged"
        ) from None
