"""The namespace of a client: its name, a check of its database, and settings about it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from batuta.authoring.client.acting import acting_as
from batuta.journal.queues import StoreGauges
from batuta.journal.server.documents import DocumentStore
from batuta.journal.server.requests import RequestStore
from batuta.names import check_reason


class NamespaceService(Protocol):
    """Knows the namespace."""

    @property
    def name(self) -> str: ...

    async def check(self) -> None:
        """Raises StoreError when the database cannot be used."""
        ...

    async def gauges(self) -> StoreGauges: ...
    async def requires_redaction(self) -> bool: ...
    async def note_reveal(self, target: str, detail: Mapping[str, Any], reason: str) -> None: ...
    async def note_page_action(self, target: str) -> None: ...

    async def set_redaction(self, required: bool, reason: str) -> None: ...

    @property
    def requests(self) -> RequestStore: ...

    @property
    def documents(self) -> DocumentStore: ...


class Namespace:
    """The namespace of a client: `client.namespace`."""

    def __init__(self, backend: NamespaceService) -> None:
        self._backend = backend

    @property
    def name(self) -> str:
        return self._backend.name

    async def check(self) -> None:
        """Ask the database. Raises StoreUnavailable, SchemaMismatch and other StoreError when it cannot be used."""
        await self._backend.check()

    async def gauges(self) -> StoreGauges:
        """How much is open: runs by state, queues, workers, dead letters; in one bounded query."""
        return await self._backend.gauges()

    async def requires_redaction(self) -> bool:
        """Whether the namespace asks all who show payloads to redact them: see `batuta redaction`."""
        return await self._backend.requires_redaction()

    async def set_redaction(self, required: bool, reason: str = "") -> None:
        """Ask it of them, or no longer: then BATUTA_REDACT alone decides."""
        await self._backend.set_redaction(required, check_reason(reason))

    async def others(self, after: str = "", limit: int = 1_000) -> list[str]:
        """Namespaces of the same database in which something is: workers, now or in the last year, schedules, keys of
        the server or runs that are due. By name, from after that one on."""
        return await self._backend.documents.known_namespaces(after, limit)

    async def note_reveal(self, target: str, detail: Mapping[str, Any], reason: str = "") -> None:
        """Write into the audit log that a caller is about to see redacted values."""
        await self._backend.note_reveal(target, detail, check_reason(reason))

    async def note_page_action(self, target: str) -> None:
        """Write into the audit log that a caller is about to use an action of a page: `money/top-up`."""
        await self._backend.note_page_action(target)

    @property
    def requests(self) -> RequestStore:
        """Keeps requests with an idempotency key: for `batuta.resilience.idempotency`."""
        return self._backend.requests

    @property
    def documents(self) -> DocumentStore:
        """Keeps small documents for a time, such as the progress of operations."""
        return self._backend.documents

    def acting_as(self, actor: str, reason: str = "") -> AbstractContextManager[None]:
        """What this task does in the block is in the audit log as done by `actor`: for programs that act for many
        people, such as a server. `reason`: for acts that say none."""
        return acting_as(actor, reason)
