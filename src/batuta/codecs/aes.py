"""AES-256-GCM encryption of payloads: unreadable without the key, and bound to their place."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from batuta.codecs.base import Bound, PayloadCodec
from batuta.codecs.keys import OLD, Key, Keys
from batuta.errors import InvalidInput, MissingExtra, PayloadDamaged, PayloadSealed

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE = 12
_TAG = 16
_REMEMBERED = 4_096


class Encryption(PayloadCodec):
    """AES-256-GCM. Each payload is authenticated together with its namespace, run and place.

    Every run has its own key, derived from the given key. `keys` are `Keys`, or a text for `Keys.parse`.
    """

    name = "aes"
    always = True

    def __init__(self, keys: Keys | str) -> None:
        if not isinstance(keys, Keys | str):
            raise InvalidInput("Encryption needs Keys(...), or a text such as 'k1:<base64>'")
        self.keys = Keys.parse(keys) if isinstance(keys, str) else keys
        self.label = self.keys.first.label
        self._first, self._written = self.keys.first, _named(self.label)
        self.plain, self.old = self.keys.plain, self.keys.old
        make, self._invalid = _library()
        self._made = functools.lru_cache(_REMEMBERED)(make)

    @property
    def mark(self) -> str:
        parts = [*sorted(key.label for key in self.keys.all.values()), str(self.plain)]
        if self.old:
            parts.append(OLD)
        return "aes-" + hashlib.sha256(" ".join(parts).encode()).hexdigest()[:12]

    def keyed(self, text: str) -> str:
        return self.keys.first.keyed(text)

    def keyed_before(self, text: str) -> list[str]:
        return [key.keyed(text) for key in self.keys.all.values() if key is not self.keys.first]

    def encode(self, data: bytes, bound: Bound) -> bytes:
        nonce = os.urandom(_NONCE)
        return nonce + self._made(self._first, bound.scope).encrypt(nonce, data, self._written + bound.place)

    def decode(self, data: bytes, label: str, bound: Bound) -> bytes:
        key = self._key(label)
        if len(data) < _NONCE + _TAG:
            raise PayloadDamaged("it is cut short")
        cipher, place = self._made(key, bound.scope), _named(label) + bound.place
        try:
            return cipher.decrypt(data[:_NONCE], data[_NONCE:], place)
        except self._invalid:
            pass
        raise PayloadDamaged(f"it does not decrypt with key {key.id!r}: it was changed, or belongs elsewhere")

    def _key(self, label: str) -> Key:
        id = label.partition(".")[0]
        key = self.keys.all.get(id)
        if key is None:
            raise PayloadSealed(f"it is encrypted with key {id!r}, and this process has {', '.join(self.keys.all)}")
        if key.label != label:
            raise PayloadSealed(f"it is encrypted with another key {id!r} than ours")
        return key

    def __repr__(self) -> str:
        return f"Encryption({self.keys!r})"


def _named(label: str) -> bytes:
    """Authenticated before the place: which key was used."""
    return label.encode() + b"\0"


def _library() -> tuple[Callable[[Key, bytes], AESGCM], type[Exception]]:
    """The cipher class, and the errors that it raises when a payload does not decrypt."""
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise MissingExtra("payload encryption", "crypto") from None
    return lambda key, scope: AESGCM(key.derive(scope)), InvalidTag
