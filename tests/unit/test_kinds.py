"""One table says what each kind of entry and command means."""

import re
from pathlib import Path

import batuta
from batuta.journal.entries import CommandKind, EntryKind
from batuta.journal.kinds import CALL_ERRORS, CALL_RESULTS, CLOSING_COMMANDS, CLOSING_ENTRIES, ENTRY_KINDS
from batuta.journal.states import CLOSED

SOURCE = Path(batuta.__file__).parent


def test_every_kind_of_entry_has_a_meaning() -> None:
    assert set(ENTRY_KINDS) == set(EntryKind)


def test_every_closed_state_is_reached_by_a_command_or_an_entry() -> None:
    assert {*CLOSING_COMMANDS.values(), *CLOSING_ENTRIES.values()} == CLOSED


def test_each_call_has_a_result_and_an_error() -> None:
    for command in (CommandKind.ACTIVITY, CommandKind.CHILD):
        for kinds in (CALL_RESULTS, CALL_ERRORS):
            assert [kind for kind in kinds if ENTRY_KINDS[kind].answers is command]


def test_no_other_module_lists_the_kinds_that_end_a_run() -> None:
    every_end = re.compile(r"CommandKind\.COMPLETE,\s*CommandKind\.FAIL,\s*CommandKind\.CANCELLED")
    found = [path.name for path in SOURCE.rglob("*.py") if every_end.search(path.read_text())]
    assert found == []
