"""Starts, messages and closes from outside, each verb one transaction."""

from __future__ import annotations

import sys

from batuta.errors import BadData, RunClosed
from batuta.ids import RunId
from batuta.journal.audit import Act
from batuta.journal.entries import Entry
from batuta.journal.quotas import EVERYBODY, MOST_WAITING, WAITING
from batuta.journal.records import Message, MessageKind, NewRun, Run
from batuta.journal.states import RunState
from batuta.stores.contract import rules
from batuta.stores.sqlite.audit import changed
from batuta.stores.sqlite.cross_run_effects import deadline_of
from batuta.stores.sqlite.database.rows import entries_of, message_row, messages_of, new_run_row, run_of
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork
from batuta.stores.sqlite.inbox import InboxWriter, Target
from batuta.stores.sqlite.queues import note_keyed


def start_and_send(unit: UnitOfWork, new: NewRun, message: Message) -> tuple[Run, bool]:
    """Start it or find the run that has its id; then send that run the message."""
    run, is_new = start(unit, new)
    send(unit, run.run_id, message)
    return unit.run(run.run_id), is_new


def start(unit: UnitOfWork, new: NewRun) -> tuple[Run, bool]:
    """Insert an unowned run with its start message, or find the run that has its id or does its work."""
    found = (_debounced(unit, new) if new.debounce else None) or _insert(unit, new)
    # Also for an existing run: it may be due earlier now, or its first hint was lost together with the answer.
    unit.hint.due = True
    return found


def _insert(unit: UnitOfWork, new: NewRun) -> tuple[Run, bool]:
    deadline = deadline_of(unit, new)
    row = new_run_row(unit.namespace, new, unit.now, deadline, epoch=0, head=-1, owner=None)
    if not unit.change("insert_run", row):
        known = _known(unit, new)
        if known is not None:
            return known
        unit.change("supersede", (unit.namespace, new.id))
        if not unit.change("insert_run", row):
            raise BadData(f"run {new.run_id} cannot be inserted")
    message = rules.start_message(new)
    unit.change("insert_message", message_row(unit.namespace, rules.chain_of(new), message, unit.now))
    note_keyed(unit, [new])
    return unit.run(new.run_id), True


def _debounced(unit: UnitOfWork, new: NewRun) -> tuple[Run, bool] | None:
    """Let the unclaimed run of its debounce key do the new work; None when there is none."""
    row = unit.row("debounced", (unit.namespace, new.debounce))
    if row is None:
        rules.refuse_alone(new)
        return None
    run = run_of(row)
    if run.run_id == new.run_id:
        return run, True  # written again because the first answer was lost
    if new.instead not in (None, run.run_id):
        return run, False
    wake_at, deadline = rules.put_off(new, run.created_at, unit.now)
    values = (new.tags, new.memo, new.priority, rules.expiry_of(new, unit.now), wake_at, deadline)
    unit.change("replace_debounced", (*values, unit.namespace, run.run_id.bytes))
    message = rules.start_message(new, run.run_id)
    unit.change("replace_start", (message.body, unit.now, run.chain_id.bytes, unit.namespace, message.message_id))
    return unit.run(run.run_id), False


def _known(unit: UnitOfWork, new: NewRun) -> tuple[Run, bool] | None:
    """The conflicting run; None when it may be replaced."""
    same = unit.row("run_by_run_id", (unit.namespace, new.run_id.bytes))
    if same is not None:
        return run_of(same), True  # written again because the first answer was lost
    row = unit.row("run_by_id", (unit.namespace, new.id))
    if row is None:
        raise BadData(f"run {new.run_id} cannot be inserted")
    taken = run_of(row)
    if rules.may_replace(new, taken.closed_at is not None, taken.created_at, unit.now):
        return None
    return rules.started(rules.taken_by(new, taken))


def start_of(unit: UnitOfWork, chain_id: RunId) -> Entry | Message | None:
    """The input of a chain: its first entry, or the waiting start message."""
    entries = entries_of(unit.rows("entries", (chain_id.bytes, unit.namespace, -1, 0, 1)))
    if entries:
        return entries[0]
    # No page of signals is long enough to hold this number: they are left out.
    messages = messages_of(unit.rows("unread", (chain_id.bytes, unit.namespace, sys.maxsize)))
    return next((message for message in messages if message.kind is MessageKind.START), None)


def send(unit: UnitOfWork, run_id: RunId, message: Message, act: Act | None = None) -> bool:
    """Put a message into the chain's inbox and wake its open run. False when it was sent before."""
    run = unit.run(run_id)
    key = run.chain_id.bytes, unit.namespace, message.message_id
    known = unit.finds("message_known", key)
    if known and not unit.finds("is_rejected", key):
        return False
    try:
        last = run if run.closed_at is None else _successor(unit, run)
    except RunClosed:
        if known:
            return False
        raise
    post = InboxWriter(unit)
    target = Target(last.run_id.bytes, last.chain_id.bytes, last.state, last.owner, last.closed_at)
    if known:
        post.deliver_again(target, message)
    else:
        if rules.counts_as_waiting(message) and (most := _full_with(unit, run.chain_id)) is not None:
            raise rules.inbox_full(unit.namespace, run.id, most)
        post.deliver(target, message)
    post.wake()
    unit.record(act, [changed(last, last.state)])
    return True


def _full_with(unit: UnitOfWork, chain_id: RunId) -> int | None:
    """The limit of waiting messages, if the inbox has reached it."""
    chain = chain_id.bytes
    span = unit.value("unread_span", {"chain": chain, "namespace": unit.namespace})
    if span is None:
        return None
    asked = {"name": WAITING, "namespace": unit.namespace, "everybody": EVERYBODY}
    most = unit.value("most_waiting", asked, MOST_WAITING)
    if most is None or span < most:
        return None
    return int(most) if unit.finds("has_unread_at", (chain, unit.namespace, int(most) - 1)) else None


def unpark(unit: UnitOfWork, run_id: RunId, act: Act | None = None) -> bool:
    """Make a parked run due, with a clean slate. False when it is not parked."""
    run = unit.run(run_id)
    if not unit.wake("unpark", (unit.now, unit.namespace, run_id.bytes)):
        return False
    unit.record(act, [changed(run, RunState.WAITING)])
    return True


def _successor(unit: UnitOfWork, run: Run) -> Run:
    """The open run of a chain that has continued from a closed one."""
    row = unit.row("run_by_id", (unit.namespace, run.id))
    last = run if row is None else run_of(row)
    if last.chain_id != run.chain_id or last.closed_at is not None:
        raise RunClosed(run.id, run.state)
    return last


def close(
    unit: UnitOfWork,
    run_id: RunId,
    head: int,
    entry: Entry,
    state: RunState,
    reason: str,
    act: Act | None = None,
    *,
    quiet: bool = False,
) -> bool:
    """Close an open run with its last entry.

    False when its head has moved or it is closed. `quiet`: another run replaces it, and its parent is not notified.
    """
    run = unit.run(run_id)
    if not unit.close_run(run_id, run.epoch, head, entry, state, reason, owned=run.owner is not None):
        return False
    post = InboxWriter(unit)
    if quiet:
        post.tell_children(run_id.bytes)
    else:
        post.tell_kin(run_id.bytes, run.id, run.parent_seq, state, reason)
    post.wake()
    unit.record(act, [changed(run, state)])
    return True
