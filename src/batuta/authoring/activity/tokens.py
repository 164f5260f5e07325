"""Tokens: one attempt of one activity, named in a text that can go into a link, a form or a message.

A token holds a random secret. The attempt keeps a hash of it, from the first time that its code asks for the token: who
knows all ids of a run, or everything in the database, cannot make one.
"""

from __future__ import annotations

import hashlib
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hmac import compare_digest

import msgspec
from msgspec import Struct

from batuta.errors import InvalidToken
from batuta.ids import RunId

_FIRST = "t."
"""Before a token, which could begin with a hyphen else, and be taken for an option of a command."""
_KEPT = 8
"""How many tokens of one attempt are valid, the last ones: each death of its worker makes another."""


class AttemptRef(Struct, array_like=True, frozen=True):
    """Which attempt of which call of which run."""

    namespace: str
    run_id: RunId
    seq: int
    attempt: int
    entry: int = -1
    """The entry that called it: what ended the call comes later."""
    secret: bytes = b""
    """The secret that makes a token of it."""

    def token(self) -> str:
        """Opaque to its holders, who can complete the attempt."""
        data = _encoder.encode(self)
        return _FIRST + urlsafe_b64encode(zlib.crc32(data).to_bytes(4, "big") + data).decode().rstrip("=")

    def __repr__(self) -> str:
        """Without the secret, which a log must not have."""
        return f"AttemptRef({self.namespace!r}, {self.run_id}, {self.seq}, {self.attempt}, {self.entry})"


_encoder, _decoder = msgspec.msgpack.Encoder(uuid_format="bytes"), msgspec.msgpack.Decoder(AttemptRef)


def parse_token(token: object) -> AttemptRef:
    """The attempt that a token names. Raises InvalidToken, which does not quote it."""
    if not isinstance(token, str):
        raise InvalidToken(f"the token of an activity must be text, not {type(token).__name__}")
    text = token.removeprefix(_FIRST)
    try:
        raw = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
        is_changed = urlsafe_b64encode(raw).decode().rstrip("=") != text  # in letters or bits that decoding skips
        if is_changed or zlib.crc32(raw[4:]).to_bytes(4, "big") != raw[:4]:
            raise ValueError
        found = _decoder.decode(raw[4:])
    except (ValueError, msgspec.MsgspecError, RecursionError):
        raise InvalidToken(
            "the text is no token of an activity, or was cut or changed on its way: pass on `activity_info().token` "
            "unchanged"
        ) from None
    if not found.secret:
        raise InvalidToken(
            f"the token is of an older version of Batuta, whose tokens could be forged: it is not accepted. Let the "
            f"attempt time out, or reset run {found.run_id} to a point before the call: the activity hands out another "
            f"token"
        )
    return found


# -- stored hashes of an attempt


def with_token(kept: str | None, secret: bytes) -> str:
    """Hashes to keep, with that of one more token."""
    return " ".join([*(kept or "").split()[1 - _KEPT :], _hashed(secret)])


def is_kept(kept: str | None, secret: bytes) -> bool:
    """Whether the hash of the token's secret is among them. Takes the same time wherever two of them differ."""
    mine = _hashed(secret).encode()
    return any(compare_digest(mine, one) for one in (kept or "").encode().split())


def _hashed(secret: bytes) -> str:
    return hashlib.blake2b(secret, digest_size=16, person=b"batuta token").hexdigest()
