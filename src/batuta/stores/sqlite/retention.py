"""Deleting and pruning in SQLite."""

from __future__ import annotations

import sqlite3
import time
from abc import ABC, abstractmethod
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
from batuta.stores.sqlite.audit import record
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.readers import Readers
from batuta.stores.sqlite.database.rows import one
from batuta.stores.sqlite.database.writer import Writer

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


class RetentionVerbs(ABC):
    """The part of the store that is about how long runs are kept."""

    namespace: str
    _writer: Writer
    _readers: Readers

    @abstractmethod
    def clock_now(self) -> int: ...

    async def delete_runs(self, run_ids: Sequence[RunId], act: Act) -> list[RunId]:
        now, gone, rest = self.clock_now(), list[RunId](), deque(run_ids)
        while rest:
            gone += await self._writer.write(lambda cursor: _delete(cursor, self.namespace, rest, act, now), aside=True)
            await self.sweep()
        return gone

    async def sweep(self) -> float:
        """Delete the rest of deleted runs, also those of a killed process. Returns how long it worked."""
        watch = Watch()
        key = (self.namespace,)
        while (
            self._readers.read(lambda connection: connection.execute(Q["first_leftover"], key).fetchone()) is not None
        ):
            await self._writer.write(lambda cursor: watch.time(lambda: _sweep(cursor, self.namespace)), aside=True)
        return watch.seconds

    async def set_retention(self, rule: Retention, act: Act | None = None) -> bool:
        return await self._rule(rule.workflow, rule.state, keep_json(rule.micros), "set_retention", (rule.micros,), act)

    async def drop_retention(self, name: str, state: str, act: Act | None = None) -> bool:
        return await self._rule(name, state, "null", "drop_retention", (), act)

    async def _rule(
        self, name: str, state: str, after: str, statement: str, more: tuple[int | None, ...], act: Act | None
    ) -> bool:
        now, key = self.clock_now(), (self.namespace, name, state)

        def work(cursor: sqlite3.Cursor) -> bool:
            known = one(cursor.execute(Q["keep_of"], key))
            before = "null" if known is None else keep_json(known[0])
            if not cursor.execute(Q[statement], (*key, *more)).rowcount:
                return False
            record(
                cursor, self.namespace, now, act, [Changed(target=target_of(name, state), before=before, after=after)]
            )
            return True

        return await self._writer.write(work, small=True)

    async def retention(self) -> list[Retention]:
        return self._readers.read(lambda connection: _rules(connection.cursor(), self.namespace))

    async def prune(self, limit: int, after: RunId | None = None, *, dry_run: bool = False) -> Pruned:
        if not dry_run:
            await self.sweep()
        if shortest(await self.retention()) is None:
            return Pruned(0, None)
        now, watch = self.clock_now(), Watch()
        # Found by a reader: only runs to delete are checked once more while no one else can write.
        chains, last = await self._readers.read_apart(
            lambda connection: watch.time(
                lambda: _over(connection.cursor(), self.namespace, limit, after, now, by_first=dry_run)
            )
        )
        if dry_run:
            return Pruned(sum(len(members) for _, _, members in chains), last, watch.seconds)
        if not chains:
            return Pruned(0, last, watch.seconds)
        deleted = await self._writer.write(
            lambda cursor: watch.time(lambda: _prune(cursor, self.namespace, chains)), aside=True
        )
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


def _rules(cursor: sqlite3.Cursor, namespace: str) -> list[Retention]:
    rows = cursor.execute(Q["retention"], (namespace,)).fetchall()
    return [Retention.stored(*row) for row in rows]


def _members(cursor: sqlite3.Cursor, namespace: str, id: str, chain_id: bytes) -> list[Member]:
    values = {"namespace": namespace, "id": id, "chain_id": chain_id}
    return [Member(*row) for row in cursor.execute(Q["chain_runs"], values).fetchall()]


# -- pruning


def _over(
    cursor: sqlite3.Cursor, namespace: str, limit: int, after: RunId | None, now: int, *, by_first: bool
) -> tuple[list[Chain], RunId | None]:
    """Chains among the next `limit` runs whose retention is over, and the run to go on behind.

    By their first run only: each is found once, also when all of them stay.
    """
    rules = _rules(cursor, namespace)
    oldest = now - (shortest(rules) or 0)
    page = cursor.connection.execute(Q["oldest_runs"], (namespace, b"" if after is None else after.bytes, limit))
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
            members = [member] if single else _ended(cursor, namespace, member.id, chain_id)
            if _is_over(cursor, namespace, members, rules, now):
                size = sum(each.head + 1 for each in members)
                if found and entries + size > MOST_ENTRIES:
                    page.close()  # read in part, it would hold the snapshot
                    return found, UUID(bytes=last)
                found.append((member.id, chain_id, members))
                entries += size
        last = member.run_id
    return found, None if count < limit or young else UUID(bytes=last)


def _ended(cursor: sqlite3.Cursor, namespace: str, id: str, chain_id: bytes) -> list[Member]:
    """The runs of a chain; none when it goes on, which is found without reading all of a long one."""
    if one(cursor.execute(Q["goes_on"], (namespace, id, chain_id))):
        return []
    return _members(cursor, namespace, id, chain_id)


def _is_over(
    cursor: sqlite3.Cursor, namespace: str, members: Sequence[Member], rules: Sequence[Retention], now: int
) -> bool:
    """Whether a chain's retention is over, and nothing needs it."""
    if not members or any(member.closed_at is None for member in members):
        return False
    last = max(members, key=lambda member: (member.closed_at or 0, member.run_id))
    keep = kept_for(rules, last.name, last.state)
    if keep is None or (last.closed_at or 0) + keep > now:
        return False
    if any(_is_needed(cursor, namespace, member) for member in members):
        return False
    return last.parent_run_id is None or not one(cursor.execute(Q["is_open"], (namespace, last.parent_run_id)))


def _is_needed(cursor: sqlite3.Cursor, namespace: str, member: Member) -> bool:
    """Whether a child, or an open dead letter, needs it."""
    if one(cursor.execute(Q["any_child"], (namespace, member.run_id))):
        return True
    if member.state != RunState.FAILED:
        return False
    return dead_letters.state_of(cursor, namespace, UUID(bytes=member.run_id)) == LetterState.OPEN


def _prune(cursor: sqlite3.Cursor, namespace: str, chains: Iterable[Chain]) -> int:
    """Delete chains that have not changed since they were found: an operator may have continued one."""
    gone: list[Member] = []
    for id, chain_id, known in chains:
        if _members(cursor, namespace, id, chain_id) == known:
            gone += known
    erase(cursor, namespace, gone)
    return len(gone)


# -- deleting


def _delete(cursor: sqlite3.Cursor, namespace: str, run_ids: deque[RunId], act: Act, now: int) -> list[RunId]:
    """Take runs from these, and delete their families, for one transaction."""
    gone: dict[bytes, Member] = {}
    entries = 0
    while run_ids and entries < MOST_ENTRIES:
        run_id = run_ids.popleft()
        row = one(cursor.execute(Q["chain_of_run"], (namespace, run_id.bytes)))
        if row is not None and run_id.bytes not in gone:
            family = _family(cursor, namespace, row[0], row[1])
            if not any(_is_held(cursor, namespace, member) for member in family.values()):
                entries += sum(member.head + 1 for id, member in family.items() if id not in gone)
                gone |= family
    erase(cursor, namespace, list(gone.values()))
    record(cursor, namespace, now, act, [_deleted(member) for member in gone.values()])
    return [UUID(bytes=run_id) for run_id in gone]


def _is_held(cursor: sqlite3.Cursor, namespace: str, member: Member) -> bool:
    """Whether a run is open, or its parent is: that may start it again."""
    parent = member.parent_run_id
    if member.closed_at is None or parent is None:
        return member.closed_at is None
    return bool(one(cursor.execute(Q["is_open"], (namespace, parent))))


def _deleted(member: Member) -> Changed:
    run_id = str(UUID(bytes=member.run_id))
    return Changed(target=member.id, run_id=run_id, before=state_json(member.state), after="null")


def _family(cursor: sqlite3.Cursor, namespace: str, id: str, chain_id: bytes) -> dict[bytes, Member]:
    """A chain with those of its children, at any depth."""
    found: dict[bytes, Member] = {}
    chains = {(id, chain_id)}
    while chains:
        for member in _members(cursor, namespace, *chains.pop()):
            if member.run_id not in found:
                found[member.run_id] = member
                chains.update(cursor.execute(Q["child_chains"], (namespace, member.run_id)).fetchall())
    return found


def erase(cursor: sqlite3.Cursor, namespace: str, members: Sequence[Member]) -> None:
    """Delete whole chains, with everything that belongs to them: long journals and inboxes in later transactions."""
    failed = [UUID(bytes=member.run_id) for member in members if member.state == RunState.FAILED]
    dead_letters.forget(cursor, namespace, failed)
    ids = [(namespace, member.run_id) for member in members]
    is_long = sum(member.head + 1 for member in members) > MOST_ENTRIES
    for statement in ("leave_for_later",) if is_long else ("delete_journal", "delete_inbox"):
        cursor.executemany(Q[statement], ids)
    for statement in ("delete_outputs", "delete_attempts"):
        cursor.executemany(Q[statement], ids)
    cursor.executemany(Q["delete_run"], ids)


def _sweep(cursor: sqlite3.Cursor, namespace: str) -> None:
    """As much as one transaction may."""
    left = MOST_ENTRIES
    while left > 0 and (row := one(cursor.execute(Q["first_leftover"], (namespace,)))) is not None:
        wanted = left
        for statement in ("delete_some_entries", "delete_some_messages"):
            left -= cursor.execute(Q[statement], (*row, left)).rowcount
        if left > 0:
            cursor.execute(Q["delete_leftover"], row)
        left -= wanted == left  # a run without more rows counts, too
