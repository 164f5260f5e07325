"""The namespace of a store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batuta.engine.backend.actor import Actor
from batuta.journal.audit import Verb
from batuta.journal.marks import REDACT
from batuta.journal.queues import StoreGauges
from batuta.journal.resilience.partners import all_partners, breaker_states
from batuta.journal.store import Store


class NativeNamespace:
    """Implements `authoring.client.namespace.NamespaceService` on a store."""

    def __init__(self, store: Store, actor: Actor) -> None:
        self._store, self._actor = store, actor
        self.name = store.namespace
        self.requests = self.documents = store

    async def check(self) -> None:
        await self._store.now()
        await self._store.marks()  # the clock of some stores needs no table

    async def gauges(self) -> StoreGauges:
        found = await self._store.gauges()
        found.bus = await self._store.bus_status()
        found.breakers = breaker_states(await all_partners(self._store))
        return found

    async def requires_redaction(self) -> bool:
        return REDACT in await self._store.marks()

    async def set_redaction(self, required: bool, reason: str) -> None:
        if required:
            await self._store.set_mark(REDACT, "1", self._actor.act(Verb.SET_MARK, reason, after="1"))
        else:
            await self._store.clear_mark(REDACT, self._actor.act(Verb.CLEAR_MARK, reason))

    async def note_reveal(self, target: str, detail: Mapping[str, Any], reason: str) -> None:
        await self._store.note_act(target, self._actor.act(Verb.REVEAL, reason, detail=dict(detail)))

    async def note_page_action(self, target: str) -> None:
        await self._store.note_act(target, self._actor.act(Verb.PAGE_ACTION))
