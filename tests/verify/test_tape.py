"""What a journal alone can tell, entry by entry."""

from collections.abc import Callable

import pytest
from msgspec import Raw
from msgspec.structs import replace

from batuta.clock import SECOND
from batuta.journal.entries import Body, Command, CommandKind, Entry, EntryKind, StartInfo, encode_entry
from batuta.verify.journal import JournalCheck

A, T, C = CommandKind.ACTIVITY, CommandKind.TIMER, CommandKind.CANCEL
Turn = tuple[EntryKind, int, Body]


def started(*commands: Command) -> Turn:
    return EntryKind.STARTED, 0, Body(start=StartInfo("w", 1, "k"), commands=list(commands))


def turn(kind: EntryKind, at: int, seq: int, *commands: Command) -> Turn:
    return kind, at, Body(seq=seq, commands=list(commands))


def timer(seq: int, delay: int) -> Command:
    return Command(seq, T, "", Raw(b"%d" % delay))


def journal_of(*turns: Turn) -> list[Entry]:
    entries: list[Entry] = []
    for place, (kind, at, body) in enumerate(turns):
        entries.append(encode_entry(place, kind, at, body, entries[-1].crc if entries else 0))
    return entries


def findings(entries: list[Entry]) -> list[str]:
    found: list[str] = []
    check = JournalCheck(lambda invariant, what: found.append(invariant))
    for entry in entries:
        check.feed(entry)
    return found


GOOD = journal_of(
    started(Command(1, A, "a"), timer(2, SECOND), timer(3, 9 * SECOND)),
    turn(EntryKind.ACTIVITY_DONE, 5, 1, Command(4, A, "b"), Command(5, A, "c")),
    turn(EntryKind.TIMER_FIRED, SECOND, 2, Command(6, C, "c", target=5)),
    turn(EntryKind.ACTIVITY_FAILED, SECOND, 4, Command(7, CommandKind.COMPLETE)),
)


def test_a_good_journal_is_good() -> None:
    assert findings(GOOD) == []


KIDS = started(Command(1, CommandKind.CHILD, "w", to="x"), Command(2, CommandKind.CHILD, "w", to="y"))


@pytest.mark.parametrize(
    "turns",
    [
        [turn(EntryKind.CHILD_DONE, 9, 2), turn(EntryKind.CHILD_FAILED, 9, 1)],
        [turn(EntryKind.CHILD_DONE, 9, 2, Command(3, C, target=1, to="x")), turn(EntryKind.CHILD_FAILED, 9, 1)],
        [turn(EntryKind.ACCEPTED, 9, 1), turn(EntryKind.REFUSED, 9, 2), turn(EntryKind.CHILD_DONE, 9, 1)],
        [turn(EntryKind.CHILD_DONE, 9, 1, Command(3, CommandKind.CONTINUE))],
    ],
)
def test_children_answer_once_or_never(turns: list[Turn]) -> None:
    assert findings(journal_of(KIDS, *turns)) == []


def test_a_child_that_was_refused_does_not_answer() -> None:
    assert findings(journal_of(KIDS, turn(EntryKind.REFUSED, 9, 2), turn(EntryKind.CHILD_DONE, 9, 2))) == ["I3"]


def test_a_message_that_is_read_twice_is_found() -> None:
    reads = (EntryKind.SIGNAL, 9, Body(message_id="m"))
    assert findings(journal_of(started(), reads)) == []
    assert findings(journal_of(started(), reads, reads)) == ["I10"]


@pytest.mark.parametrize(
    ("turns", "invariant"),
    [
        ([turn(EntryKind.ACTIVITY_DONE, 9, 1), turn(EntryKind.ACTIVITY_DONE, 9, 1)], "I3"),
        ([turn(EntryKind.ACTIVITY_DONE, 9, 7)], "I3"),
        ([turn(EntryKind.ACTIVITY_DONE, 9, 2)], "I3"),
        ([turn(EntryKind.CANCEL_REQUESTED, 9, 0, Command(3, C, target=1)), turn(EntryKind.ACTIVITY_DONE, 9, 1)], "I3"),
        ([turn(EntryKind.CANCEL_REQUESTED, 9, 0), turn(EntryKind.ACTIVITY_DONE, 8, 1)], "I4"),
        ([turn(EntryKind.ACTIVITY_DONE, 9, 1, Command(4, A, "b"))], "I4"),
        ([turn(EntryKind.TIMED_OUT, 9, 0), turn(EntryKind.ACTIVITY_DONE, 9, 1)], "I5"),
        ([turn(EntryKind.ACTIVITY_DONE, 9, 1, Command(3, CommandKind.FAIL), Command(4, CommandKind.COMPLETE))], "I5"),
        ([turn(EntryKind.TIMER_FIRED, SECOND - 1, 2)], "I9"),
        ([turn(EntryKind.TIMER_FIRED, SECOND, 2), turn(EntryKind.TIMER_FIRED, SECOND, 2)], "I9"),
        ([turn(EntryKind.TIMER_FIRED, SECOND, 1)], "I9"),
        ([started()], "I1"),
    ],
)
def test_a_turn_that_cannot_have_been_is_found(turns: list[Turn], invariant: str) -> None:
    assert findings(journal_of(started(Command(1, A, "a"), timer(2, SECOND)), *turns)) == [invariant]


@pytest.mark.parametrize(
    ("tamper", "invariant"),
    [
        (lambda entries: [entries[0], replace(entries[1], body=entries[1].body.replace("b", "x")), *entries[2:]], "I3"),
        (lambda entries: [entries[0], replace(entries[1], at=entries[1].at - 1), *entries[2:]], "I3"),
        (lambda entries: [entries[0], replace(entries[1], body="{"), *entries[2:]], "I3"),
        (lambda entries: [entries[0], *entries[2:]], "I4"),
        (lambda entries: entries[1:], "I4"),
    ],
)
def test_a_journal_that_was_changed_afterwards_is_found(
    tamper: Callable[[list[Entry]], list[Entry]], invariant: str
) -> None:
    assert invariant in findings(tamper(GOOD))
