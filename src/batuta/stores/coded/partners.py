"""Endpoints for webhooks hold secrets, so their documents are coded. Breakers and limits are the other store's own."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from batuta.errors import PayloadSealed
from batuta.journal.audit import Act
from batuta.journal.resilience.partners import WEBHOOK, Partner, PartnerChange, PartnerDocs, PartnerRule
from batuta.stores.coded.namespace_guard import GuardedStore
from batuta.stores.coded.record_codec import RecordCodec, endpoint_place, never_plain

T = TypeVar("T")


class PartnerVerbs(GuardedStore):
    """The part of a store with codecs that is about partners."""

    coding: RecordCodec

    async def change_partner(
        self, kind: str, name: str, key: str, rule: PartnerRule[T], act: Act | None = None
    ) -> PartnerChange[T]:
        if kind != WEBHOOK:
            return await self.inner.change_partner(kind, name, key, rule, act)
        await self.guard.check()
        place = endpoint_place(name)

        def coded(docs: PartnerDocs) -> PartnerChange[T]:
            plain = None if docs.doc is None else self.coding.decode_text(docs.doc, place)
            changed = rule(PartnerDocs(own=plain, doc=plain, now=docs.now))
            doc = None if changed.doc == (plain or "") else changed.doc  # coded again it would be another text
            return PartnerChange(
                changed.answer, self.coding.encode_text(doc, place) if doc else doc, changed.tell, changed.expires_at
            )

        return await self.inner.change_partner(kind, name, key, coded, act)

    async def partners(self, keys: bool = False, limit: int = 1_000) -> list[Partner]:
        return [self._plain_partner(one) for one in await self.inner.partners(keys, limit)]

    def _plain_partner(self, found: Partner) -> Partner:
        """One that cannot be read stays coded: breakers and limits are of use all the same."""
        if found.kind != WEBHOOK:
            return found
        try:
            return self.coding.read(found)
        except PayloadSealed:
            return replace(found, doc=never_plain(found.doc))
