"""Who a run is."""

from __future__ import annotations

from msgspec import Struct

from batuta.ids import RunId


class RunIdentity(Struct, gc=False, eq=False):
    """The facts of a run that never change."""

    run_id: RunId
    id: str
    queue: str
    namespace: str
    first: RunId | None = None
    """The first run of its chain; None: this run."""

    @property
    def chain_id(self) -> RunId:
        return self.first or self.run_id
