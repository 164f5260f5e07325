"""Facts of runs that never change, remembered so that they need not be read."""

from __future__ import annotations

from typing import NamedTuple

from batuta.errors import PayloadDamaged
from batuta.ids import RunId, digest_of
from batuta.journal.records import NewRun, Run, RunKind
from batuta.journal.store import Store

_MOST = 50_000


class Fact(NamedTuple):
    run_id: RunId
    id: str
    chain_id: RunId
    parent: RunId | None
    parent_seq: int
    kind: RunKind
    name: str
    identity: str
    """A hash of what the row says the run is. Its start and entries are bound to that: they cannot be read when the row
    is given the id, chain, parent or workflow of another run."""

    def followed_by(self, run_id: RunId, name: str) -> Fact:
        """Of the next run of its chain."""
        return _fact(run_id, self.id, self.chain_id, self.parent, self.parent_seq, self.kind, name)


def fact_of(run: Run | NewRun) -> Fact:
    chain_id = run.chain_id or run.run_id
    return _fact(run.run_id, run.id, chain_id, run.parent_run_id, run.parent_seq, run.kind, run.name)


def _fact(
    run_id: RunId, id: str, chain_id: RunId, parent: RunId | None, parent_seq: int, kind: RunKind, name: str
) -> Fact:
    # The store gives the runs of a batch the run that waits for them, or none: they have no `parent_seq`.
    caller = parent.hex if parent is not None and parent_seq else ""
    identity = digest_of(name, kind.value, id, chain_id.hex, caller, str(parent_seq), size=16).hex()
    return Fact(run_id, id, chain_id, parent, parent_seq, kind, name, identity)


def refuse_other_code(run: Run) -> None:
    """Raises PayloadDamaged where its row says that the code of another workflow or job is to run it."""
    name, code = run.name, run.code
    if code not in ("", name, f"{run.kind.value}:{name}") and not code.startswith(f"{name}@"):
        raise PayloadDamaged(f"run {run.run_id} is of {name!r}, and its row says that code {code!r} is to run it")


def _is_of(run: Run | NewRun, fact: Fact) -> bool:
    return (run.id, run.name, run.kind, run.parent_run_id, run.parent_seq, run.chain_id or run.run_id) == (
        fact.id,
        fact.name,
        fact.kind,
        fact.parent,
        fact.parent_seq,
        fact.chain_id,
    )


class Facts:
    """Of the runs that were seen last. Others are looked up."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[int, Fact] = {}
        """By the number of the run: to hash a UUID is slow."""

    def note(self, run: Run | NewRun) -> Fact:
        """Its facts. Remembered unless others are: a row may be forged."""
        found = self._known.get(run.run_id.int)
        if found is None:
            self.keep(found := fact_of(run))
        return found if _is_of(run, found) else fact_of(run)

    def refuse_renamed(self, run: Run) -> None:
        """Raises PayloadDamaged where the row of a run has another id than before."""
        found = self._known.get(run.run_id.int)
        if found is not None and found.id != run.id:
            raise PayloadDamaged(f"run {run.run_id} had the id {found.id!r}, and its row says {run.id!r}")

    def known(self, run_id: RunId) -> Fact | None:
        """Remembered facts about a run."""
        return self._known.get(run_id.int)

    async def of(self, run_id: RunId) -> Fact:
        """Raises UnknownRun."""
        found = self._known.get(run_id.int)
        if found is None:
            self.keep(found := fact_of(await self._store.get_run(run_id)))
        return found

    def keep(self, fact: Fact) -> None:
        """Remember it in place of what is remembered: the run's start or journal was readable with it."""
        known, number = self._known, fact.run_id.int
        if number not in known:
            while len(known) >= _MOST:
                del known[next(iter(known))]
        known[number] = fact
