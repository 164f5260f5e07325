"""Checks a place after its case: the store against the ledger and the history of client calls."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from msgspec import UNSET, json

from batuta.clock import SECOND
from batuta.ids import RunId
from batuta.journal.entries import Body, CommandKind, Entry, EntryKind, crc_holds, decode_body
from batuta.journal.records import RunKind
from batuta.journal.states import CLOSED, PARKED, RunState
from chaos.case import Case
from chaos.delivery import Delivery
from chaos.errands import expected_errand, fails, over_the_limit, too_early, unsaved
from chaos.flows import expected_order
from chaos.journals import ANSWERS, CHILD_ANSWERS, CLOSING, OUTSIDE, Journal
from chaos.ledger import Account
from chaos.report import Tally
from chaos.talks import expected_trade

ENDED_BY_OTHERS = (RunState.TERMINATED, RunState.TIMED_OUT)
SLACK_S = 0.5
"""Tape time is a lower bound of the database's: an answer may seem to be this much older than it is."""

AT_ONCE = 16


async def read_journals(case: Case) -> dict[RunId, Journal]:
    """Every run of the place, some at a time."""
    found: dict[RunId, Journal] = {}
    runs = await case.runs()
    for first in range(0, len(runs), AT_ONCE):
        some = [run.run_id for run in runs[first : first + AT_ONCE]]
        journals = await asyncio.gather(*(_read(case, run_id) for run_id in some))
        found.update(zip(some, journals, strict=True))
    return found


async def _read(case: Case, run_id: RunId) -> Journal:
    stored, epochs = await case.store.load(run_id), await case.store.epochs(run_id)
    bodies = [decode_body(entry) for entry in stored.entries]
    return Journal(stored.run, stored.entries, bodies, epochs, stored.messages)


class Checker:
    """The judgement on one case. Every complaint names the run."""

    def __init__(self, case: Case, tally: Tally, journals: dict[RunId, Journal]) -> None:
        self._case, self._tally, self._journals = case, tally, journals
        self._account: Account = case.account
        self._ended = {record.key for record in self._account.effects("end")}

    def complain(self, what: str) -> None:
        self._tally.violate(self._case.name, what)

    def lost(self, what: str) -> None:
        self._tally.lost += 1
        self.complain(f"LOST: {what}")

    def twice(self, what: str) -> None:
        self._tally.twice += 1
        self.complain(f"COMMITTED TWICE: {what}")

    def check(self, *, parked: frozenset[str] = frozenset(), one_clock: bool = True, exact: bool = True) -> None:
        """Everything. `parked` are the ids that may, and must, end parked; without `one_clock` the store's times
        cannot be compared with the ledger's. Not `exact`: zombies were about, who may go on for a while with what is
        no longer theirs."""
        self._history()
        for journal in self._journals.values():
            self._tape(journal)
            self._answers(journal)
            self._timers(journal)
            self._ending(journal, journal.run.id in parked)
            self._effects(journal)
        Delivery(self, self._tally, self._account, self._journals).check()
        self._executions()
        self._errands(exact)
        if one_clock:
            self._begun_late()

    # -- the history of client calls

    def _history(self) -> None:
        states = {
            journal.run.id: journal.run.state
            for journal in self._journals.values()
            if journal.run.state is not RunState.CONTINUED
        }
        for record in [*self._account.calls("start", "ok"), *self._account.calls("enqueue", "ok")]:
            if record.key not in states:
                self.lost(f"the {record.op} of {record.key} was acknowledged, there is no such run")
        cancelled = {journal.run.id for journal in self._journals.values() if journal.has_cancel()}
        for record in self._account.calls("cancel", "ok"):
            if record.key not in cancelled and states.get(record.key) is not RunState.TERMINATED:
                self.lost(f"the cancel of {record.key} was acknowledged and never reached it")
        for record in self._account.calls("terminate", "ok"):
            if states.get(record.key) is not RunState.TERMINATED:
                self.lost(f"the termination of {record.key} was acknowledged, it is {states.get(record.key)}")

    # -- one journal

    def _tape(self, journal: Journal) -> None:
        run, crc, at = journal.run, 0, 0
        if run.head != len(journal.entries) - 1:
            self.lost(f"{run.id}: head is {run.head}, its journal has {len(journal.entries)} entries")
        for place, entry in enumerate(journal.entries):
            if entry.ord != place:
                self.lost(f"{run.id}: entry {place} has the number {entry.ord}")
            if not crc_holds(entry, crc):
                self.complain(f"{run.id}: entry {place} was changed")
            if entry.at < at:
                self.complain(f"{run.id}: time goes back at entry {place}")
            crc, at = entry.crc, entry.at
        if journal.epochs != sorted(journal.epochs) or any(epoch > run.epoch for epoch in journal.epochs):
            self.complain(f"{run.id}: epochs {journal.epochs} under {run.epoch}: a late write was not refused")

    def _answers(self, journal: Journal) -> None:
        pairs = journal.pairs()
        answered = Counter(body.seq for entry, body in pairs if entry.kind in ANSWERS)
        fired = Counter(body.seq for entry, body in pairs if entry.kind is EntryKind.TIMER_FIRED)
        messages = Counter(body.message_id for _, body in pairs if body.message_id)
        started = Counter(entry.kind for entry in journal.entries)[EntryKind.STARTED]
        children = Counter(body.seq for entry, body in pairs if entry.kind in CHILD_ANSWERS)
        answered += children
        for what, counts in (("answer to command", answered), ("firing of timer", fired), ("message", messages)):
            for which, times in counts.items():
                if times > 1:
                    self.twice(f"{journal.run.id}: {times} times the {what} {which}")
        if started > 1:
            self.twice(f"{journal.run.id}: it started {started} times")

    def _timers(self, journal: Journal) -> None:
        deadlines: dict[int, int] = {}
        for entry, body in journal.pairs():
            if entry.kind is EntryKind.TIMER_FIRED and entry.at < deadlines.get(body.seq, 0):
                self.complain(f"{journal.run.id}: timer {body.seq} fired {deadlines[body.seq] - entry.at} µs early")
            for command in body.commands:
                if command.kind is CommandKind.TIMER and command.value is not UNSET:
                    deadlines[command.seq] = entry.at + int(bytes(command.value))

    def _ending(self, journal: Journal, may_park: bool) -> None:
        run = journal.run
        ends = [(at, _closes(entry, body)) for at, (entry, body) in enumerate(journal.pairs()) if _closes(entry, body)]
        if run.state in PARKED or may_park:
            if not (may_park and run.state in PARKED and run.reason):
                self.complain(f"{run.id} ended {run.state} ({run.reason}), may park: {may_park}")
            return
        if run.state not in CLOSED:
            self.lost(f"{run.id} is {run.state} at the end (owner {run.owner}, wake_at {run.wake_at})")
        elif len(ends) != 1 or ends[0] != (len(journal.entries) - 1, run.state):
            self.twice(f"{run.id} is {run.state}, its journal of {len(journal.entries)} entries says {ends}")
        elif run.owner is not None or run.wake_at is not None:
            self.complain(f"{run.id} is closed, yet owned by {run.owner}, due at {run.wake_at}")
        else:
            self._result(journal)

    def _result(self, journal: Journal) -> None:
        run, last = journal.run, journal.bodies[-1]
        if run.state is RunState.CONTINUED:
            return
        if fails(run.name, _arguments(json.decode(journal.bodies[0].value or b"[]"))):
            if run.state is not RunState.FAILED:
                self.complain(f"{run.id} ended {run.state}: it always fails")
            return
        if not last.commands or last.commands[-1].value is UNSET:
            cancelled = run.state is RunState.CANCELLED and journal.has_cancel()
            if run.state not in ENDED_BY_OTHERS and not cancelled and not self._left_alone(journal):
                self.complain(f"{run.id} ended {run.state}: {last.commands[-1:]}")
            return
        told, given = json.decode(last.commands[-1].value), json.decode(journal.bodies[0].value or b"[]")
        if told != (wanted := expected(run.name, _arguments(given), told)):
            self.lost(f"{run.id} returned {told}, not {wanted}")

    def _left_alone(self, journal: Journal) -> bool:
        """Whether its parent was ended by somebody: then it is cancelled, and finds nobody to talk to."""
        parent = self._journals.get(journal.run.parent_run_id) if journal.run.parent_run_id else None
        return parent is not None and parent.run.state in ENDED_BY_OTHERS

    # -- against the ledger

    def _effects(self, journal: Journal) -> None:
        """Every journaled success has its effect."""
        for entry, body in journal.pairs():
            if entry.kind is EntryKind.ACTIVITY_DONE and journal.key(body) not in self._ended:
                self.lost(f"{journal.run.id}: {journal.key(body)} is journaled, and never happened")

    def _executions(self) -> None:
        """A `once` activity is never begun again; others are counted."""
        self._tally.again += self._account.executed_again().total()
        once = Counter(record.key for record in self._account.effects("begin") if record.once)
        for key, times in once.items():
            if times > 1:
                self.twice(f"the once activity {key} was begun {times} times")

    def _errands(self, exact: bool) -> None:
        """Limits, checkpoints and the ends of batches, as the ledger has seen them."""
        records = self._account.records
        for complaint in too_early(records):
            self.complain(complaint)
        runs = Counter(journal.run.id for journal in self._journals.values() if journal.run.kind is RunKind.JOB)
        for id, times in runs.items():
            if times > 1:
                self.twice(f"{times} runs of the job {id}")
        if exact:
            for complaint in [*over_the_limit(records), *unsaved(records)]:
                self.complain(complaint)

    def _begun_late(self) -> None:
        """Nothing is begun after its answer: only a zombie would, and it may not."""
        answers: dict[str, float] = {}
        for journal in self._journals.values():
            for key, entry in journal.answers().items():  # a routed one has two: that of its own run is the first
                answers[key] = min(entry.at / SECOND, answers.get(key, float("inf")))
        for record in self._account.effects("begin"):
            if record.key in answers and record.at > answers[record.key] + SLACK_S:
                late = record.at - answers[record.key]
                self.complain(f"{record.key} was begun {late:.2f} s after its answer (attempt {record.attempt})")


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
        case "trade":
            return expected_trade(args[0])
        case "parcel" | "slot":
            return f"reserved {args[0]}"
        case "render":
            return f"rendered {args[0]} from page 1"
        case "hold" | "waits":
            return f"released {args[0]}"
        case "steps":
            return list(range(args[1]))
        case "patience":
            return f"patient {args[0]}"
        case _:
            return expected_errand(workflow, args, told)
