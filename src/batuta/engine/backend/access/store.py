"""The store and the actor, for the client."""

from __future__ import annotations

from batuta.clock import Clock
from batuta.engine.backend.actor import Actor
from batuta.journal.store import Store


class NativeAccess:
    """Implements `authoring.services.StoreAccess`."""

    def __init__(self, store: Store, actor: Actor, clock: Clock) -> None:
        self.store, self.namespace = store, store.namespace
        self.monotonic, self.act = clock.monotonic, actor.act
