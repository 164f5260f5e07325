"""Payloads that only those who have the key can read, and nobody can change or move."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from batuta.codecs.base import Bound, PayloadCodec
from batuta.codecs.keys import Key, Keys
from batuta.errors import InvalidInput, MissingExtra, PayloadDamaged, PayloadSealed

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE = 12
_TAG = 16
_REMEMBERED = 4_096


class Encryption(PayloadCodec):
    """AES-256-GCM. What a payload belongs to (namespace, run, place) is authenticated with it.

    Every run has a key of its own, derived from the key that is given. `keys` are `Keys`, or a text as `Keys.parse`
    reads it.
    """

    name = "aes"
    always = True

    def __init__(self, keys: Keys | str) -> None:
        if not isinstance(keys, Keys | str):
            raise InvalidInput("Encryption needs Keys(...), or a text such as 'k1:<base64>'")
        self.keys = Keys.parse(keys) if isinstance(keys, str) else keys
        self.label = self.keys.first.label
        self.plain = self.keys.plain
        make, self._invalid = _library()
        self._made = functools.lru_cache(_REMEMBERED)(make)

    @property
    def mark(self) -> str:
        labels = sorted(key.label for key in self.keys.all.values())
        return "aes-" + hashlib.sha256(" ".join([*labels, str(self.plain)]).encode()).hexdigest()[:12]

    def encode(self, data: bytes, bound: Bound) -> bytes:
        nonce = os.urandom(_NONCE)
        return nonce + self._made(self.keys.first, bound.scope).encrypt(nonce, data, self._place(self.label, bound))

    def decode(self, data: bytes, label: str, bound: Bound) -> bytes:
        key = self._key(label)
        if len(data) < _NONCE + _TAG:
            raise PayloadDamaged("it is cut short")
        cipher, place = self._made(key, bound.scope), self._place(label, bound)
        try:
            return cipher.decrypt(data[:_NONCE], data[_NONCE:], place)
        except self._invalid:
            pass
        raise PayloadDamaged(f"it does not decrypt with key {key.id!r}: it was changed, or belongs elsewhere")

    def _key(self, label: str) -> Key:
        id = label.partition(".")[0]
        key = self.keys.all.get(id)
        if key is None:
            raise PayloadSealed(f"it is encrypted with key {id!r}, and here is {', '.join(self.keys.all)}")
        if key.label != label:
            raise PayloadSealed(f"it is encrypted with another key than the one that is called {id!r} here")
        return key

    def _place(self, label: str, bound: Bound) -> bytes:
        return label.encode() + b"\0" + bound.place

    def __repr__(self) -> str:
        return f"Encryption({self.keys!r})"


def _library() -> tuple[Callable[[Key, bytes], AESGCM], type[Exception]]:
    """What makes ciphers, and what they raise when a payload is not what was encrypted."""
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise MissingExtra("payloads are to be encrypted", "crypto") from None
    return lambda key, scope: AESGCM(key.derive(scope)), InvalidTag
