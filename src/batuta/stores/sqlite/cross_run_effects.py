"""Effects of changes beyond their own runs, in the same transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from batuta.ids import RunId
from batuta.journal.records import Change, Effects, NewRun, OutputKind, Refusal, Send, Successor
from batuta.journal.states import CLOSED, RunState
from batuta.stores.contract import rules, stored_values
from batuta.stores.sqlite import dead_letters
from batuta.stores.sqlite.database.rows import Row, new_run_row, output_row, run_of
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork
from batuta.stores.sqlite.inbox import InboxWriter
from batuta.stores.sqlite.queues import note_keyed

SMALL = 20
"""Effects of a change that is written as fast as one without."""


def are_small(changes: Iterable[Change]) -> bool:
    """Whether their effects take no time worth a thread."""
    count = 0
    for change in changes:
        if (effects := change.effects) is not None:
            count += len(effects.children) + len(effects.sends) + len(effects.outputs)
    return count <= SMALL


class CrossRunEffects:
    """The effects of a batch on other runs.

    Written after the runs of the batch have closed and before any of them goes to sleep: a message finds its receiver
    closed and is refused, or it is in the inbox when the receiver checks whether it may sleep. So the order of the
    changes does not matter.
    """

    def __init__(self, unit: UnitOfWork) -> None:
        self.refusals: dict[RunId, list[Refusal]] = {}
        self._unit = unit
        self._inbox = InboxWriter(unit)
        self._taken: set[str] = set()

    def write(self, changes: Sequence[Change], repeated: Sequence[Change] = ()) -> None:
        """The effects of `changes`, and of earlier changes those that a store can have refused."""
        for change in changes:
            if change.effects is not None:
                self._leave(change.run_id, change.effects)
        reaching = [*changes, *repeated]
        for change in reaching:
            if change.effects is not None:
                self._note(change.run_id, map(self.start_child, change.effects.children))
        self._find_taken(changes, repeated)
        for change in reaching:
            if change.effects is not None:
                self._note(change.run_id, map(self._send, change.effects.sends))
        for change in changes:
            move = change.move
            if move is not None and move.outcome and move.state in CLOSED and move.state is not RunState.CONTINUED:
                self._inbox.tell_parent(change.run_id.bytes, move.outcome)
        for change in reaching:
            if change.move is not None and change.move.children and change.move.state in CLOSED:
                self._inbox.tell_children(change.run_id.bytes)
        self._inbox.wake()

    def _note(self, run_id: RunId, answers: Iterable[Refusal | None]) -> None:
        refused = [answer for answer in answers if answer is not None]
        if refused:
            self.refusals.setdefault(run_id, []).extend(refused)

    # -- the end of a run

    def _leave(self, run_id: RunId, effects: Effects) -> None:
        if effects.outputs:
            self._write_outputs(run_id, effects)
        if effects.successor is not None:
            self._follow(run_id, effects.successor)
        if effects.letter is not None:
            dead_letters.insert(self._unit, run_of(self._row(run_id)), effects.letter)

    def _write_outputs(self, run_id: RunId, effects: Effects) -> None:
        chain_id = run_id.bytes
        if any(output.kind is OutputKind.ANSWER for output in effects.outputs):
            chain_id = self._row(run_id)[3]
            if self._unit.hint.answered is not None:
                self._unit.hint.answered.append(UUID(bytes=chain_id))
        rows = [
            output_row(self._unit.namespace, chain_id if output.kind is OutputKind.ANSWER else run_id.bytes, output)
            for output in effects.outputs
        ]
        self._unit.change_each("upsert_output", rows)

    def _follow(self, run_id: RunId, successor: Successor) -> None:
        row = self._row(run_id)
        run = run_of(row)
        new = rules.follower(run, stored_values.POLICIES[row[24]], row[25], successor)
        self._unit.change("supersede", (self._unit.namespace, new.id))
        key = (run_id.bytes, self._unit.namespace)
        paused = self._unit.value("time_paused", key, 0) if new.execution_timeout else 0
        if paused:  # the chain's time is as much later, also for the runs after this one
            new.execution_timeout += paused
            values = {"paused_at": self._unit.now - paused, "now": self._unit.now, "namespace": self._unit.namespace}
            self._unit.change("note_chain_pauses", values | {"run_id": new.run_id.bytes})
        self._insert(new, run.deadline)

    def _row(self, run_id: RunId) -> Row:
        row = self._unit.row("run_by_run_id", (self._unit.namespace, run_id.bytes))
        assert row is not None  # noqa: S101 - its fence has let the change through
        return row

    # -- runs that come in

    def start_child(self, new: NewRun) -> Refusal | None:
        """Insert it, unless it exists or its id is taken."""
        if self._insert(new) or self._unit.finds("created_at", (self._unit.namespace, new.run_id.bytes)):
            return None
        row = self._unit.row("run_by_id", (self._unit.namespace, new.id))
        if row is not None and not self._may_replace(new):
            taken = run_of(row)
            return rules.id_taken(new, taken.state, taken.kind, taken.name)
        self._unit.change("supersede", (self._unit.namespace, new.id))
        self._insert(new)
        return None

    def _may_replace(self, new: NewRun) -> bool:
        row = self._unit.row("id_taken", (self._unit.namespace, new.id))
        return row is None or rules.may_replace(new, bool(row[0]), row[1], self._unit.now)

    def _insert(self, new: NewRun, before: int | None = None) -> bool:
        """Insert an unowned run with its start message; `before` is the deadline of the run that it follows.

        False when the run or its id exists already.
        """
        deadline = deadline_of(self._unit, new, before)
        row = new_run_row(self._unit.namespace, new, self._unit.now, deadline, epoch=0, head=-1, owner=None)
        if not self._unit.change("insert_run", row):
            return False
        note_keyed(self._unit, [new])
        self._inbox.put(rules.chain_of(new).bytes, rules.start_message(new))
        self._unit.hint.due = True
        return True

    # -- messages

    def _find_taken(self, changes: Sequence[Change], repeated: Sequence[Change]) -> None:
        """Messages that were sent and accepted before, also by a chain that has ended since."""
        again = [
            send for change in changes if change.effects is not None for send in change.effects.sends if send.again
        ]
        again += [send for change in repeated if change.effects is not None for send in change.effects.sends]
        sent = ((send.id, send.message.message_id) for send in again)
        self._taken = {message_id for id, message_id in sent if self._inbox.was_taken(id, message_id)}

    def _send(self, send: Send) -> Refusal | None:
        target = self._inbox.receiver(send.id)
        if target is None:
            return rules.no_receiver(send)
        if send.message.message_id in self._taken:
            return None
        if target.closed_at is None:
            self._inbox.deliver(target, send.message)
        elif not self._inbox.has(target, send.message.message_id):
            return rules.receiver_closed(send, stored_values.RUN_STATES[target.state])
        return None


def deadline_of(unit: UnitOfWork, new: NewRun, before: int | None = None) -> int | None:
    """When a new run times out; looks up when its chain began, if that matters."""
    began = unit.now
    if new.chain_id is not None and new.execution_timeout:
        began = unit.value("created_at", (unit.namespace, new.chain_id.bytes), unit.now)
    return rules.deadline_of(new, unit.now, began, before)
