"""Facts of runs that never change, remembered so that they need not be read."""

from __future__ import annotations

from typing import NamedTuple

from batuta.ids import RunId
from batuta.journal.records import NewRun, Run
from batuta.journal.store import Store

_MOST = 50_000


class Fact(NamedTuple):
    id: str
    chain_id: RunId
    parent: RunId | None
    name: str


class Facts:
    """Of the runs that were seen last. Others are looked up."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[int, Fact] = {}
        """By the number of the run: to hash a UUID is slow."""

    def note(self, run: Run) -> None:
        self._keep(run.run_id, Fact(run.id, run.chain_id, run.parent_run_id, run.name))

    def note_new(self, new: NewRun) -> None:
        self._keep(new.run_id, Fact(new.id, new.chain_id or new.run_id, new.parent_run_id, new.name))

    def known(self, run_id: RunId) -> Fact | None:
        """Remembered facts about a run."""
        return self._known.get(run_id.int)

    async def of(self, run_id: RunId) -> Fact:
        """Raises UnknownRun."""
        found = self._known.get(run_id.int)
        if found is None:
            self.note(await self._store.get_run(run_id))
            found = self._known[run_id.int]
        return found

    def _keep(self, run_id: RunId, fact: Fact) -> None:
        known, number = self._known, run_id.int
        if number not in known:
            while len(known) >= _MOST:
                del known[next(iter(known))]
            known[number] = fact
