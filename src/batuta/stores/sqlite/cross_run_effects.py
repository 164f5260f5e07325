"""Effects of changes beyond their own runs, in the same transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from uuid import UUID

from batuta.ids import RunId
from batuta.journal.records import Change, Effects, Hint, NewRun, OutputKind, Refusal, Send, Successor
from batuta.journal.states import CLOSED, RunState
from batuta.stores.contract import rules, stored_values
from batuta.stores.sqlite import dead_letters
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.rows import Row, new_run_row, one, output_row, run_of
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

    def __init__(self, cursor: sqlite3.Cursor, namespace: str, now: int) -> None:
        self.hint = Hint()
        self.refusals: dict[RunId, list[Refusal]] = {}
        self._cursor = cursor
        self._namespace = namespace
        self._now = now
        self._inbox = InboxWriter(cursor, namespace, now, self.hint)
        self._taken: frozenset[str] = frozenset()

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
            dead_letters.insert(self._cursor, self._namespace, run_of(self._row(run_id)), effects.letter, self._now)

    def _write_outputs(self, run_id: RunId, effects: Effects) -> None:
        chain_id = run_id.bytes
        if any(output.kind is OutputKind.ANSWER for output in effects.outputs):
            chain_id = self._row(run_id)[3]
            if self.hint.answered is not None:
                self.hint.answered.append(UUID(bytes=chain_id))
        rows = [
            output_row(self._namespace, chain_id if output.kind is OutputKind.ANSWER else run_id.bytes, output)
            for output in effects.outputs
        ]
        self._cursor.executemany(Q["upsert_output"], rows)

    def _follow(self, run_id: RunId, successor: Successor) -> None:
        row = self._row(run_id)
        run = run_of(row)
        new = rules.follower(run, stored_values.POLICIES[row[24]], row[25], successor)
        self._cursor.execute(Q["supersede"], (self._namespace, new.id))
        paused = self._time_paused(run_id) if new.execution_timeout else 0
        if paused:  # the chain's time is as much later, also for the runs after this one
            new.execution_timeout += paused
            values = {"paused_at": self._now - paused, "now": self._now, "namespace": self._namespace}
            self._cursor.execute(Q["note_chain_pauses"], values | {"run_id": new.run_id.bytes})
        self._insert(new, run.deadline)

    def _time_paused(self, run_id: RunId) -> int:
        row = one(self._cursor.execute(Q["time_paused"], (run_id.bytes, self._namespace)))
        return row[0] if row is not None else 0

    def _row(self, run_id: RunId) -> Row:
        row = one(self._cursor.execute(Q["run_by_run_id"], (self._namespace, run_id.bytes)))
        assert row is not None  # noqa: S101 - its fence has let the change through
        return row

    # -- runs that come in

    def start_child(self, new: NewRun) -> Refusal | None:
        """Insert it, unless it exists or its id is taken."""
        if self._insert(new) or one(self._cursor.execute(Q["created_at"], (self._namespace, new.run_id.bytes))):
            return None
        row = one(self._cursor.execute(Q["run_by_id"], (self._namespace, new.id)))
        if row is not None and not self._may_replace(new):
            taken = run_of(row)
            return rules.id_taken(new, taken.state, taken.kind, taken.name)
        self._cursor.execute(Q["supersede"], (self._namespace, new.id))
        self._insert(new)
        return None

    def _may_replace(self, new: NewRun) -> bool:
        row = one(self._cursor.execute(Q["id_taken"], (self._namespace, new.id)))
        return row is None or rules.may_replace(new, bool(row[0]), row[1], self._now)

    def _insert(self, new: NewRun, before: int | None = None) -> bool:
        """Insert an unowned run with its start message; `before` is the deadline of the run that it follows.

        False when the run or its id exists already.
        """
        deadline = deadline_of(self._cursor, self._namespace, new, self._now, before)
        row = new_run_row(self._namespace, new, self._now, deadline, epoch=0, head=-1, owner=None)
        if not self._cursor.execute(Q["insert_run"], row).rowcount:
            return False
        note_keyed(self._cursor, self._namespace, [new])
        self._inbox.put(rules.chain_of(new).bytes, rules.start_message(new))
        self.hint.due = True
        return True

    # -- messages

    def _find_taken(self, changes: Sequence[Change], repeated: Sequence[Change]) -> None:
        """Messages that were sent and accepted before, also by a chain that has ended since."""
        again = [
            send for change in changes if change.effects is not None for send in change.effects.sends if send.again
        ]
        again += [send for change in repeated if change.effects is not None for send in change.effects.sends]
        if again:
            self._taken = self._inbox.taken_before([(send.id, send.message.message_id) for send in again])

    def _send(self, send: Send) -> Refusal | None:
        target = self._inbox.receiver(send.id)
        if target is None:
            return rules.no_receiver(send)
        if send.message.message_id in self._taken:
            return None
        if target.closed_at is None:
            self._inbox.deliver(target, send.message)
        elif not self._inbox.is_known(target, send.message):
            return rules.receiver_closed(send, stored_values.RUN_STATES[target.state])
        return None


def deadline_of(cursor: sqlite3.Cursor, namespace: str, new: NewRun, now: int, before: int | None = None) -> int | None:
    """When a new run times out; looks up when its chain began, if that matters."""
    began = now
    if new.chain_id is not None and new.execution_timeout:
        row = one(cursor.execute(Q["created_at"], (namespace, new.chain_id.bytes)))
        began = now if row is None else row[0]
    return rules.deadline_of(new, now, began, before)
