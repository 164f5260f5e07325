"""Who a run is, and which runs it was made from."""

from __future__ import annotations

from msgspec import Struct

from batuta.ids import RunId
from batuta.journal.entries import Forked


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


class Lineage:
    """The ancestors of a forked run. Made before such a run is replayed: its entries up to the point of the fork were
    written as another run, so that its code is told that it is that one until then."""

    def __init__(self, identity: RunIdentity, last: Forked) -> None:
        self._identity = identity
        self._forks: list[Forked] = []
        self.first = RunId(last.first_run_id)
        """The run that wrote the first entry."""
        self.told = self._named(last.first_id, last.first_run_id)
        """The identity that the code sees."""

    def take_over(self, fork: Forked) -> None:
        """The run becomes itself."""
        self._forks.append(fork)
        self.told = self._named(fork.id, fork.mark)

    def key_base(self, seq: int) -> str:
        """The run id in a command's key; empty: the run's own."""
        changed = (one for one in reversed(self._forks) if one.key_base and (seq > one.seq or seq in one.inputs))
        return next((one.key_base for one in changed), "")

    def mark(self, seq: int) -> str:
        """Names the child or message of a command; empty: as in the first run."""
        renamed = (one for one in reversed(self._forks) if seq > one.seq or seq in one.anew)
        return next((one.mark for one in renamed), "")

    def _named(self, id: str, run_id: str) -> RunIdentity:
        return RunIdentity(RunId(run_id), id, self._identity.queue, self._identity.namespace)
