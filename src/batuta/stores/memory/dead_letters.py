"""Dead letters in memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from msgspec.structs import replace

from batuta.clock import as_datetime, as_micros
from batuta.errors import UnknownLetter
from batuta.ids import RunId
from batuta.journal.audit import Act
from batuta.journal.dead_letters import DeadLetter, DeadLetterGroups, DeadLetterPage, LetterFilter, LetterState
from batuta.stores.contract.dead_letters import changed, cursor_of, grouped, letter_place_of, matches, place_of
from batuta.stores.memory.audit import record
from batuta.stores.memory.base import Base, verb
from batuta.stores.memory.tables import NamespaceTables
from batuta.stores.memory.unit_of_work import UnitOfWork


class DeadLetterVerbs(Base):
    @verb
    def letter(self, unit: UnitOfWork, run_id: RunId) -> DeadLetter:
        found = unit.tables.letters.get(run_id)
        if found is None:
            raise UnknownLetter(str(run_id))
        return replace(found)

    @verb
    def letters(
        self, unit: UnitOfWork, where: LetterFilter, cursor: str | None = None, limit: int = 50
    ) -> DeadLetterPage:
        before = letter_place_of(cursor)
        found = _newest_first(unit.tables, where)
        rest = [replace(each) for each in found if before is None or (as_micros(each.at), each.run_id) < before]
        page = rest[:limit]
        return DeadLetterPage(page, cursor_of(page[-1].at, page[-1].run_id) if len(rest) > limit else None)

    @verb
    def letter_groups(
        self, unit: UnitOfWork, where: LetterFilter, cursor: str | None = None, limit: int = 50
    ) -> DeadLetterGroups:
        before = place_of(cursor)
        groups = grouped(replace(each) for each in _newest_first(unit.tables, where))
        rest = [group for group in groups if before is None or (as_micros(group.last_at), group.fingerprint) < before]
        page = rest[:limit]
        return DeadLetterGroups(page, cursor_of(page[-1].last_at, page[-1].fingerprint) if len(rest) > limit else None)

    @verb
    def count_letters(self, unit: UnitOfWork, where: LetterFilter) -> int:
        return sum(matches(where, each) for each in unit.tables.letters.values())

    @verb
    def discard_letters(self, unit: UnitOfWork, run_ids: Sequence[RunId], act: Act) -> list[RunId]:
        discarded = resolve(unit, run_ids, LetterState.DISCARDED, act.reason)
        letters = [unit.tables.letters[run_id] for run_id in discarded]
        record(unit, act, (changed(letter, LetterState.DISCARDED) for letter in letters))
        return discarded


def resolve(
    unit: UnitOfWork,
    run_ids: Sequence[RunId],
    state: LetterState,
    note: str = "",
    successors: Sequence[RunId] | None = None,
) -> list[RunId]:
    """Mark those of them that are open, and give them back."""
    resolved: list[RunId] = []
    for run_id, successor in zip(run_ids, successors or repeat(None), strict=False):
        letter = unit.tables.letters.get(run_id)
        if letter is not None and letter.state is LetterState.OPEN:
            letter.state, letter.note, letter.successor = state, note, successor
            letter.resolved_at = as_datetime(unit.now)
            resolved.append(run_id)
    return resolved


def _newest_first(room: NamespaceTables, where: LetterFilter) -> list[DeadLetter]:
    found = [each for each in room.letters.values() if matches(where, each)]
    return sorted(found, key=lambda each: (each.at, each.run_id), reverse=True)
