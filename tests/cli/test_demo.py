"""`batuta demo`, as `make demo` calls it, and the judge that decides its exit code."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec import Raw

from batuta.authoring.backend import JournalLine
from batuta.cli.demo.judge import answered_keys, disagreements, steps_of
from batuta.cli.demo.ledger import Event
from batuta.journal.entries import Body, Command, CommandKind, EntryKind, StartInfo


@pytest.mark.chaos
def test_the_demo_ends_well_without_a_terminal_and_leaves_nothing_behind(tmp_path: Path) -> None:
    # covers B-03
    outcome = subprocess.run(
        [sys.executable, "-m", "batuta", "demo", "--json"],
        cwd=tmp_path,
        env={"PATH": "", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    told = json.loads(outcome.stdout)
    assert told["ok"]
    assert told["endings"]["order-1001"].startswith("completed")
    assert told["endings"]["order-1002"] == "failed: card 4000 0000 was declined"
    before = [step for step in told["activities"] if step["before_kill"]]
    assert before
    assert all(step["began"] == 1 for step in before)
    assert {step["activity"] for step in told["activities"] if step["order"] == "order-1002"} == {
        "reserve",
        "charge",
        "release",
    }
    assert not list(tmp_path.iterdir())


def events(*words: str, pid: int = 1) -> list[Event]:
    return [Event("base:1:pack", "o", "pack", what, 1, pid, 0) for what in words]


def journal(*, done: bool) -> dict[str, list[JournalLine]]:
    at = datetime(2001, 1, 1, tzinfo=UTC)
    begun = Body(start=StartInfo("order", 1, "base"), commands=[Command(1, CommandKind.ACTIVITY, "pack")])
    lines = [JournalLine(ord=0, kind=EntryKind.STARTED, at=at, body=begun)]
    if done:
        body = Body(seq=1, name="pack", value=Raw(b"null"), attempts=1)
        lines.append(JournalLine(ord=1, kind=EntryKind.ACTIVITY_DONE, at=at, body=body))
    return {"o": lines}


@pytest.mark.parametrize(
    ("before", "after", "durable", "said"),
    [
        (["began", "finished"], [], True, None),
        (["began"], ["began", "finished"], False, None),
        (["began", "finished"], ["began", "finished"], False, None),
        (["began", "finished"], ["began", "finished"], True, "began 2 times"),
        (["began"], ["began", "finished", "finished"], False, "finished 2 times"),
        (["began"], ["began", "began", "finished"], False, "began 3 times"),
        ([], ["began"], False, "finished 0 times"),
        ([], [], False, "began 0 times"),
    ],
)
def test_the_judge_allows_only_what_was_in_flight_to_begin_twice(
    before: list[str], after: list[str], durable: bool, said: str | None
) -> None:
    first = events(*before)
    answered = answered_keys(journal(done=durable))
    steps = steps_of([*first, *events(*after, pid=2)], first, answered, journal(done=True))
    problems = disagreements(steps)
    assert problems == [] if said is None else said in problems[0]


def test_the_judge_does_not_accept_work_that_the_journal_does_not_know() -> None:
    steps = steps_of(events("began", "finished"), [], set(), journal(done=False))
    assert disagreements(steps) == ["o pack: the ledger has it, the journal has no answer"]
