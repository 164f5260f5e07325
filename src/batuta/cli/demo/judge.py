"""Compares the ledger with the journals: did every activity run as often as it should? Values only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import UNSET, Struct, field

from batuta.authoring.backend import JournalLine
from batuta.cli.demo.ledger import Event
from batuta.journal.entries import CommandKind, EntryKind
from batuta.journal.kinds import ACTIVITY_ANSWERS


class Step(Struct):
    """One activity call, as the ledger and the journal saw it."""

    order: str
    name: str
    key: str
    began: int = 0
    finished: int = 0
    pids: list[int] = field(default_factory=list)
    line: JournalLine | None = None
    """Its journal entry."""
    answered_before: bool = False
    """Whether that entry was durable before the kill."""
    begun_before: bool = False
    finished_before: bool = False


def steps_of(
    events: Sequence[Event], before: Sequence[Event], answered: set[str], journals: dict[str, list[JournalLine]]
) -> list[Step]:
    """Every activity call. `before`: the ledger when the worker was dead; `answered`: keys that were durable then."""
    steps = {key: Step(order, name, key, line=line) for key, order, name, line in _calls(journals)}
    for event in events:
        step = steps.setdefault(event.key, Step(event.order, event.name, event.key))
        step.began += event.what == "began"
        step.finished += event.what == "finished"
        if event.pid not in step.pids:
            step.pids.append(event.pid)
    for step in steps.values():
        step.answered_before = step.key in answered
        step.begun_before = any(event.key == step.key for event in before)
        step.finished_before = any(event.key == step.key and event.what == "finished" for event in before)
    return list(steps.values())


def answered_keys(journals: dict[str, list[JournalLine]]) -> set[str]:
    """Keys of the activity calls whose answer is in the journal."""
    return {key for key, _, _, line in _calls(journals) if line is not None}


def _calls(journals: dict[str, list[JournalLine]]) -> Iterable[tuple[str, str, str, JournalLine | None]]:
    for order, lines in journals.items():
        base = lines[0].body.start.key_base if lines and lines[0].body.start is not UNSET else ""
        answers = {line.body.seq: line for line in lines if line.kind in ACTIVITY_ANSWERS}
        for line in lines:
            for command in line.body.commands:
                if command.kind is CommandKind.ACTIVITY:
                    yield f"{base}:{command.seq}:{command.name}", order, command.name, answers.get(command.seq)


def disagreements(steps: Sequence[Step]) -> list[str]:
    """Where ledger and journal do not agree, in sentences. Empty is good."""
    return [f"{step.order} {step.name}: {problem}" for step in steps for problem in _problems(step)]


def _problems(step: Step) -> Iterable[str]:
    if step.line is None:
        yield "the ledger has it, the journal has no answer"
        return
    in_flight = step.begun_before and not step.answered_before
    tries = step.line.body.attempts
    # An activity in flight when its worker was killed executes again, under the same key.
    if not tries <= step.began <= tries + in_flight:
        yield f"began {step.began} times for {tries} attempts"
    expected = int(step.line.kind is EntryKind.ACTIVITY_DONE)
    # Finished, and killed before that was durable: the one case in which it can finish twice.
    if not expected <= step.finished <= expected + (in_flight and step.finished_before):
        yield f"finished {step.finished} times instead of {expected}"
