"""State that the gates of one worker or client share: the store's documents about partners, and its time."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from msgspec import MsgspecError

from batuta.authoring.gates import GateHost
from batuta.clock import SECOND
from batuta.errors import DamagedPartner, StoreError
from batuta.ids import new_message_id
from batuta.journal.records import Hint
from batuta.journal.resilience.partners import (
    Partner,
    PartnerChange,
    PartnerDocs,
    PartnerRule,
    PartnerStore,
    all_partners,
)

log = logging.getLogger("batuta.resilience")

T = TypeVar("T")

_TICK = 5.0
SOON = 0.9
"""Seconds that a call waits for the store's answer before it asks again: so short that it stays in memory."""
_LOOKS = 0.05
"""Seconds between two looks at the store: where it tells of every write there may be many hints."""
_WOKEN = 1_000


async def wake_runs(store: PartnerStore, name: str) -> None:
    """Runs that wait in the store for the gate are due now."""
    while await store.wake_gate(name, _WOKEN) == _WOKEN:
        pass


class Shared(Protocol):
    """A breaker or limit of this process."""

    kind: str
    name: str

    def learn_doc(self, doc: str | None) -> None:
        """Take the document in the store; None: there is none."""
        ...

    def tick(self) -> bool:
        """Renew what this process has of others. False: there is nothing to renew until a call asks."""
        ...


class Partners:
    """Made once for each host."""

    def __init__(self, host: GateHost) -> None:
        self.host, self.holder = host, new_message_id()
        self._shared: dict[tuple[str, str], Shared] = {}
        self._damaged: dict[tuple[str, str, str], DamagedPartner] = {}
        self._now, self._sent = 0, 0.0
        self._looking = self._again = self._closed = self._ticking = False
        self._polls = host.store.poll_seconds is not None
        """Hints may be lost: what others write is looked for all the time."""
        self._undo = host.store.listen(self._hear)
        self._tick_soon()

    def close(self) -> None:
        self._closed = True
        self._undo()

    def keep(self, kind: str, name: str, make: Callable[[], T]) -> T:
        """The one of this kind and name."""
        found = self._shared.get((kind, name))
        if found is None:
            found = self._shared[kind, name] = make()  # type: ignore[assignment]
        return found  # type: ignore[return-value]

    # -- the store

    def now(self) -> int:
        """The store's time, or somewhat later. 0 before the first answer."""
        return self._now and self._now + int((self.host.monotonic() - self._sent) * SECOND)

    async def change(self, kind: str, name: str, key: str, rule: PartnerRule[T]) -> T:
        """Change a document, and learn the store's time."""
        sent, told = self.host.monotonic(), 0

        def timed(docs: PartnerDocs) -> PartnerChange[T]:
            nonlocal told, sent
            told = docs.now
            return rule(docs)

        try:
            answer = (await self.host.store.change_partner(kind, name, key, timed)).answer
        except (MsgspecError, RecursionError) as error:
            raise self._note_damage(kind, name, key, error) from error
        self._damaged.pop((kind, name, key), None)
        self._now, self._sent = told, sent
        return answer

    def check(self, kind: str, name: str, key: str = "") -> None:
        """For a call that asks. Raises DamagedPartner if what the store has could not be read the last time."""
        if not self._ticking:
            self._tick_soon()
        if self._damaged and (found := self._damaged.get((kind, name, key))) is not None:
            raise found

    def _note_damage(self, kind: str, name: str, key: str, error: MsgspecError | RecursionError) -> DamagedPartner:
        damage = DamagedPartner(kind, name, error)
        if (kind, name, key) not in self._damaged:
            log.error("%s", damage)
        self._damaged[kind, name, key] = damage
        self.host.wake(f"{name}/{key}" if key else name)
        return damage

    def begin(self, work: Callable[[], Awaitable[object]], again: Callable[[], None] = lambda: None) -> None:
        """Do it beside the calls; `again` is called a second later if the store is away."""

        async def run() -> None:
            try:
                await work()
            except StoreError:
                self.host.call_later(1.0, again)
                raise
            except DamagedPartner:  # it is logged, and calls are told
                self.host.call_later(1.0, again)

        self.host.spawn(run())

    def wake_refused(self, name: str) -> None:
        """The gate has opened: calls that this process refused may have left memory since, or be about to."""
        for seconds in (0.0, 1.0, 5.0):
            self.host.call_later(seconds, lambda: self.begin(lambda: wake_runs(self.host.store, name)))

    # -- news

    def _hear(self, hint: Hint) -> None:
        if hint.partners and self._shared and not self._closed:
            if hint.partner is not None:  # changed in this process: it holds from now on
                self._learn_doc(*hint.partner)
            self.look_soon()

    def look_soon(self) -> None:
        """Read what the store has."""
        if self._looking:
            self._again = True
            return
        self._looking = True
        self.host.spawn(self._look())

    async def _look(self) -> None:
        self._again = False
        try:
            self._learn(await all_partners(self.host.store))
        finally:
            self.host.call_later(_LOOKS, self._looked)

    def _looked(self) -> None:
        self._looking = False
        if self._again and not self._closed:
            self.look_soon()

    def _learn(self, rows: list[Partner]) -> None:
        docs = {(row.kind, row.name): row.doc for row in rows}
        self._damaged = {at: error for at, error in self._damaged.items() if at[:2] in docs}  # others were forgotten
        for at in list(self._shared):
            self._learn_doc(*at, docs.get(at))

    def _learn_doc(self, kind: str, name: str, doc: str | None) -> None:
        shared = self._shared.get((kind, name))
        try:
            if shared is not None:
                shared.learn_doc(doc)
        except (MsgspecError, RecursionError) as error:
            self._note_damage(kind, name, "", error)

    def _tick_soon(self) -> None:
        self._ticking = True
        self.host.call_later(_TICK, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        if self._closed:
            return
        if self._polls and self._shared:
            self.look_soon()
        busy = [shared.tick() for shared in list(self._shared.values())]
        if self._polls or any(busy):
            self._tick_soon()
