"""I15: dead letters belong to failed runs, and their groups have the right counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from uuid import UUID

from batuta.engine.backend.follow_chain import find_run
from batuta.errors import UnknownLetter
from batuta.journal.dead_letters import DeadLetter, DeadLetterPage, LetterFilter, LetterState
from batuta.journal.paging import all_pages
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.verify.report import Report, Violation

_PAGE = 500


async def check_letters(store: Store, report: Report) -> None:
    """Check all of them. A change during the check is looked at again before it is reported."""
    counted: Counter[tuple[str, LetterState]] = Counter()
    examples: dict[str, DeadLetter] = {}
    async for page in _pages(store, LetterFilter(states=())):
        for letter in page.letters:
            report.checked["I15"] += 1
            counted[letter.fingerprint, letter.state] += 1
            examples[letter.fingerprint] = letter
            if (what := await _wrong(store, letter)) and await _is_unmoved(store, letter):
                report.add(Violation("I15", letter.id, letter.run_id, what))
    for state in LetterState:
        kinds = {fingerprint: count for (fingerprint, found), count in counted.items() if found is state}
        if await store.count_letters(LetterFilter(states=(state,))) != sum(kinds.values()):
            await _tell_miscounted(store, report, LetterFilter(states=(state,)), None)
        for fingerprint, count in kinds.items():
            where = LetterFilter(states=(state,), fingerprint=fingerprint)
            if await store.count_letters(where) != count:
                await _tell_miscounted(store, report, where, examples[fingerprint])


def _pages(store: Store, where: LetterFilter) -> AsyncIterator[DeadLetterPage]:
    return all_pages(lambda cursor: store.letters(where, cursor, _PAGE))


async def _tell_miscounted(store: Store, report: Report, where: LetterFilter, example: DeadLetter | None) -> None:
    if what := await _miscounted(store, where):
        id, run_id = ("", UUID(int=0)) if example is None else (example.id, example.run_id)
        report.add(Violation("I15", id, run_id, what))


async def _wrong(store: Store, letter: DeadLetter) -> str:
    run = await find_run(store, letter.run_id)
    if run is None:
        return "its dead letter exists, but the run does not"
    if run.state is not RunState.FAILED:
        return f"it is a dead letter, and is {run.state}"
    if (letter.state is LetterState.REPROCESSED) != (letter.successor is not None):
        return f"its dead letter is {letter.state}, and its successor is {letter.successor}"
    new = None if letter.successor is None else await find_run(store, letter.successor)
    if new is None:  # there is none, or it was deleted
        return ""
    if new.chain_id == letter.run_id or new.id == letter.id:
        return ""
    return f"run {new.run_id} is recorded as the successor of its dead letter, but was not made from it"


async def _is_unmoved(store: Store, letter: DeadLetter) -> bool:
    try:
        return await store.letter(letter.run_id) == letter
    except UnknownLetter:
        return False


async def _miscounted(store: Store, where: LetterFilter) -> str:
    """Counted and listed in between two counts that agree, so that letters which come and go are no false alarm."""
    before = await store.count_letters(where)
    listed = sum([len(page.letters) async for page in _pages(store, where)])
    if listed == before or await store.count_letters(where) != before:
        return ""
    kind = "" if where.fingerprint is None else " of its kind"
    return f"{listed} dead letters{kind} are {where.states[0]}, and {before} are counted"
