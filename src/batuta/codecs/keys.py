"""Keys for payloads: several, of which the first encrypts and all decrypt."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from batuta.errors import InvalidInput

log = logging.getLogger("batuta.keys")

PLAIN = "plain"
"""The word among keys that lets payloads be read that are not encrypted."""
OLD = "old"
"""The word among keys that lets payloads be read that an earlier version has encrypted, which bound them to less."""
_WORDS = frozenset((PLAIN, OLD))
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

    def keyed(self, text: str) -> str:
        """A keyed hash of the text: 16 hexadecimal digits."""
        return hmac.new(self._secret, b"batuta keyed hash 1\0" + text.encode(), hashlib.sha256).hexdigest()[:16]

    def derive_for_act(self, scope: bytes) -> bytes:
        """The key for the audit log's rows of one act."""
        return hmac.digest(self._secret, b"batuta audit key 1\0" + scope, "sha256")

    def __repr__(self) -> str:
        return f"<key {self.id}>"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a key is not pickled or copied")


class Keys:
    """The first key encrypts; all decrypt.

    `plain`: accept unencrypted payloads, too. `old`: also accept payloads of an earlier version, which did not bind all
    of them to their run.
    """

    def __init__(
        self, keys: Mapping[str, bytes] | Iterable[tuple[str, bytes]], *, plain: bool = False, old: bool = False
    ) -> None:
        pairs = list(keys.items() if isinstance(keys, Mapping) else keys)
        if not pairs:
            raise InvalidInput("no key was given: `batuta keys new` makes one")
        self.all = {id: Key(id, secret) for id, secret in pairs}
        if len(self.all) < len(pairs):
            raise InvalidInput("two keys have the same id: give the new one another")
        self.first = next(iter(self.all.values()))
        self.plain, self.old = plain, old

    @classmethod
    def parse(cls, text: str) -> Keys:
        """From `id:base64, id:base64`, or one on each line; `#` begins a comment. The words `plain` and `old`
        are `plain=True` and `old=True`."""
        pairs: list[tuple[str, bytes]] = []
        words: set[str] = set()
        for number, part in enumerate(_parts(text), 1):
            if part in _WORDS:
                words.add(part)
                continue
            id, colon, encoded = part.partition(":")
            if not colon or not _ID.fullmatch(id.strip()):  # not shown: it may be the key itself
                raise InvalidInput(f"key {number} is not of the form id:base64 (`batuta keys new` makes one)")
            pairs.append((id.strip(), _decoded(id.strip(), encoded.strip())))
        return cls(pairs, plain=PLAIN in words, old=OLD in words)

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None, variable: str = "BATUTA_KEYS") -> Keys | None:
        """Those of BATUTA_KEYS, or in the file that BATUTA_KEYS_FILE names; None when neither is set. `variable`:
        another one, with its own file."""
        env = os.environ if env is None else env
        text, path = env.get(variable, ""), env.get(f"{variable}_FILE", "")
        if text and path:
            raise InvalidInput(f"{variable} and {variable}_FILE are both set: use one of them")
        if path:
            try:
                text = Path(path).read_text()
                if os.stat(path).st_mode & 0o004:
                    log.warning("%s_FILE=%s can be read by every user of this machine: chmod 600 it", variable, path)
            except (OSError, UnicodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not text"
                raise InvalidInput(f"{variable}_FILE={path!r} cannot be read: {why}") from None
        return cls.parse(text) if text or path else None

    @classmethod
    def add_to(cls, path: str | Path, id: str) -> None:
        """Put a new key behind those of a file, which is made if need be, for its owner's eyes alone. Raises
        InvalidInput when the file cannot be written, follows a link, or has a key of that id."""
        line = cls.new(id) + "\n"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "r+") as file:
                before = file.read()
                if before.strip() and id in cls.parse(before).all:
                    raise InvalidInput(f"{str(path)!r} has a key {id!r} already: give the new one another id")
                file.write(line if not before or before.endswith("\n") else f"\n{line}")
        except OSError as error:
            raise InvalidInput(f"the key cannot be written to {str(path)!r}: {error.strerror}") from None

    @staticmethod
    def new(id: str) -> str:
        """A new key, as `parse` reads it."""
        secret = secrets.token_bytes(_BYTES)
        Key(id, secret)  # refuses an id that cannot be one
        return f"{id}:{base64.b64encode(secret).decode()}"

    def __repr__(self) -> str:
        return f"Keys({', '.join([*self.all, *self.words])})"

    @property
    def words(self) -> list[str]:
        """Other payloads that may be read: the words among the keys."""
        return [word for word, said in ((PLAIN, self.plain), (OLD, self.old)) if said]


def _parts(text: str) -> list[str]:
    lines = [line.partition("#")[0] for line in text.splitlines()]
    return [part.strip() for line in lines for part in line.split(",") if part.strip()]


def _decoded(id: str, encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(f"key {id!r} is not base64: `batuta keys new` makes one") from None
