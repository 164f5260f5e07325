"""Deleting and pruning in SQLite."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar
from uuid import UUID

from msgspec import Struct

from batuta.ids import RunId
from batuta.journal.audit import Act, Changed, state_json
from batuta.journal.dead_letters import LetterState
from batuta.journal.retention import Pruned, Retention, keep_json, kept_for, shortest, target_of
from batuta.journal.states import RunState
from batuta.stores.sqlite import dead_letters
from batuta.stores.sqlite.database.base import Base
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork

T = TypeVar("T")

MOST_ENTRIES = 2_000
"""Journal entries that one transaction deletes: no one else writes meanwhile."""


class Member(Struct):
    """A run of a chain that may be deleted."""

    run_id: bytes
    id: str
    name: str
    state: str
    closed_at: int | None
    head: int
    parent_run_id: bytes | None


class RetentionVerbs(Base):
    """The part of the store that is about how long runs are kept."""

    async def delete_runs(self, run_ids: Sequence[RunId], act: Act) -> list[RunId]:
        gone, rest = list[RunId](), deque(run_ids)
        while rest:
            gone += await self._write(lambda unit: _delete(unit, rest, act), aside=True)
            await self.sweep()
        return gone

    async def sweep(self) -> float:
        """Delete the rest of deleted runs, also those of a killed process. Returns how long it worked."""
        watch = Watch()
        while self._read(lambda unit: unit.finds("first_leftover", (unit.namespace,))):
            await self._write(lambda unit: watch.time(lambda: _sweep(unit)), aside=True)
        return watch.seconds

    async def set_retention(self, rule: Retention, act: Act | None = None) -> bool:
        return await self._rule(rule.workflow, rule.state, keep_json(rule.micros), "set_retention", (rule.micros,), act)

    async def drop_retention(self, name: str, state: str, act: Act | None = None) -> bool:
        return await self._rule(name, state, "null", "drop_retention", (), act)

    async def _rule(
        self, name: str, state: str, after: str, statement: str, more: tuple[int | None, ...], act: Act | None
    ) -> bool:
        key = (self.namespace, name, state)

        def work(unit: UnitOfWork) -> bool:
            known = unit.row("keep_of", key)
            before = "null" if known is None else keep_json(known[0])
            if not unit.change(statement, (*key, *more)):
                return False
            unit.record(act, [Changed(target=target_of(name, state), before=before, after=after)])
            return True

        return await self._write(work, small=True)

    async def retention(self) -> list[Retention]:
        return self._read(_rules)

    async def prune(self, limit: int, after: RunId | None = None, *, dry_run: bool = False) -> Pruned:
        if not dry_run:
            await self.sweep()
        if shortest(await self.retention()) is None:
            return Pruned(0, None)
        watch = Watch()
        # Found by a reader: only runs to delete are checked once more while no one else can write.
        chains, last = await self._read_apart(
            lambda unit: watch.time(lambda: _over(unit, limit, after, by_first=dry_run))
        )
        if dry_run:
            return Pruned(sum(len(members) for _, _, members in chains), last, watch.seconds)
        if not chains:
            return Pruned(0, last, watch.seconds)
        deleted = await self._write(lambda unit: watch.time(lambda: _prune(unit, chains)), aside=True)
        return Pruned(deleted, last, watch.seconds + await self.sweep())


class Watch:
    """How long a thread works: not the waiting, which gets longer the more there is to do for others."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def time(self, work: Callable[[], T]) -> T:
        begun = time.thread_time()
        result = work()
        self.seconds += time.thread_time() - begun
        return result


Chain = tuple[str, bytes, list[Member]]
"""Its id, its first run, and all of its runs."""


def _rules(unit: UnitOfWork) -> list[Retention]:
    return [Retention.stored(*row) for row in unit.rows("retention", (unit.namespace,))]


def _members(unit: UnitOfWork, id: str, chain_id: bytes) -> list[Member]:
    values = {"namespace": unit.namespace, "id": id, "chain_id": chain_id}
    return [Member(*row) for row in unit.rows("chain_runs", values)]


# -- pruning


def _over(unit: UnitOfWork, limit: int, after: RunId | None, *, by_first: bool) -> tuple[list[Chain], RunId | None]:
    """Chains among the next `limit` runs whose retention is over, and the run to go on behind.

    By their first run only: each is found once, also when all of them stay.
    """
    rules = _rules(unit)
    oldest = unit.now - (shortest(rules) or 0)
    page = unit.execute("oldest_runs", (unit.namespace, b"" if after is None else after.bytes, limit))
    found: list[Chain] = []
    seen: set[bytes] = set()
    count, entries, young, last = 0, 0, True, b""
    for *columns, chain_id, current, created_at in page:
        member = Member(*columns)
        count, young = count + 1, young and created_at > oldest
        ended = member.closed_at is not None and member.closed_at <= oldest
        if ended and chain_id not in seen and (not by_first or chain_id == member.run_id):
            seen.add(chain_id)
            single = current and chain_id == member.run_id
            members = [member] if single else _ended(unit, member.id, chain_id)
            if _is_over(unit, members, rules):
                size = sum(each.head + 1 for each in members)
                if found and entries + size > MOST_ENTRIES:
                    page.close()  # read in part, it would hold the snapshot
                    return found, UUID(bytes=last)
                found.append((member.id, chain_id, members))
                entries += size
        last = member.run_id
    return found, None if count < limit or young else UUID(bytes=last)


def _ended(unit: UnitOfWork, id: str, chain_id: bytes) -> list[Member]:
    """The runs of a chain; none when it goes on, which is found without reading all of a long one."""
    if unit.finds("goes_on", (unit.namespace, id, chain_id)):
        return []
    return _members(unit, id, chain_id)


def _is_over(unit: UnitOfWork, members: Sequence[Member], rules: Sequence[Retention]) -> bool:
    """Whether a chain's retention is over, and nothing needs it."""
    if not members or any(member.closed_at is None for member in members):
        return False
    last = max(members, key=lambda member: (member.closed_at or 0, member.run_id))
    keep = kept_for(rules, last.name, last.state)
    if keep is None or (last.closed_at or 0) + keep > unit.now:
        return False
    if any(_is_needed(unit, member) for member in members):
        return False
    return last.parent_run_id is None or not unit.finds("is_open", (unit.namespace, last.parent_run_id))


def _is_needed(unit: UnitOfWork, member: Member) -> bool:
    """Whether a child, or an open dead letter, needs it."""
    if unit.finds("any_child", (unit.namespace, member.run_id)):
        return True
    if member.state != RunState.FAILED:
        return False
    return dead_letters.state_of(unit, UUID(bytes=member.run_id)) == LetterState.OPEN


def _prune(unit: UnitOfWork, chains: Iterable[Chain]) -> int:
    """Delete chains that have not changed since they were found: an operator may have continued one."""
    gone: list[Member] = []
    for id, chain_id, known in chains:
        if _members(unit, id, chain_id) == known:
            gone += known
    erase(unit, gone)
    return len(gone)


# -- deleting


def _delete(unit: UnitOfWork, run_ids: deque[RunId], act: Act) -> list[RunId]:
    """Take runs from these, and delete their families, for one transaction."""
    gone: dict[bytes, Member] = {}
    entries = 0
    while run_ids and entries < MOST_ENTRIES:
        run_id = run_ids.popleft()
        row = unit.row("chain_of_run", (unit.namespace, run_id.bytes))
        if row is not None and run_id.bytes not in gone:
            family = _family(unit, row[0], row[1])
            if not any(_is_held(unit, member) for member in family.values()):
                entries += sum(member.head + 1 for id, member in family.items() if id not in gone)
                gone |= family
    erase(unit, list(gone.values()))
    unit.record(act, [_deleted(member) for member in gone.values()])
    return [UUID(bytes=run_id) for run_id in gone]


def _is_held(unit: UnitOfWork, member: Member) -> bool:
    """Whether a run is open, or its parent is: that may start it again."""
    parent = member.parent_run_id
    if member.closed_at is None or parent is None:
        return member.closed_at is None
    return unit.finds("is_open", (unit.namespace, parent))


def _deleted(member: Member) -> Changed:
    run_id = str(UUID(bytes=member.run_id))
    return Changed(target=member.id, run_id=run_id, before=state_json(member.state), after="null")


def _family(unit: UnitOfWork, id: str, chain_id: bytes) -> dict[bytes, Member]:
    """A chain with those of its children, at any depth."""
    found: dict[bytes, Member] = {}
    chains = {(id, chain_id)}
    while chains:
        for member in _members(unit, *chains.pop()):
            if member.run_id not in found:
                found[member.run_id] = member
                chains.update(unit.rows("child_chains", (unit.namespace, member.run_id)))
    return found


def erase(unit: UnitOfWork, members: Sequence[Member]) -> None:
    """Delete whole chains, with everything that belongs to them: long journals and inboxes in later transactions."""
    failed = [UUID(bytes=member.run_id) for member in members if member.state == RunState.FAILED]
    dead_letters.forget(unit, failed)
    ids = [(unit.namespace, member.run_id) for member in members]
    is_long = sum(member.head + 1 for member in members) > MOST_ENTRIES
    for statement in ("leave_for_later",) if is_long else ("delete_journal", "delete_inbox"):
        unit.change_each(statement, ids)
    for statement in ("delete_outputs", "delete_attempts"):
        unit.change_each(statement, ids)
    unit.change_each("delete_run", ids)


def _sweep(unit: UnitOfWork) -> None:
    """As much as one transaction may."""
    left = MOST_ENTRIES
    while left > 0 and (row := unit.row("first_leftover", (unit.namespace,))) is not None:
        wanted = left
        for statement in ("delete_some_entries", "delete_some_messages"):
            left -= unit.change(statement, (*row, left))
        if left > 0:
            unit.change("delete_leftover", row)
        left -= wanted == left  # a run without more rows counts, too
