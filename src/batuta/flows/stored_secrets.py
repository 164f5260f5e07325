"""Secrets of flows in the store: `secret://store/NAME`. They go through the codecs of the store, which encrypt them."""

from __future__ import annotations

import re
from typing import Final

from msgspec import json

from batuta.errors import InvalidInput
from batuta.journal.server.documents import FLOW_SECRETS, KEEP_SECRETS, DocumentStore
from batuta.names import quoted

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
LARGEST: Final = 64 * 1024
"""Characters of a secret."""


async def stored_secret(store: DocumentStore, name: str) -> str | None:
    """None: there is none. Raises PayloadSealed when this process lacks its key."""
    found = await store.document(FLOW_SECRETS, name)
    return None if found is None else json.decode(found.body, type=str | None)


class StoredSecrets:
    """The secrets of one namespace. Their values are written, and never given back."""

    def __init__(self, store: DocumentStore) -> None:
        self._store = store

    async def set(self, name: str, value: str) -> None:
        """Keep a secret, in place of the one of that name. Raises InvalidInput, which does not quote it."""
        if not _NAME.fullmatch(name):
            raise InvalidInput(
                f"the name of a secret must be 1 to 100 letters, digits, '_', '-' and '.', not {quoted(name)}"
            )
        if not 0 < len(value) <= LARGEST:
            raise InvalidInput(f"secret {name!r} must be a text of 1 to {LARGEST:,} characters")
        await self._put(name, value)

    async def remove(self, name: str) -> bool:
        """False: there was none."""
        found = await stored_secret(self._store, name) is not None
        if found:
            await self._put(name, None)
        return found

    async def names(self) -> list[str]:
        """Secrets that this process can read."""
        found = await self._store.documents(FLOW_SECRETS)
        return sorted(one.key for one in found if one.body != "null")

    async def _put(self, name: str, value: str | None) -> None:
        await self._store.put_documents(FLOW_SECRETS, {name: json.encode(value).decode()}, KEEP_SECRETS)
