"""Dead letters: rules that every store follows, as functions of values."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from batuta.clock import as_micros
from batuta.errors import InvalidInput
from batuta.ids import RunId
from batuta.journal.audit import Changed, state_json
from batuta.journal.dead_letters import DeadLetter, DeadLetterGroup, LetterFilter, LetterState, open_letter
from batuta.journal.records import NewLetter, Run

_COUNTED = frozenset({"states", "fingerprint", "name", "reason", "error", "activity"})
"""Filters by which the SQL stores count as letters come and go. Any other has the letters themselves looked through."""

Place = tuple[int, str]
"""Where a page begins: the time, and the run id or fingerprint, of the last one of the page before."""


def letter_of(run: Run, new: NewLetter, at: int) -> DeadLetter:
    """The row of a dead letter."""
    return open_letter(
        new, at, run_id=run.run_id, id=run.id, kind=run.kind, name=run.name, queue=run.queue, key=run.flow_key
    )


def changed(letter: DeadLetter, after: LetterState) -> Changed:
    """The audit log's text for a resolved dead letter."""
    before = state_json(LetterState.OPEN)
    return Changed(target=letter.id, run_id=str(letter.run_id), before=before, after=state_json(after))


def states_of(where: LetterFilter) -> list[str]:
    """The states that are asked for, each once."""
    return [state.value for state in dict.fromkeys(where.states or tuple(LetterState))]


def is_counted(where: LetterFilter) -> bool:
    """Whether groups of these are known without looking at their letters."""
    return all(name in _COUNTED or getattr(where, name) is None for name in LetterFilter.__struct_fields__)


def matches(where: LetterFilter, letter: DeadLetter) -> bool:
    return (
        (not where.states or letter.state in where.states)
        and where.fingerprint in (None, letter.fingerprint)
        and where.reason in (None, letter.reason)
        and where.name in (None, letter.name)
        and where.kind in (None, letter.kind)
        and where.queue in (None, letter.queue)
        and where.flow_key in (None, letter.key)
        and where.error in (None, letter.error)
        and where.activity in (None, letter.activity)
        and (where.id_prefix is None or letter.id.startswith(where.id_prefix))
        and (where.after is None or as_micros(letter.at) > where.after)
        and (where.before is None or as_micros(letter.at) < where.before)
    )


def grouped(letters: Iterable[DeadLetter]) -> list[DeadLetterGroup]:
    """By fingerprint, those with the newest letter first. The letters come newest first."""
    groups: dict[str, DeadLetterGroup] = {}
    for letter in letters:
        group = groups.get(letter.fingerprint)
        if group is None:
            groups[letter.fingerprint] = DeadLetterGroup(
                fingerprint=letter.fingerprint, count=1, first_at=letter.at, last_at=letter.at, example=letter
            )
        else:
            group.count += 1
            group.first_at = letter.at
    return sorted(groups.values(), key=lambda group: (group.last_at, group.fingerprint), reverse=True)


# -- cursors


def cursor_of(at: datetime, name: RunId | str) -> str:
    return f"{as_micros(at)}:{name}"


def place_of(cursor: str | None) -> Place | None:
    """Raises InvalidInput."""
    if cursor is None:
        return None
    at, _, name = cursor.partition(":")
    if not at.isdecimal() or len(at) > 18 or not name or not name.isascii() or not name.isprintable():
        raise InvalidInput(f"{cursor!r} is not a cursor: pass the cursor of the previous page")
    return int(at), name


def letter_place_of(cursor: str | None) -> tuple[int, RunId] | None:
    """The same where the name is a run id."""
    place = place_of(cursor)
    try:
        return None if place is None else (place[0], UUID(place[1]))
    except ValueError:
        raise InvalidInput(f"{cursor!r} is not a cursor: pass the cursor of the previous page") from None
