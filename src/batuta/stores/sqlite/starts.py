"""Starts, messages and closes from outside, each verb one transaction."""

from __future__ import annotations

import sqlite3
import sys

from batuta.errors import BadData, RunClosed, UnknownRun
from batuta.ids import RunId
from batuta.journal.audit import Act
from batuta.journal.entries import Entry
from batuta.journal.quotas import EVERYBODY, MOST_WAITING, WAITING
from batuta.journal.records import Hint, Message, MessageKind, NewRun, Run
from batuta.journal.states import RunState
from batuta.stores.contract import rules
from batuta.stores.sqlite.audit import changed, record
from batuta.stores.sqlite.cross_run_effects import deadline_of
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.rows import entries_of, entry_row, message_row, messages_of, new_run_row, one, run_of
from batuta.stores.sqlite.inbox import InboxWriter, Target
from batuta.stores.sqlite.queues import note_keyed


def start_and_send(
    cursor: sqlite3.Cursor, namespace: str, new: NewRun, message: Message, now: int
) -> tuple[Run, bool, Hint]:
    """Start it or find the run that has its id; then send that run the message."""
    run, is_new = start(cursor, namespace, new, now)
    hint = send(cursor, namespace, run.run_id, message, now) or Hint()
    hint.due = hint.due or is_new
    return find(cursor, namespace, run.run_id), is_new, hint


def start(cursor: sqlite3.Cursor, namespace: str, new: NewRun, now: int) -> tuple[Run, bool]:
    """Insert an unowned run with its start message, or find the run that has its id or does its work."""
    waiting = _debounced(cursor, namespace, new, now) if new.debounce else None
    if waiting is not None:
        return waiting
    deadline = deadline_of(cursor, namespace, new, now)
    row = new_run_row(namespace, new, now, deadline, epoch=0, head=-1, owner=None)
    if not cursor.execute(Q["insert_run"], row).rowcount:
        known = _known(cursor, namespace, new, now)
        if known is not None:
            return known
        cursor.execute(Q["supersede"], (namespace, new.id))
        if not cursor.execute(Q["insert_run"], row).rowcount:
            raise BadData(f"run {new.run_id} cannot be inserted")
    message = rules.start_message(new)
    cursor.execute(Q["insert_message"], message_row(namespace, rules.chain_of(new), message, now))
    note_keyed(cursor, namespace, [new])
    return find(cursor, namespace, new.run_id), True


def _debounced(cursor: sqlite3.Cursor, namespace: str, new: NewRun, now: int) -> tuple[Run, bool] | None:
    """Let the unclaimed run of its debounce key do the new work; None when there is none."""
    row = one(cursor.execute(Q["debounced"], (namespace, new.debounce)))
    if row is None:
        rules.refuse_alone(new)
        return None
    run = run_of(row)
    if run.run_id == new.run_id:
        return run, True  # written again because the first answer was lost
    if new.instead not in (None, run.run_id):
        return run, False
    wake_at, deadline = rules.put_off(new, run.created_at, now)
    values = (new.tags, new.memo, new.priority, rules.expiry_of(new, now), wake_at, deadline)
    cursor.execute(Q["replace_debounced"], (*values, namespace, run.run_id.bytes))
    message = rules.start_message(new, run.run_id)
    cursor.execute(Q["replace_start"], (message.body, now, run.chain_id.bytes, namespace, message.message_id))
    return find(cursor, namespace, run.run_id), False


def _known(cursor: sqlite3.Cursor, namespace: str, new: NewRun, now: int) -> tuple[Run, bool] | None:
    """The conflicting run; None when it may be replaced."""
    same = one(cursor.execute(Q["run_by_run_id"], (namespace, new.run_id.bytes)))
    if same is not None:
        return run_of(same), True  # written again because the first answer was lost
    row = one(cursor.execute(Q["run_by_id"], (namespace, new.id)))
    if row is None:
        raise BadData(f"run {new.run_id} cannot be inserted")
    taken = run_of(row)
    if rules.may_replace(new, taken.closed_at is not None, taken.created_at, now):
        return None
    return rules.started(rules.taken_by(new, taken))


def find(cursor: sqlite3.Cursor, namespace: str, run_id: RunId) -> Run:
    row = one(cursor.execute(Q["run_by_run_id"], (namespace, run_id.bytes)))
    if row is None:
        raise UnknownRun(run_id, namespace)
    return run_of(row)


def start_of(cursor: sqlite3.Cursor, namespace: str, chain_id: RunId) -> Entry | Message | None:
    """The input of a chain: its first entry, or the waiting start message."""
    entries = entries_of(cursor.execute(Q["entries"], (chain_id.bytes, namespace, -1, 0, 1)).fetchall())
    if entries:
        return entries[0]
    # No page of signals is long enough to hold this number: they are left out.
    messages = messages_of(cursor.execute(Q["unread"], (chain_id.bytes, namespace, sys.maxsize)).fetchall())
    return next((message for message in messages if message.kind is MessageKind.START), None)


def send(
    cursor: sqlite3.Cursor, namespace: str, run_id: RunId, message: Message, now: int, act: Act | None = None
) -> Hint | None:
    """Put a message into the chain's inbox and wake its open run. None when it was sent before."""
    run = find(cursor, namespace, run_id)
    key = run.chain_id.bytes, namespace, message.message_id
    known = one(cursor.execute(Q["message_known"], key)) is not None
    if known and one(cursor.execute(Q["is_rejected"], key)) is None:
        return None
    try:
        last = run if run.closed_at is None else _successor(cursor, namespace, run)
    except RunClosed:
        if known:
            return None
        raise
    hint = Hint()
    post = InboxWriter(cursor, namespace, now, hint)
    target = Target(last.run_id.bytes, last.chain_id.bytes, last.state, last.owner, last.closed_at)
    if known:
        post.deliver_again(target, message)
    else:
        if rules.counts_as_waiting(message) and (most := _full_with(cursor, namespace, run.chain_id)) is not None:
            raise rules.inbox_full(namespace, run.id, most)
        post.deliver(target, message)
    post.wake()
    record(cursor, namespace, now, act, [changed(last, last.state)])
    return hint


def _full_with(cursor: sqlite3.Cursor, namespace: str, chain_id: RunId) -> int | None:
    """The limit of waiting messages, if the inbox has reached it."""
    chain = chain_id.bytes
    row = one(cursor.execute(Q["unread_span"], {"chain": chain, "namespace": namespace}))
    if row is None or row[0] is None:
        return None
    found = one(cursor.execute(Q["most_waiting"], {"name": WAITING, "namespace": namespace, "everybody": EVERYBODY}))
    most = MOST_WAITING if found is None else found[0]
    if most is None or row[0] < most:
        return None
    return None if one(cursor.execute(Q["has_unread_at"], (chain, namespace, int(most) - 1))) is None else int(most)


def unpark(cursor: sqlite3.Cursor, namespace: str, run_id: RunId, now: int, act: Act | None = None) -> bool:
    """Make a parked run due, with a clean slate. False when it is not parked."""
    run = find(cursor, namespace, run_id)
    if not cursor.execute(Q["unpark"], (now, namespace, run_id.bytes)).rowcount:
        return False
    record(cursor, namespace, now, act, [changed(run, RunState.WAITING)])
    return True


def _successor(cursor: sqlite3.Cursor, namespace: str, run: Run) -> Run:
    """The open run of a chain that has continued from a closed one."""
    row = one(cursor.execute(Q["run_by_id"], (namespace, run.id)))
    last = run if row is None else run_of(row)
    if last.chain_id != run.chain_id or last.closed_at is not None:
        raise RunClosed(run.id, run.state)
    return last


def close(
    cursor: sqlite3.Cursor,
    namespace: str,
    run_id: RunId,
    head: int,
    entry: Entry,
    state: RunState,
    reason: str,
    now: int,
    act: Act | None = None,
    *,
    quiet: bool = False,
) -> Hint | None:
    """Close an open run with its last entry.

    None when its head has moved or it is closed. `quiet`: another run replaces it, and its parent is not notified.
    """
    run = find(cursor, namespace, run_id)
    values = (state.value, now, reason, namespace, run_id.bytes, head)
    if not cursor.execute(Q["close_from_outside"], values).rowcount:
        return None
    cursor.execute(Q["insert_entry"], entry_row(namespace, run_id.bytes, run.epoch + 1, entry))
    hint = Hint(messages=[run_id] if run.owner is not None else [], closed=[run_id])
    post = InboxWriter(cursor, namespace, now, hint)
    if quiet:
        post.tell_children(run_id.bytes)
    else:
        post.tell_kin(run_id.bytes, run.id, run.parent_seq, state, reason)
    post.wake()
    record(cursor, namespace, now, act, [changed(run, state)])
    return hint
