"""API keys: who may ask the server. A store keeps a hash of each key, never the key. Values, no I/O."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Protocol
from zlib import crc32

from msgspec import Struct

from batuta.journal.audit import Act
from batuta.journal.codec_envelope import Payload

PREFIX = "batuta_live_"
SCOPES = ("viewer", "operator", "admin")
_KEY = re.compile(PREFIX + r"([0-9a-f]{12})_([0-9a-f]{64})([0-9a-f]{8})")
USE_NOTED = 60 * 1_000_000
"""Microseconds: the last use of a key is written at most so often."""


class StoredKey(Struct, kw_only=True):
    """A row of the table of keys."""

    id: str
    """The part of the key that may be shown."""
    namespace: str
    """The namespace that it is for; `*`: every one."""
    name: str
    scope: str
    digest: Payload
    """SHA-256 of the whole key, as hex; empty: its row cannot be believed here."""
    created_by: str = ""
    created_at: int = 0
    """Stamped by the store."""
    expires_at: int | None = None
    last_used_at: int | None = None
    revoked_at: int | None = None
    """From then on it is refused."""

    def is_good(self, now: int) -> bool:
        return all(end is None or now < end for end in (self.expires_at, self.revoked_at))


def new_key() -> tuple[str, str]:
    """A key of 256 random bits, and the part of it that may be shown."""
    id, secret = secrets.token_hex(6), secrets.token_hex(32)
    return f"{PREFIX}{id}_{secret}{_checksum(id + secret)}", id


def id_of(key: str) -> str | None:
    """The part of a key that may be shown; None when the text is no key, which its checksum tells."""
    found = _KEY.fullmatch(key)
    return found[1] if found is not None and found[3] == _checksum(found[1] + found[2]) else None


def _checksum(text: str) -> str:
    return f"{crc32(text.encode()):08x}"


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def fits(key: str, stored: StoredKey) -> bool:
    """Whether this is the key, in a time that tells nothing."""
    return hmac.compare_digest(digest_of(key).encode(), stored.digest.encode())


class KeyStore(Protocol):
    """The part of a store that keeps keys. A key is for one namespace, or for that of EVERYBODY, which is every one.
    The holder of a key need not know its namespace."""

    async def put_api_key(self, key: StoredKey, act: Act | None = None) -> bool:
        """Add a key of this namespace. False when the id is taken: nothing is written."""
        ...

    async def rewrite_api_key(self, id: str, digest: str) -> None:
        """Write the digest of a key of this namespace otherwise. Everything else in its row stays."""
        ...

    async def api_keys(self) -> list[StoredKey]:
        """API keys of this namespace, by id."""
        ...

    async def find_api_key(self, id: str) -> StoredKey | None:
        """The key of that id, of whatever namespace."""
        ...

    async def has_api_keys(self) -> bool:
        """Whether there is a key that is neither expired nor revoked, of whatever namespace."""
        ...

    async def note_api_key(self, id: str) -> None:
        """Note that the key was used now, of whatever namespace; at most once in USE_NOTED."""
        ...

    async def revoke_api_key(self, id: str, after: int = 0, act: Act | None = None) -> bool:
        """Refuse a key of this namespace from so many microseconds on. False when there is none, or it is revoked by
        then already."""
        ...
