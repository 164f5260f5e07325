"""Journals recorded once are replayed for ever, on every Python: the same commands and the same end."""

import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from batuta.engine.machine.identity import RunIdentity
from batuta.engine.machine.machine import Machine
from batuta.engine.machine.replay import Replay
from batuta.errors import Nondeterministic
from batuta.journal.entries import Body, CommandKind, EntryKind, StartInfo, crc_holds, decode_body
from tests.replay.journals import Journal, load_all
from tests.replay.record import PYTHON, SCENARIOS, WORKFLOWS

JOURNALS = load_all()
DIFFER_BY_PYTHON = {"waits_for_several", "waits_for"}
"""Workflows whose commands come in another order on another Python: equal or refused, never something else."""

each_journal = pytest.mark.parametrize("journal", JOURNALS, ids=lambda j: f"{j.name}-{j.python}")


def replayed(journal: Journal) -> tuple[Machine, list[str]]:
    workflow: Any = WORKFLOWS[journal.workflow]
    machine = Machine(workflow, RunIdentity("a run", "id", "default", "default"))  # type: ignore[arg-type]  # any name
    replay = Replay(machine, journal.journal_entries())
    replay.run()
    machine.tear_down()
    return machine, replay.warnings


def is_refused(journal: Journal) -> bool:
    try:
        replayed(journal)
    except Nondeterministic as error:
        return error.expected != error.got
    return False


@each_journal
def test_a_recorded_journal_replays(journal: Journal) -> None:  # covers B-09, A-10
    if journal.python != PYTHON and journal.workflow in DIFFER_BY_PYTHON and is_refused(journal):
        return
    machine, warnings = replayed(journal)
    assert warnings == []
    last = journal.journal_entries()[-1]
    if last.kind not in (EntryKind.TERMINATED, EntryKind.TIMED_OUT):
        outcome = decode_body(last).commands[-1]
        assert machine.outcome is not None
        assert (machine.outcome.kind, machine.outcome.seq) == (outcome.kind, outcome.seq)
        assert machine.outcome.value == outcome.value


def test_wait_for_in_a_gather_is_refused_across_pythons_that_order_it_otherwise() -> None:
    old_or_new = PYTHON == "3.11"
    for journal in JOURNALS:
        if journal.workflow == "waits_for_several" and (journal.python == "3.11") != old_or_new:
            with pytest.raises(Nondeterministic):
                replayed(journal)


@each_journal
def test_a_recorded_journal_is_unbroken(journal: Journal) -> None:
    crc, at = 0, 0
    for number, entry in enumerate(journal.journal_entries()):
        assert entry.ord == number
        assert entry.at >= at
        assert crc_holds(entry, crc)
        crc, at = entry.crc, entry.at


def test_every_scenario_is_recorded_on_every_python() -> None:
    recorded = {(journal.name, journal.python) for journal in JOURNALS}
    assert {(name, python) for name in SCENARIOS for python in ("3.11", "3.12", "3.13")} <= recorded


def test_the_journals_show_every_way_a_run_can_end() -> None:
    ends = {"completed", "failed", "cancelled", "terminated", "timed_out", "continued"}
    assert {journal.state for journal in JOURNALS} == ends


def test_the_journals_hold_all_that_a_journal_can_hold() -> None:
    kinds, commands, words = set(), set(), set()
    for journal in JOURNALS:
        for entry in journal.journal_entries():
            body = decode_body(entry)
            kinds.add(entry.kind)
            commands |= {command.kind for command in body.commands}
            words |= set(msgspec.json.decode(entry.body)) | set(msgspec.json.decode(entry.body).get("start", ()))
    assert set(EntryKind) - kinds == {EntryKind.CANCELLED}  # of jobs, which are not replayed
    assert set(CommandKind) == commands
    # Of the start: they say nothing to the code, but for the time that is left.
    rare = {"timeout", "execution_timeout", "chain_at", "trace", "mark", "delay"}
    assert {*Body.__struct_fields__, *StartInfo.__struct_fields__} - words <= rare


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_replay_does_not_depend_on_the_hash_seed(seed: str) -> None:
    program = (
        "from tests.replay.test_journals import JOURNALS, PYTHON, replayed\n"
        "for journal in JOURNALS:\n"
        "    if journal.python == PYTHON: replayed(journal)\n"
    )
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
