"""Runs made from others, in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager

from batuta.errors import AlreadyStarted, BatutaError, LetterResolved, RunMoved, UnknownRun
from batuta.ids import RunId
from batuta.journal.acts import Act, Changed, state_json
from batuta.journal.entries import decode_body
from batuta.journal.forks import Fork
from batuta.journal.letters import LetterState
from batuta.journal.states import RunState
from batuta.journal.store import ForkOutcome
from batuta.stores import rules
from batuta.stores.memory.audit import record
from batuta.stores.memory.letters import resolve
from batuta.stores.memory.moment import Moment
from batuta.stores.memory.tables import Row


class ForkVerbs(ABC):
    """The part of the store that makes runs from others."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Moment]: ...

    async def fork(self, forks: Sequence[Fork], act: Act) -> list[ForkOutcome]:
        with self.transaction() as moment:
            return [_fork(moment, fork, act) for fork in forks]


def _fork(moment: Moment, fork: Fork, act: Act) -> ForkOutcome:
    known = moment.room.rows.get(fork.new.run_id)
    if known is not None:
        return known.snapshot()  # written again because the first answer was lost
    for one, _ in fork.family():
        if (refusal := _refusal(moment, one)) is not None:
            return refusal
    for one, parent in fork.family():
        _write(moment, one, parent, act)
    return moment.room.rows[fork.new.run_id].snapshot()


def _refusal(moment: Moment, fork: Fork) -> BatutaError | None:
    """What stands in the way."""
    room = moment.room
    source, letter = room.rows.get(fork.source), room.letters.get(fork.source)
    if source is None:
        return UnknownRun(fork.source, moment.namespace)
    if why := rules.why_moved(fork, source.run, room.current.get(source.run.id) == fork.source):
        return RunMoved(source.run.id, why)
    if rules.is_unheard(fork, room.unread(source.run.chain_id)):
        return RunMoved(source.run.id, rules.UNHEARD)
    if fork.id and (taken := room.current_row(fork.id)) is not None:
        return AlreadyStarted(fork.id, taken.run.state, "give another id")
    if fork.letter and (letter is None or letter.state is not LetterState.OPEN):
        return LetterResolved(source.run.id, letter.state if letter is not None else "no dead letter")
    return None


def _write(moment: Moment, fork: Fork, parent: RunId | None, act: Act) -> None:
    source = moment.room.rows[fork.source]
    before = state_json(source.run.state)
    if fork.letter:
        resolve(moment, [fork.source], LetterState.REPROCESSED, "", [fork.new.run_id])
    if fork.close is not None:
        reason = decode_body(fork.close).reason
        moment.close_from_outside(source, fork.close, RunState.TERMINATED, reason, quiet=True)
    if not fork.id:
        inbox = moment.room.inbox(source.run.chain_id)
        inbox.read([one.message_id for one in inbox.unread.values() if one.kind not in rules.ACKNOWLEDGED])
    row = _insert(moment, source, fork, parent)
    _read_again(moment, source.run.chain_id, row, fork)
    for message in fork.messages:
        moment.post(row.run.chain_id, message)
    moment.hint.due = True
    done = Changed(target=source.run.id, run_id=str(fork.source), before=before, after=rules.fork_said(fork))
    record(moment, act, [done])


def _insert(moment: Moment, source: Row, fork: Fork, parent: RunId | None) -> Row:
    new = rules.fork_start(fork, source.run, source.parent_policy, parent)
    chain = moment.room.rows.get(rules.chain_of(new))
    deadline = rules.deadline_of(new, moment.now, chain.run.created_at if chain is not None else moment.now)
    row = Row(rules.forked(fork, new, moment.now, deadline), parent_policy=new.parent_policy)
    row.write([*source.journal[: fork.keep + 1], *fork.entries], 0)
    row.attempts = {(attempt.seq, attempt.number): attempt for attempt in fork.attempts}
    row.published = {output.name: output for output in fork.outputs}
    moment.room.add(row)
    if row.run.head < 0:
        moment.post(row.run.chain_id, rules.successor_start(fork.new))
    return row


def _read_again(moment: Moment, before: RunId, row: Row, fork: Fork) -> None:
    inbox = moment.room.inbox(before)
    for message_id in fork.again:
        if not fork.id:
            inbox.read_again(message_id)
        elif (message := inbox.kept.get(message_id) or inbox.unread.get(message_id)) is not None:
            moment.post(row.run.chain_id, message)
