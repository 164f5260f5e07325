"""Runs made from others, in memory."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.errors import AlreadyStarted, BatutaError, LetterResolved, RunMoved, UnknownRun
from batuta.ids import RunId
from batuta.journal.audit import Act, Changed, state_json
from batuta.journal.dead_letters import LetterState
from batuta.journal.entries import decode_body
from batuta.journal.forks import Fork
from batuta.journal.states import RunState
from batuta.journal.store import ForkOutcome
from batuta.stores.contract import rules
from batuta.stores.memory.audit import record
from batuta.stores.memory.base import Base, verb
from batuta.stores.memory.dead_letters import resolve
from batuta.stores.memory.tables import Row
from batuta.stores.memory.unit_of_work import UnitOfWork


class ForkVerbs(Base):
    @verb
    def fork(self, unit: UnitOfWork, forks: Sequence[Fork], act: Act) -> list[ForkOutcome]:
        return [_fork(unit, fork, act) for fork in forks]


def _fork(unit: UnitOfWork, fork: Fork, act: Act) -> ForkOutcome:
    known = unit.tables.rows.get(fork.new.run_id)
    if known is not None:
        return known.snapshot()  # written again because the first answer was lost
    for one, _ in fork.family():
        if (refusal := _refusal(unit, one)) is not None:
            return refusal
    for one, parent in fork.family():
        _write(unit, one, parent, act)
    return unit.tables.rows[fork.new.run_id].snapshot()


def _refusal(unit: UnitOfWork, fork: Fork) -> BatutaError | None:
    """The conflict."""
    room = unit.tables
    source, letter = room.rows.get(fork.source), room.letters.get(fork.source)
    if source is None:
        return UnknownRun(fork.source, unit.namespace)
    if why := rules.why_moved(fork, source.run, room.current.get(source.run.id) == fork.source):
        return RunMoved(source.run.id, why)
    if rules.is_unheard(fork, room.unread(source.run.chain_id)):
        return RunMoved(source.run.id, rules.UNHEARD)
    if fork.id and (taken := room.current_row(fork.id)) is not None:
        return AlreadyStarted(fork.id, taken.run.state, "give another id")
    if fork.letter and (letter is None or letter.state is not LetterState.OPEN):
        return LetterResolved(source.run.id, letter.state if letter is not None else "no dead letter")
    return None


def _write(unit: UnitOfWork, fork: Fork, parent: RunId | None, act: Act) -> None:
    source = unit.tables.rows[fork.source]
    before = state_json(source.run.state)
    if fork.letter:
        resolve(unit, [fork.source], LetterState.REPROCESSED, "", [fork.new.run_id])
    if fork.close is not None:
        reason = decode_body(fork.close).reason
        unit.close_from_outside(source, fork.close, RunState.TERMINATED, reason, quiet=True)
    if not fork.id:
        inbox = unit.tables.inbox(source.run.chain_id)
        kept = rules.kept_for_the_next(fork)
        inbox.read([one.message_id for one in inbox.unread.values() if one.kind not in kept])
    row = _insert(unit, source, fork, parent)
    _read_again(unit, source.run.chain_id, row, fork)
    for message in fork.messages:
        unit.post(row.run.chain_id, message)
    unit.hint.due = True
    done = Changed(target=source.run.id, run_id=str(fork.source), before=before, after=rules.fork_said(fork))
    record(unit, act, [done])


def _insert(unit: UnitOfWork, source: Row, fork: Fork, parent: RunId | None) -> Row:
    new = rules.fork_start(fork, source.run, source.parent_policy, parent)
    chain = unit.tables.rows.get(rules.chain_of(new))
    deadline = rules.deadline_of(new, unit.now, chain.run.created_at if chain is not None else unit.now)
    row = Row(rules.forked(fork, new, unit.now, deadline), parent_policy=new.parent_policy)
    row.write([*source.journal[: fork.keep + 1], *fork.entries], 0)
    row.attempts = {(attempt.seq, attempt.number): attempt for attempt in fork.attempts}
    row.published = {output.name: output for output in fork.outputs}
    unit.tables.add(row)
    if row.run.head < 0:
        unit.post(row.run.chain_id, rules.successor_start(fork.new))
    return row


def _read_again(unit: UnitOfWork, before: RunId, row: Row, fork: Fork) -> None:
    inbox = unit.tables.inbox(before)
    for message_id in fork.again:
        if not fork.id:
            inbox.read_again(message_id)
        elif (message := inbox.kept.get(message_id) or inbox.unread.get(message_id)) is not None:
            unit.post(row.run.chain_id, message)
