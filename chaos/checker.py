"""Checks a place after its case: the store against the ledger and the history of client calls."""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec import UNSET, Struct, json

from batuta.clock import SECOND
from batuta.ids import RunId
from batuta.journal.entries import Body, CommandKind, Entry, EntryKind, crc_holds, decode_body
from batuta.journal.records import Message, MessageKind, Run
from batuta.journal.states import CLOSED, PARKED, RunState
from chaos.case import Case
from chaos.flows import expected_order
from chaos.ledger import Account
from chaos.report import Tally

ANSWERS = (EntryKind.ACTIVITY_DONE, EntryKind.ACTIVITY_FAILED)
CLOSING = {
    CommandKind.COMPLETE: RunState.COMPLETED,
    CommandKind.FAIL: RunState.FAILED,
    CommandKind.CANCELLED: RunState.CANCELLED,
    CommandKind.CONTINUE: RunState.CONTINUED,
}
OUTSIDE = {EntryKind.TERMINATED: RunState.TERMINATED, EntryKind.TIMED_OUT: RunState.TIMED_OUT}
SLACK_S = 0.5
"""Tape time is a lower bound of the database's: an answer may seem to be this much older than it is."""


class Journal(Struct):
    """A run with its tape, decoded."""

    run: Run
    entries: list[Entry]
    bodies: list[Body]
    epochs: list[int]
    unread: list[Message]

    @property
    def key_base(self) -> str:
        start = self.bodies[0].start if self.bodies else UNSET
        return "" if start is UNSET else start.key_base

    def has_cancel(self) -> bool:
        """Whether a cancel has reached the run; a parked one has it in its inbox, for when it goes on."""
        waiting = self.run.state in PARKED and any(message.kind is MessageKind.CANCEL for message in self.unread)
        return waiting or any(entry.kind is EntryKind.CANCEL_REQUESTED for entry in self.entries)

    def key(self, body: Body) -> str:
        return f"{self.key_base}:{body.seq}:{body.name}"

    def answers(self) -> dict[str, Entry]:
        """Durable answers of activities, by key."""
        pairs = zip(self.entries, self.bodies, strict=True)
        return {self.key(body): entry for entry, body in pairs if entry.kind in ANSWERS}


async def read_journals(case: Case) -> dict[RunId, Journal]:
    """Every run of the place."""
    found = {}
    for run in await case.runs():
        tape = await case.store.load(run.run_id)
        bodies = [decode_body(entry) for entry in tape.entries]
        epochs = await case.store.epochs(run.run_id)
        found[run.run_id] = Journal(tape.run, tape.entries, bodies, epochs, tape.messages)
    return found


class Checker:
    """The judgement on one case. Every complaint names the run."""

    def __init__(self, case: Case, tally: Tally, journals: dict[RunId, Journal]) -> None:
        self._case, self._tally, self._journals = case, tally, journals
        self._account: Account = case.account

    def _complain(self, what: str) -> None:
        self._tally.violate(self._case.name, what)

    def _lost(self, what: str) -> None:
        self._tally.lost += 1
        self._complain(f"LOST: {what}")

    def _twice(self, what: str) -> None:
        self._tally.twice += 1
        self._complain(f"COMMITTED TWICE: {what}")

    def check(self, *, parked: frozenset[str] = frozenset(), one_clock: bool = True) -> None:
        """Everything. `parked` are the ids that may, and must, end parked; without `one_clock` the store's times
        cannot be compared with the ledger's."""
        self._history()
        for journal in self._journals.values():
            self._tape(journal)
            self._answers(journal)
            self._timers(journal)
            self._ending(journal, journal.run.id in parked)
            self._effects(journal)
        self._executions()
        if one_clock:
            self._begun_late()

    # -- the history of client calls

    def _history(self) -> None:
        runs = Counter(journal.run.id for journal in self._journals.values())
        for record in self._account.calls("start", "ok"):
            if not runs[record.key]:
                self._lost(f"the start of {record.key} was acknowledged, there is no such run")
        for id, times in runs.items():
            if times > 1:
                self._twice(f"{times} runs have the id {id}")
        cancelled = {journal.run.id for journal in self._journals.values() if journal.has_cancel()}
        states = {journal.run.id: journal.run.state for journal in self._journals.values()}
        for record in self._account.calls("cancel", "ok"):
            if record.key not in cancelled and states.get(record.key) is not RunState.TERMINATED:
                self._lost(f"the cancel of {record.key} was acknowledged and never reached it")
        for record in self._account.calls("terminate", "ok"):
            if states.get(record.key) is not RunState.TERMINATED:
                self._lost(f"the termination of {record.key} was acknowledged, it is {states.get(record.key)}")

    # -- one journal

    def _tape(self, journal: Journal) -> None:
        run, crc, at = journal.run, 0, 0
        if run.head != len(journal.entries) - 1:
            self._lost(f"{run.id}: head is {run.head}, its journal has {len(journal.entries)} entries")
        for place, entry in enumerate(journal.entries):
            if entry.ord != place:
                self._lost(f"{run.id}: entry {place} has the number {entry.ord}")
            if not crc_holds(entry, crc):
                self._complain(f"{run.id}: entry {place} was changed")
            if entry.at < at:
                self._complain(f"{run.id}: time goes back at entry {place}")
            crc, at = entry.crc, entry.at
        if journal.epochs != sorted(journal.epochs) or any(epoch > run.epoch for epoch in journal.epochs):
            self._complain(f"{run.id}: epochs {journal.epochs} under {run.epoch}: a late write was not refused")

    def _answers(self, journal: Journal) -> None:
        pairs = list(zip(journal.entries, journal.bodies, strict=True))
        answered = Counter(body.seq for entry, body in pairs if entry.kind in ANSWERS)
        fired = Counter(body.seq for entry, body in pairs if entry.kind is EntryKind.TIMER_FIRED)
        messages = Counter(body.message_id for _, body in pairs if body.message_id)
        started = Counter(entry.kind for entry in journal.entries)[EntryKind.STARTED]
        for what, counts in (("answer to command", answered), ("firing of timer", fired), ("message", messages)):
            for which, times in counts.items():
                if times > 1:
                    self._twice(f"{journal.run.id}: {times} times the {what} {which}")
        if started > 1:
            self._twice(f"{journal.run.id}: it started {started} times")

    def _timers(self, journal: Journal) -> None:
        deadlines: dict[int, int] = {}
        for entry, body in zip(journal.entries, journal.bodies, strict=True):
            if entry.kind is EntryKind.TIMER_FIRED and entry.at < deadlines.get(body.seq, 0):
                self._complain(f"{journal.run.id}: timer {body.seq} fired {deadlines[body.seq] - entry.at} µs early")
            for command in body.commands:
                if command.kind is CommandKind.TIMER and command.value is not UNSET:
                    deadlines[command.seq] = entry.at + int(bytes(command.value))

    def _ending(self, journal: Journal, may_park: bool) -> None:
        run = journal.run
        ends = [(at, _closes(entry, body)) for at, (entry, body) in enumerate(_pairs(journal)) if _closes(entry, body)]
        if run.state in PARKED or may_park:
            if not (may_park and run.state in PARKED and run.reason):
                self._complain(f"{run.id} ended {run.state} ({run.reason}), may park: {may_park}")
            return
        if run.state not in CLOSED:
            self._lost(f"{run.id} is {run.state} at the end (owner {run.owner}, wake_at {run.wake_at})")
        elif len(ends) != 1 or ends[0] != (len(journal.entries) - 1, run.state):
            self._twice(f"{run.id} is {run.state}, its journal of {len(journal.entries)} entries says {ends}")
        elif run.owner is not None or run.wake_at is not None:
            self._complain(f"{run.id} is closed, yet owned by {run.owner}, due at {run.wake_at}")
        else:
            self._result(journal)

    def _result(self, journal: Journal) -> None:
        run, last = journal.run, journal.bodies[-1]
        if not last.commands or last.commands[-1].value is UNSET:
            if run.state is not RunState.TERMINATED and run.state is not RunState.TIMED_OUT:
                self._complain(f"{run.id} ended {run.state}: {last.commands[-1:]}")
            return
        told, given = json.decode(last.commands[-1].value), json.decode(journal.bodies[0].value or b"[]")
        if told != (wanted := expected(run.name, _arguments(given), told)):
            self._lost(f"{run.id} returned {told}, not {wanted}")

    # -- against the ledger

    def _effects(self, journal: Journal) -> None:
        """Every journaled success has its effect."""
        ended = {record.key for record in self._account.effects("end")}
        for entry, body in _pairs(journal):
            if entry.kind is EntryKind.ACTIVITY_DONE and journal.key(body) not in ended:
                self._lost(f"{journal.run.id}: {journal.key(body)} is journaled, and never happened")

    def _executions(self) -> None:
        """A `once` activity is never begun again; others are counted."""
        self._tally.again += self._account.executed_again().total()
        once = Counter(record.key for record in self._account.effects("begin") if record.once)
        for key, times in once.items():
            if times > 1:
                self._twice(f"the once activity {key} was begun {times} times")

    def _begun_late(self) -> None:
        """Nothing is begun after its answer: only a zombie would, and it may not."""
        answers = {key: entry.at / SECOND for j in self._journals.values() for key, entry in j.answers().items()}
        for record in self._account.effects("begin"):
            if record.key in answers and record.at > answers[record.key] + SLACK_S:
                late = record.at - answers[record.key]
                self._complain(f"{record.key} was begun {late:.2f} s after its answer (attempt {record.attempt})")


def _pairs(journal: Journal) -> list[tuple[Entry, Body]]:
    return list(zip(journal.entries, journal.bodies, strict=True))


def _closes(entry: Entry, body: Body) -> RunState | None:
    if entry.kind in OUTSIDE:
        return OUTSIDE[entry.kind]
    return next((CLOSING[command.kind] for command in body.commands if command.kind in CLOSING), None)


def _arguments(given: Any) -> list[Any]:
    return list(given["args"]) if isinstance(given, dict) else list(given)


def expected(workflow: str, args: list[Any], told: Any) -> Any:
    """What a run of `chaos.flows` must return."""
    match workflow:
        case "order":
            return expected_order(args[0], told)
        case "hold" | "waits":
            return f"released {args[0]}"
        case "steps":
            return list(range(args[1]))
        case "patience":
            return f"patient {args[0]}"
        case _:
            return told
