"""One store method: its writes, at one moment, and its hints to listeners."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from batuta.errors import UnknownRun
from batuta.ids import RunId
from batuta.journal.child_outcomes import ended_outcome
from batuta.journal.entries import Entry
from batuta.journal.records import Hint, Message, MessageKind, Move, NewRun, Run
from batuta.journal.states import CLOSED, RunState
from batuta.stores.contract import rules
from batuta.stores.memory.tables import NamespaceTables, Row


class UnitOfWork:
    """The transaction of one method. It cannot be undone: a refusal must come before any write."""

    def __init__(self, room: NamespaceTables, namespace: str, now: int, numbers: Iterator[int]) -> None:
        self.tables = room
        self.now = now
        self.hint = Hint()
        self.namespace = namespace
        self.numbers = numbers

    def row(self, run_id: RunId) -> Row:
        try:
            return self.tables.rows[run_id]
        except KeyError:
            raise UnknownRun(run_id, self.namespace) from None

    def tell_of_partners(self, hint: Hint) -> None:
        self.hint = hint

    # -- runs come in

    def begin(self, new: NewRun, before: int | None = None) -> Row:
        """Insert an unowned run with its start message; `before` is the deadline of the run that it follows."""
        row = self.insert(new, before=before)
        self.post(row.run.chain_id, rules.start_message(new))
        self.hint.due = True
        return row

    def insert(self, new: NewRun, epoch: int = 0, owner: str | None = None, before: int | None = None) -> Row:
        chain_id = rules.chain_of(new)
        first = self.tables.rows.get(chain_id)
        deadline = rules.deadline_of(new, self.now, first.run.created_at if first else self.now, before)
        run = rules.unowned(new, self.now, deadline)
        if owner is not None:
            run.state, run.epoch, run.owner, run.wake_at, run.expires_at = RunState.RUNNING, epoch, owner, None, None
        row = Row(run, parent_policy=new.parent_policy, debounce="" if owner else new.debounce)
        self.tables.add(row)
        return row

    # -- messages

    def post(self, chain_id: RunId, message: Message) -> bool:
        """Put a message into an inbox. False when its id was there before."""
        inbox = self.tables.inbox(chain_id)
        if message.message_id in inbox.known:
            return False
        inbox.known.add(message.message_id)
        inbox.unread[message.message_id] = replace(message, at=self.now, number=next(self.numbers))
        return True

    def replace_start(self, row: Row, new: NewRun) -> None:
        """Let the start message of a run that has not begun hold the new work."""
        unread = self.tables.inbox(row.run.chain_id).unread
        message_id = rules.start_message(new, row.run.run_id).message_id
        unread[message_id] = replace(unread[message_id], body=new.start, at=self.now)

    def deliver(self, row: Row, message: Message) -> bool:
        """Put a message into the inbox of an open run's chain, and see to it that it is read."""
        run = row.run
        if not self.post(run.chain_id, message):
            return False
        if rules.wakes(message.kind, run.state):
            run.wake_at = self.now if run.wake_at is None else min(run.wake_at, self.now)
            self.hint.due = True
        elif run.owner is not None:
            self.hint.messages.append(run.run_id)
        return True

    # -- runs move and close

    def set_free(self, row: Row) -> None:
        run = row.run
        self._leave_slot(run)
        run.epoch += 1
        run.state = RunState.PENDING if run.head < 0 else RunState.WAITING
        run.owner, run.wake_at = None, self.now

    def move(self, row: Row, move: Move) -> None:
        run, now = row.run, self.now
        self._leave_slot(run)
        run.state, run.owner, run.wake_at, run.reason = move.state, None, None, move.reason
        if move.state in CLOSED:
            self.tables.shut(row, now)
            if self.hint.closed is not None:
                self.hint.closed.append(run.run_id)
        elif move.state is RunState.PAUSED and (pauses := self.pauses(row)):
            self.tables.inbox(run.chain_id).read(pauses)
            run.paused_at, run.resume_at = now, move.wake_at
        elif move.state is RunState.PAUSED:
            run.state = RunState.PENDING if run.head < 0 else RunState.WAITING
            run.wake_at = now if run.head < 0 or self.tables.inbox(run.chain_id).unread else move.wake_at
            self.hint.due = True
        elif move.state is RunState.WAITING:
            run.wake_at = now if self.tables.inbox(run.chain_id).unread else move.wake_at
        elif move.state is RunState.PENDING:
            run.wake_at = now if move.wake_at is None else move.wake_at
        elif move.fingerprint and move.fingerprint not in run.failed_code:
            run.failed_code.append(move.fingerprint)
        self.hint.due = self.hint.due or run.wake_at is not None  # later, too: no hint comes when it is due

    def close_from_outside(self, row: Row, entry: Entry, state: RunState, reason: str, *, quiet: bool = False) -> None:
        """`quiet`: another run replaces it, and its parent is not notified."""
        run = row.run
        if run.owner is not None:
            self.hint.messages.append(run.run_id)
            self.hint.due = self.hint.due or row.is_suspect
        run.epoch += 1
        run.paused_at = run.resume_at = None
        row.write([entry], run.epoch)
        self.move(row, Move(state, reason=reason))
        if state is RunState.TIMED_OUT and (child := rules.compensation_of(row.compensation)) is not None:
            self.begin(child)
        if not quiet:
            self.tell_parent(row, ended_outcome(run.parent_seq, run.id, state, reason))
        self.tell_children(row)

    def pauses(self, row: Row) -> list[str]:
        """Ids of the PAUSE messages that wait for the run."""
        unread = self.tables.inbox(row.run.chain_id).unread.values()
        return [message.message_id for message in unread if message.kind is MessageKind.PAUSE]

    def _leave_slot(self, run: Run) -> None:
        """Its slot is free: runs that wait for one are due now."""
        queue = self.tables.queues.get(run.queue)
        if queue is not None and queue.limits.any and run.owner is not None:
            self.hint.due = True

    def tell_parent(self, row: Row, outcome: str) -> None:
        """The run has closed: its parent, if it is open, gets the outcome, or waits for one less."""
        run = row.run
        if run.parent_run_id is None:
            return
        parent = self.tables.open.get(run.parent_run_id)
        if parent is not None and parent.run.awaits:
            self._await_one_less(parent.run)
        elif parent is not None:
            self.deliver(parent, rules.child_message(run.run_id, run.parent_run_id, outcome))

    def _await_one_less(self, run: Run) -> None:
        run.awaits -= 1
        if not run.awaits and run.state is RunState.PENDING and run.wake_at is None:
            run.wake_at, self.hint.due = self.now, True

    def tell_children(self, row: Row) -> None:
        """The run has closed: notify its open children, by their policy."""
        for child in self.tables.open_children(row.run.run_id):
            message = rules.parent_message(row.run.run_id, child.parent_policy)
            if message is not None:
                self.deliver(child, message)
