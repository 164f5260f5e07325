"""Partners, for the client: the store's part about them, and the actor."""

from __future__ import annotations

from collections.abc import Callable

from batuta.engine.backend.actor import Actor
from batuta.journal.resilience.partners import PartnerStore
from batuta.journal.store import Store


class NativePartners:
    """Gives `client.breakers` and `client.limits` what they need of the store."""

    def __init__(self, store: Store, actor: Actor, monotonic: Callable[[], float]) -> None:
        self.store: PartnerStore = store
        self.namespace, self.monotonic = store.namespace, monotonic
        self.act = actor.act
