"""Who a run is."""

from __future__ import annotations

from msgspec import Struct

from batuta.ids import RunId


class RunIdentity(Struct, gc=False, eq=False):
    """What of a run never changes."""

    run_id: RunId
    id: str
    queue: str
    namespace: str
    first: RunId | None = None
    """Of its chain; None: it is that itself."""

    @property
    def chain_id(self) -> RunId:
        return self.first or self.run_id
