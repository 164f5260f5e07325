"""Keys for payloads: several, of which the first encrypts and all decrypt."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from batuta.errors import InvalidInput

PLAIN = "plain"
"""The word among keys that lets payloads be read that are not encrypted."""
_BYTES = 32
_ID = re.compile(r"[A-Za-z0-9_-]{1,20}")


class Key:
    """One key. Never shown: neither by `repr` nor in an error."""

    __slots__ = ("_secret", "check", "id")

    def __init__(self, id: str, secret: bytes) -> None:
        if not _ID.fullmatch(id) or id == PLAIN:
            raise InvalidInput("the id of a key must be 1 to 20 letters, digits, - or _, and not the word 'plain'")
        if len(secret) != _BYTES:
            raise InvalidInput(f"key {id!r} must be {_BYTES} bytes: `batuta keys new` makes one")
        self.id, self._secret = id, secret
        self.check = hmac.new(secret, b"batuta key check", hashlib.sha256).hexdigest()[:8]
        """Tells keys of the same id apart, and says nothing about the key."""

    @property
    def label(self) -> str:
        return f"{self.id}.{self.check}"

    def derive(self, scope: bytes) -> bytes:
        """The key for one run or schedule: so that no key is ever used for too many payloads."""
        return hmac.new(self._secret, b"batuta payload key 1\0" + scope, hashlib.sha256).digest()

    def __repr__(self) -> str:
        return f"<key {self.id}>"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a key is not pickled or copied")


class Keys:
    """The first one encrypts what is written; all decrypt. `plain`: what is not encrypted may be read, too."""

    def __init__(self, keys: Mapping[str, bytes] | Iterable[tuple[str, bytes]], *, plain: bool = False) -> None:
        pairs = list(keys.items() if isinstance(keys, Mapping) else keys)
        if not pairs:
            raise InvalidInput("no key is given: `batuta keys new` makes one")
        self.all = {id: Key(id, secret) for id, secret in pairs}
        if len(self.all) < len(pairs):
            raise InvalidInput("two keys have the same id: give the new one another")
        self.first = next(iter(self.all.values()))
        self.plain = plain

    @classmethod
    def parse(cls, text: str) -> Keys:
        """From `id:base64, id:base64`, or one on each line; `#` begins a comment. The word `plain` is `plain=True`."""
        pairs: list[tuple[str, bytes]] = []
        plain = False
        for number, part in enumerate(_parts(text), 1):
            if part == PLAIN:
                plain = True
                continue
            id, colon, encoded = part.partition(":")
            if not colon or not _ID.fullmatch(id.strip()):  # not shown: it may be the key itself
                raise InvalidInput(f"key {number} is not of the form id:base64 (`batuta keys new` makes one)")
            pairs.append((id.strip(), _decoded(id.strip(), encoded.strip())))
        return cls(pairs, plain=plain)

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Keys | None:
        """Those of BATUTA_KEYS, or in the file that BATUTA_KEYS_FILE names; None when neither is set."""
        env = os.environ if env is None else env
        text, path = env.get("BATUTA_KEYS", ""), env.get("BATUTA_KEYS_FILE", "")
        if text and path:
            raise InvalidInput("BATUTA_KEYS and BATUTA_KEYS_FILE are both set: use one of them")
        if path:
            try:
                text = Path(path).read_text()
            except (OSError, UnicodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not text"
                raise InvalidInput(f"BATUTA_KEYS_FILE={path!r} cannot be read: {why}") from None
        return cls.parse(text) if text or path else None

    @staticmethod
    def new(id: str) -> str:
        """A new key, as `parse` reads it."""
        secret = secrets.token_bytes(_BYTES)
        Key(id, secret)  # refuses an id that cannot be one
        return f"{id}:{base64.b64encode(secret).decode()}"

    def __repr__(self) -> str:
        return f"Keys({', '.join([*self.all, *([PLAIN] if self.plain else [])])})"


def _parts(text: str) -> list[str]:
    lines = [line.partition("#")[0] for line in text.splitlines()]
    return [part.strip() for line in lines for part in line.split(",") if part.strip()]


def _decoded(id: str, encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(f"key {id!r} is not base64: `batuta keys new` makes one") from None
