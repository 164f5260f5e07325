"""A commit: changes one after another, each under its run's fence."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.ids import RunId
from batuta.journal.records import PAUSES, Attempt, Change, Effects, Move, NewRun, OutputKind, Refusal, Send, Verdict
from batuta.journal.states import CLOSED, RunState
from batuta.stores.contract import rules
from batuta.stores.contract.dead_letters import letter_of
from batuta.stores.memory.queues import may_begin_at_once
from batuta.stores.memory.tables import Row
from batuta.stores.memory.unit_of_work import UnitOfWork


class Commit:
    """The changes of one batch.

    They have no order between runs. Here they happen one after another: a message to a run that an earlier change of
    the batch has closed is refused, and a later change that would close its receiver finds it unread. Parents and
    children are notified last: those that close in the same batch need no message.
    """

    def __init__(self, unit: UnitOfWork, worker_id: str) -> None:
        self._unit = unit
        self._tables = unit.tables
        self._worker_id = worker_id

    def write(self, changes: Sequence[Change]) -> dict[int, Verdict | list[Refusal]]:
        answers: dict[int, Verdict | list[Refusal]] = {}
        closed: list[tuple[Change, Move, bool]] = []
        for index, change in enumerate(changes):
            verdict = self.judge(change)
            if isinstance(verdict, Verdict):
                answers[index] = verdict
                continue
            if verdict:
                self._apply(change)
            if refusals := self._reach_out(change, again=not verdict):
                answers[index] = refusals
            if change.move is not None and change.move.state in CLOSED:
                closed.append((change, change.move, not verdict))
        for change, move, again in closed:
            self._tell_kin(self._tables.rows[change.run_id], move, again=again)
        return answers

    def foreseen(self, change: Change) -> list[Refusal]:
        """The children and sends of a change that will be refused. Nothing is written, for nothing can be undone."""
        if change.effects is None:
            return []
        refusals: list[Refusal] = []
        begun: dict[str, tuple[str, str]] = {}
        for new in change.effects.children:
            taken = self._tables.current_row(new.id)
            if new.id in begun:
                refusals.append(rules.id_taken(new, RunState.PENDING, *begun[new.id]))
            elif taken is not None and not self._may_replace(new, taken):
                refusals.append(rules.id_taken(new, taken.run.state, taken.run.kind, taken.run.name))
            begun.setdefault(new.id, (new.kind, new.name))
        for send in change.effects.sends:
            target = self._tables.current_row(send.id)
            if send.id in begun:
                continue
            if target is None:
                refusals.append(rules.no_receiver(send))
            elif not target.is_open or (target.run.run_id == change.run_id and _closes(change.move)):
                refusals.append(rules.receiver_closed(send, target.run.state))
        return refusals

    def judge(self, change: Change) -> Verdict | bool:
        """The fence: True to write it, False when it exists already."""
        row = self._tables.rows.get(change.run_id)
        verdict = self._judge_start(change) if row is None else self._judge_owned(row, change)
        if verdict is True and rules.must_read(change.move):
            unread = self._tables.unread(self._chain_of(change))
            return Verdict.UNREAD if rules.is_unread(unread, change) else True
        return verdict

    def _chain_of(self, change: Change) -> RunId:
        row = self._tables.rows.get(change.run_id)
        if row is not None:
            return row.run.chain_id
        return change.run_id if change.start is None else rules.chain_of(change.start)

    def _judge_owned(self, row: Row, change: Change) -> Verdict | bool:
        run, last = row.run, row.journal[-1] if row.journal else None
        crc = None if last is None else last.crc
        standing = rules.Standing(run.epoch, run.head, not row.is_open, run.owner, crc)
        return rules.judge(change, self._worker_id, standing)

    def _judge_start(self, change: Change) -> Verdict | bool:
        if change.start is None or not self._tables.is_live(self._worker_id, self._unit.now):
            return Verdict.REFUSED
        taken = self._tables.current_row(change.start.id)
        if taken is not None and not self._may_replace(change.start, taken):
            return Verdict.EXISTS
        return True if may_begin_at_once(self._tables, change.start.queue) else Verdict.QUEUED

    def _may_replace(self, new: NewRun, taken: Row) -> bool:
        return rules.may_replace(new, not taken.is_open, taken.run.created_at, self._unit.now)

    def _apply(self, change: Change) -> None:
        row = self._tables.rows.get(change.run_id)
        was_suspect = row is not None and row.is_suspect
        if row is None:
            assert change.start is not None  # noqa: S101 (judged before)
            row = self._unit.insert(change.start, epoch=change.epoch, owner=self._worker_id)
        row.write(change.entries, change.epoch)
        self._tables.inbox(row.run.chain_id).read(change.consumed)
        for attempt in change.attempts:
            row.note(attempt)
            if (old := attempt.replaces) is not None:
                row.attempts.pop((attempt.seq, old), None)
        if change.move is not None:
            self._unit.move(row, change.move)
        if change.effects is not None:
            self._leave(row, change.effects)
        if was_suspect and not (row.is_suspect and row.run.owner):
            self._unit.hint.due = True  # its owner may take another one now

    def _leave(self, row: Row, effects: Effects) -> None:
        """The end of a run: outputs, the run that follows it, or a dead letter."""
        for output in effects.outputs:
            if output.kind is OutputKind.PUBLISHED:
                row.published[output.name] = output
                continue
            if output.kind is OutputKind.COMPENSATION:
                row.compensation = output.value
                continue
            self._tables.answers[row.run.chain_id, output.name] = output
            if self._unit.hint.answered is not None:
                self._unit.hint.answered.append(row.run.chain_id)
        if effects.successor is not None:
            new = rules.follower(row.run, row.parent_policy, row.run.flow_key, effects.successor)
            self._follow(row, new)
        if effects.letter is not None:
            self._tables.letters[row.run.run_id] = letter_of(row.run, effects.letter, self._unit.now)

    def _follow(self, row: Row, new: NewRun) -> None:
        pauses = [one for one in row.attempts.values() if one.seq == PAUSES] if new.execution_timeout else []
        paused = sum((one.ended_at or 0) - one.started_at for one in pauses)
        new.execution_timeout += paused
        follower, now = self._unit.begin(new, row.run.deadline), self._unit.now
        if paused:  # the chain's time is as much later, also for the runs after this one
            follower.attempts[PAUSES, 0] = Attempt(seq=PAUSES, number=0, started_at=now - paused, ended_at=now)

    def _reach_out(self, change: Change, *, again: bool) -> list[Refusal]:
        """Children and sends, also of a change that was written before: those that were accepted then are known now."""
        if change.effects is None:
            return []
        refused = [self._start_child(new) for new in change.effects.children]
        refused += [self._send(send, again=again or send.again) for send in change.effects.sends]
        return [refusal for refusal in refused if refusal is not None]

    def _tell_kin(self, row: Row, move: Move, *, again: bool) -> None:
        """After its last sends: a parent reads its child's messages before the child's end."""
        if move.outcome and not again and move.state is not RunState.CONTINUED:
            self._unit.tell_parent(row, move.outcome)
        if move.children:
            self._unit.tell_children(row)

    def _start_child(self, new: NewRun) -> Refusal | None:
        if new.run_id in self._tables.rows:
            return None
        taken = self._tables.current_row(new.id)
        if taken is not None and not self._may_replace(new, taken):
            return rules.id_taken(new, taken.run.state, taken.run.kind, taken.run.name)
        self._unit.begin(new)
        return None

    def _send(self, send: Send, *, again: bool) -> Refusal | None:
        target = self._tables.current_row(send.id)
        if target is None:
            return rules.no_receiver(send)
        chains = {target.run.chain_id}
        if again:
            chains.update(row.run.chain_id for row in self._tables.rows.values() if row.run.id == send.id)
        if any(send.message.message_id in self._tables.inbox(chain_id).known for chain_id in chains):
            return None
        if not target.is_open:
            return rules.receiver_closed(send, target.run.state)
        self._unit.deliver(target, send.message)
        return None


def _closes(move: Move | None) -> bool:
    return move is not None and move.state in CLOSED and move.state is not RunState.CONTINUED
