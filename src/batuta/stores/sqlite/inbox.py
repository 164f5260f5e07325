"""Messages that one run's change puts into the inboxes of others."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple
from uuid import UUID

from batuta.journal.child_outcomes import ended_outcome
from batuta.journal.records import Message, ParentPolicy
from batuta.journal.states import RunState
from batuta.stores.contract import rules, stored_values
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork


class Target(NamedTuple):
    """A run that a message goes to."""

    run_id: bytes
    chain_id: bytes
    state: str
    owner: str | None
    closed_at: int | None


class InboxWriter:
    """Delivers messages in one transaction. `wake`, at its end, makes sleeping receivers due."""

    def __init__(self, unit: UnitOfWork) -> None:
        self._unit = unit
        self._woken: dict[bytes, None] = {}
        self._closed: Counter[bytes] = Counter()
        """Members of batches that have closed, by what comes after them."""

    def receiver(self, id: str) -> Target | None:
        """The current run of an id."""
        row = self._unit.row("receiver", (self._unit.namespace, id))
        return None if row is None else Target(*row)

    def has(self, target: Target, message_id: str) -> bool:
        """Whether the chain has ever had the message."""
        return self._unit.finds("message_known", (target.chain_id, self._unit.namespace, message_id))

    def was_taken(self, id: str, message_id: str) -> bool:
        """Whether a chain of that id has ever had the message."""
        target = self.receiver(id)
        if target is not None and self.has(target, message_id):
            return True
        return self._unit.finds("taken_earlier", (self._unit.namespace, id, message_id))

    def deliver(self, target: Target, message: Message) -> bool:
        """Put a message into the inbox of an open run's chain. False when it was there before."""
        if not self.put(target.chain_id, message):
            return False
        self._tell(target, message)
        return True

    def deliver_again(self, target: Target, message: Message) -> None:
        """The same for an update that was rejected: its place in the inbox is the last one now."""
        key = target.chain_id, self._unit.namespace, message.message_id
        self._unit.change("forget_rejected", key)
        self._unit.change("read_anew", (message.body, self._unit.now, *key))
        self._tell(target, message)

    def _tell(self, target: Target, message: Message) -> None:
        if rules.wakes(message.kind, target.state):
            self._woken[target.run_id] = None
        elif target.owner is not None:
            self._unit.hint.messages.append(UUID(bytes=target.run_id))

    def put(self, chain_id: bytes, message: Message) -> bool:
        """Put a message into an inbox without waking its receiver. False when it was there before."""
        kind, at = message.kind.value, self._unit.now
        row = (self._unit.namespace, kind, message.name, at, chain_id, message.message_id, message.body)
        return self._unit.change("insert_message", row) > 0

    def tell_parent(self, run_id: bytes, outcome: str) -> None:
        """A run has closed: its parent, if it is open, gets the outcome, or waits for one less."""
        row = self._unit.row("open_parent", (self._unit.namespace, run_id))
        if row is not None and row[5]:
            self._closed[row[0]] += 1
        elif row is not None:
            parent = Target(*row[:5])
            message = rules.child_message(UUID(bytes=run_id), UUID(bytes=parent.run_id), outcome)
            self.deliver(parent, message)

    def tell_children(self, run_id: bytes) -> None:
        """A run has closed: notify its open children, by their policy."""
        rows = self._unit.rows("open_children", (self._unit.namespace, run_id))
        told = {policy: rules.parent_message(UUID(bytes=run_id), policy) for policy in ParentPolicy} if rows else {}
        for *target, policy in rows:
            message = told[stored_values.POLICIES[policy]]
            if message is not None:
                self.deliver(Target(*target), message)

    def tell_kin(self, run_id: bytes, id: str, parent_seq: int, state: RunState, reason: str) -> None:
        """A run was closed from outside."""
        self.tell_parent(run_id, ended_outcome(parent_seq, id, state, reason))
        self.tell_children(run_id)

    def wake(self) -> None:
        """Make runs due that have a message to read, or whose batch has ended."""
        now, namespace = self._unit.now, self._unit.namespace
        if self._woken:
            rows = [(now, now, namespace, run_id) for run_id in self._woken]
            woken = self._unit.change_each("wake", rows)
            self._unit.hint.due = self._unit.hint.due or woken > 0
            self._woken.clear()
        for run_id, closed in self._closed.items():
            values = {"closed": closed, "now": now, "namespace": namespace, "run_id": run_id}
            left = self._unit.value("await_less", values)
            self._unit.hint.due = self._unit.hint.due or left == 0
        self._closed.clear()
