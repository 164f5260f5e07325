"""The namespace of a client: its name, a check of its database, and settings about it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from batuta.authoring.client.acting import acting_as
from batuta.authoring.services import StoreAccess
from batuta.journal.audit import Verb
from batuta.journal.marks import REDACT
from batuta.journal.queues import StoreGauges
from batuta.journal.resilience.partners import all_partners, breaker_states
from batuta.journal.server.documents import DocumentStore
from batuta.journal.server.requests import RequestStore
from batuta.names import check_reason


class Namespace:
    """The namespace of a client: `client.namespace`."""

    def __init__(self, access: StoreAccess) -> None:
        self._access, self._store = access, access.store

    @property
    def name(self) -> str:
        return self._access.namespace

    async def check(self) -> None:
        """Ask the database. Raises StoreUnavailable, SchemaMismatch and other StoreError when it cannot be used."""
        await self._store.now()
        await self._store.marks()  # the clock of some stores needs no table

    async def gauges(self) -> StoreGauges:
        """How much is open: runs by state, queues, workers, dead letters; in one bounded query."""
        found = await self._store.gauges()
        found.bus = await self._store.bus_status()
        found.breakers = breaker_states(await all_partners(self._store))
        return found

    async def requires_redaction(self) -> bool:
        """Whether the namespace asks all who show payloads to redact them: see `batuta redaction`."""
        return REDACT in await self._store.marks()

    async def set_redaction(self, required: bool, reason: str = "") -> None:
        """Ask it of them, or no longer: then BATUTA_REDACT alone decides."""
        why = check_reason(reason)
        if required:
            await self._store.set_mark(REDACT, "1", self._access.act(Verb.SET_MARK, why, after="1"))
        else:
            await self._store.clear_mark(REDACT, self._access.act(Verb.CLEAR_MARK, why))

    async def others(self, after: str = "", limit: int = 1_000) -> list[str]:
        """Namespaces of the same database in which something is: workers, now or in the last year, schedules, keys of
        the server or runs that are due. By name, from after that one on."""
        return await self._store.known_namespaces(after, limit)

    async def note_reveal(self, target: str, detail: Mapping[str, Any], reason: str = "") -> None:
        """Write into the audit log that a caller is about to see redacted values."""
        act = self._access.act(Verb.REVEAL, check_reason(reason), detail=dict(detail))
        await self._store.note_act(target, act)

    async def note_page_action(self, target: str) -> None:
        """Write into the audit log that a caller is about to use an action of a page: `money/top-up`."""
        await self._store.note_act(target, self._access.act(Verb.PAGE_ACTION))

    @property
    def requests(self) -> RequestStore:
        """Keeps requests with an idempotency key: for `batuta.resilience.idempotency`."""
        return self._store

    @property
    def documents(self) -> DocumentStore:
        """Keeps small documents for a time, such as the progress of operations."""
        return self._store

    def acting_as(self, actor: str, reason: str = "") -> AbstractContextManager[None]:
        """What this task does in the block is in the audit log as done by `actor`: for programs that act for many
        people, such as a server. `reason`: for acts that say none."""
        return acting_as(actor, reason)
