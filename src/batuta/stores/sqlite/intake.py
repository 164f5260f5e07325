"""What comes in from outside, each verb one transaction: starts, messages, closes."""

from __future__ import annotations

import sqlite3

from batuta.errors import AlreadyStarted, BadData, RunClosed, UnknownRun
from batuta.ids import RunId
from batuta.journal.acts import Act
from batuta.journal.entries import Entry
from batuta.journal.records import Hint, Message, NewRun, Run
from batuta.journal.states import RunState
from batuta.stores import rules
from batuta.stores.sqlite.audit import changed, record
from batuta.stores.sqlite.connection import Q
from batuta.stores.sqlite.effects import deadline_of
from batuta.stores.sqlite.post import Post, Target
from batuta.stores.sqlite.queues import note_keyed
from batuta.stores.sqlite.rows import entry_row, message_row, new_run_row, one, run_of


def start_and_send(
    cursor: sqlite3.Cursor, namespace: str, new: NewRun, message: Message, now: int
) -> tuple[Run, bool, Hint]:
    """Start it or find the one that has its id; then send that one the message."""
    run, is_new = start(cursor, namespace, new, now)
    hint = send(cursor, namespace, run.run_id, message, now) or Hint()
    hint.due = hint.due or is_new
    return find(cursor, namespace, run.run_id), is_new, hint


def start(cursor: sqlite3.Cursor, namespace: str, new: NewRun, now: int) -> tuple[Run, bool]:
    """Insert an unowned run with its start message, or find the one that has its id or does its work."""
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
    """Let the unclaimed run of its debounce key do what the new one is to do; None when there is none."""
    row = one(cursor.execute(Q["debounced"], (namespace, new.debounce)))
    if row is None:
        return None
    run = run_of(row)
    if run.run_id == new.run_id:
        return run, True  # written again because the first answer was lost
    wake_at, deadline = rules.put_off(new, run.created_at, now)
    values = (new.tags, new.memo, new.priority, rules.expiry_of(new, now), wake_at, deadline)
    cursor.execute(Q["replace_debounced"], (*values, namespace, run.run_id.bytes))
    message = rules.start_message(new, run.run_id)
    cursor.execute(Q["replace_start"], (message.body, now, run.chain_id.bytes, message.message_id))
    return find(cursor, namespace, run.run_id), False


def _known(cursor: sqlite3.Cursor, namespace: str, new: NewRun, now: int) -> tuple[Run, bool] | None:
    """The run that stands in the way; None when it may be replaced."""
    same = one(cursor.execute(Q["run_by_run_id"], (namespace, new.run_id.bytes)))
    if same is not None:
        return run_of(same), True  # written again because the first answer was lost
    row = one(cursor.execute(Q["run_by_id"], (namespace, new.id)))
    if row is None:
        raise BadData(f"run {new.run_id} cannot be inserted")
    taken = run_of(row)
    if rules.may_replace(new, taken.closed_at is not None, taken.created_at, now):
        return None
    if new.if_exists in rules.GIVES:
        return taken, False
    raise AlreadyStarted(new.id, taken.state)


def find(cursor: sqlite3.Cursor, namespace: str, run_id: RunId) -> Run:
    row = one(cursor.execute(Q["run_by_run_id"], (namespace, run_id.bytes)))
    if row is None:
        raise UnknownRun(run_id, namespace)
    return run_of(row)


def send(
    cursor: sqlite3.Cursor, namespace: str, run_id: RunId, message: Message, now: int, act: Act | None = None
) -> Hint | None:
    """Put a message into the chain's inbox and wake its open run. None when it was sent before."""
    run = find(cursor, namespace, run_id)
    if one(cursor.execute(Q["message_known"], (run.chain_id.bytes, message.message_id))) is not None:
        return None
    last = run if run.closed_at is None else _successor(cursor, namespace, run)
    hint = Hint()
    post = Post(cursor, namespace, now, hint)
    post.deliver(Target(last.run_id.bytes, last.chain_id.bytes, last.state, last.owner, last.closed_at), message)
    post.wake()
    record(cursor, namespace, now, act, [changed(last, last.state)])
    return hint


def unpark(cursor: sqlite3.Cursor, namespace: str, run_id: RunId, now: int, act: Act | None = None) -> bool:
    """Make a parked run due, with a clean slate. False when it is not parked."""
    run = find(cursor, namespace, run_id)
    if not cursor.execute(Q["unpark"], (now, namespace, run_id.bytes)).rowcount:
        return False
    record(cursor, namespace, now, act, [changed(run, RunState.WAITING)])
    return True


def _successor(cursor: sqlite3.Cursor, namespace: str, run: Run) -> Run:
    """The open run of a chain that has gone on from a closed one."""
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
    """Close an open run with its last entry. None when its head has moved or it is closed. `quiet`: another one takes
    its place, and its parent is told nothing."""
    run = find(cursor, namespace, run_id)
    values = (state.value, now, reason, namespace, run_id.bytes, head)
    if not cursor.execute(Q["close_from_outside"], values).rowcount:
        return None
    cursor.execute(Q["insert_entry"], entry_row(namespace, run_id.bytes, run.epoch + 1, entry))
    hint = Hint(messages=[run_id] if run.owner is not None else [], closed=[run_id])
    post = Post(cursor, namespace, now, hint)
    if quiet:
        post.tell_children(run_id.bytes)
    else:
        post.tell_kin(run_id.bytes, run.id, run.parent_seq, state, reason)
    post.wake()
    record(cursor, namespace, now, act, [changed(run, state)])
    return hint
