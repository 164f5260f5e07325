"""Secrets of flows in the store: `secret://store/NAME`. They go through the codecs of the store, which encrypt them."""

from __future__ import annotations

import re
from typing import Final

from msgspec import json

from batuta.authoring.services import FlowService
from batuta.errors import InvalidInput
from batuta.journal.audit import Verb
from batuta.journal.server.documents import FLOW_SECRETS, KEEP_SECRETS, DocumentStore
from batuta.names import check_reason, quoted

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
LARGEST: Final = 64 * 1024
"""Characters of a secret."""
MOST: Final = 10_000
"""Secrets of a namespace."""


async def stored_secret(store: DocumentStore, name: str) -> str | None:
    """None: there is none. Raises PayloadSealed when this process lacks its key."""
    found = await store.document(FLOW_SECRETS, name)
    return None if found is None else json.decode(found.body, type=str | None)


class StoredSecrets:
    """The secrets of one namespace. Their values are written, and never given back."""

    def __init__(self, backend: FlowService) -> None:
        self._backend = backend

    async def set(self, name: str, value: str, *, reason: str = "") -> None:
        """Keep a secret, in place of the one of that name. Raises InvalidInput, which does not quote it."""
        if not _NAME.fullmatch(name):
            raise InvalidInput(
                f"the name of a secret must be 1 to 100 letters, digits, '_', '-' and '.', not {quoted(name)}"
            )
        if not 0 < len(value) <= LARGEST:
            raise InvalidInput(f"secret {name!r} must be a text of 1 to {LARGEST:,} characters")
        await self._put(name, value, Verb.SET_SECRET, reason)

    async def remove(self, name: str, *, reason: str = "") -> bool:
        """False: there was none."""
        if await stored_secret(self._backend.store, name) is None:
            return False
        await self._put(name, None, Verb.DELETE_SECRET, reason)
        return True

    async def names(self) -> list[str]:
        """Secrets that this process can read."""
        found = await self._backend.store.documents(FLOW_SECRETS, MOST)
        return sorted(one.key for one in found if one.body != _GONE)

    async def _put(self, name: str, value: str | None, verb: Verb, reason: str) -> None:
        bodies = {name: json.encode(value).decode()}
        act = self._backend.act(verb, check_reason(reason))
        await self._backend.store.put_documents(FLOW_SECRETS, bodies, KEEP_SECRETS, act)


_GONE: Final = "null"
