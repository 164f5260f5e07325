"""Runs made from others, in SQLite."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Sequence

from batuta.errors import AlreadyStarted, BatutaError, LetterResolved, RunMoved, UnknownRun
from batuta.failpoints import failpoint
from batuta.ids import RunId
from batuta.journal.audit import Act, Changed, state_json
from batuta.journal.dead_letters import LetterState
from batuta.journal.entries import decode_body
from batuta.journal.forks import Fork
from batuta.journal.records import Hint, NewRun, Run
from batuta.journal.states import RunState
from batuta.journal.store import ForkOutcome
from batuta.stores.contract import rules, stored_values
from batuta.stores.sqlite import starts
from batuta.stores.sqlite.audit import record
from batuta.stores.sqlite.cross_run_effects import deadline_of
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.rows import (
    Row,
    attempt_row,
    blob,
    entry_row,
    message_row,
    new_run_row,
    one,
    output_row,
    run_of,
    to_json,
)
from batuta.stores.sqlite.database.writer import Writer
from batuta.stores.sqlite.dead_letters import resolve, state_of
from batuta.stores.sqlite.queues import note_keyed

_CURRENT, _POLICY = 27, 24
"""Places in a row of `SELECT * FROM runs`."""


class ForkVerbs(ABC):
    """The part of the store that makes runs from others."""

    namespace: str
    _writer: Writer

    @abstractmethod
    def clock_now(self) -> int: ...

    @abstractmethod
    def tell(self, hint: Hint) -> None: ...

    async def fork(self, forks: Sequence[Fork], act: Act) -> list[ForkOutcome]:
        now, hint = self.clock_now(), Hint()

        def work(cursor: sqlite3.Cursor) -> list[ForkOutcome]:
            done = [_fork(cursor, self.namespace, fork, act, now, hint) for fork in forks]
            failpoint("fork.inside")
            return done

        outcomes = await self._writer.write(work, aside=len(forks) > 1)
        self.tell(hint)
        return outcomes


def _fork(cursor: sqlite3.Cursor, namespace: str, fork: Fork, act: Act, now: int, hint: Hint) -> ForkOutcome:
    known = one(cursor.execute(Q["run_by_run_id"], (namespace, fork.new.run_id.bytes)))
    if known is not None:
        return run_of(known)  # written again because the first answer was lost
    for each, _ in fork.family():
        if (refusal := _refusal(cursor, namespace, each)) is not None:
            return refusal
    for each, parent in fork.family():
        _write(cursor, namespace, each, parent, act, now, hint)
    hint.due = True
    return starts.find(cursor, namespace, fork.new.run_id)


def _refusal(cursor: sqlite3.Cursor, namespace: str, fork: Fork) -> BatutaError | None:
    """The conflict."""
    row = one(cursor.execute(Q["run_by_run_id"], (namespace, fork.source.bytes)))
    if row is None:
        return UnknownRun(fork.source, namespace)
    source = run_of(row)
    if why := rules.why_moved(fork, source, bool(row[_CURRENT])):
        return RunMoved(source.id, why)
    if fork.close is not None:
        found = cursor.execute(Q["answers"], (source.chain_id.bytes, namespace, str(fork.source))).fetchall()
        if not {message_id for (message_id,) in found} <= set(fork.heard):
            return RunMoved(source.id, rules.UNHEARD)
    if fork.id and (taken := one(cursor.execute(Q["run_by_id"], (namespace, fork.id)))) is not None:
        return AlreadyStarted(fork.id, run_of(taken).state, "give another id")
    letter = state_of(cursor, namespace, fork.source) if fork.letter else LetterState.OPEN
    return None if letter == LetterState.OPEN else LetterResolved(source.id, letter or "no dead letter")


def _write(
    cursor: sqlite3.Cursor, namespace: str, fork: Fork, parent: RunId | None, act: Act, now: int, hint: Hint
) -> None:
    row = one(cursor.execute(Q["run_by_run_id"], (namespace, fork.source.bytes)))
    assert row is not None  # noqa: S101 - looked at before
    source = run_of(row)
    if fork.letter:
        resolve(cursor, namespace, [fork.source], LetterState.REPROCESSED, "", [fork.new.run_id], now)
    if fork.close is not None:
        _close(cursor, namespace, source, fork, now, hint)
    new = rules.fork_start(fork, source, stored_values.POLICIES[row[_POLICY]], parent)
    _insert(cursor, namespace, fork, new, now)
    _fill_inbox(cursor, namespace, source, fork, new, now)
    before, after = state_json(source.state), rules.fork_said(fork)
    done = Changed(target=source.id, run_id=str(fork.source), before=before, after=after)
    record(cursor, namespace, now, act, [done])


def _close(cursor: sqlite3.Cursor, namespace: str, source: Run, fork: Fork, now: int, hint: Hint) -> None:
    entry = fork.close
    assert entry is not None  # noqa: S101 - asked before
    reason = decode_body(entry).reason
    told = starts.close(
        cursor, namespace, source.run_id, source.head, entry, RunState.TERMINATED, reason, now, quiet=True
    )
    if told is not None:
        hint.messages += told.messages
        if hint.closed is not None:
            hint.closed += told.closed or ()


def _insert(cursor: sqlite3.Cursor, namespace: str, fork: Fork, new: NewRun, now: int) -> None:
    head, run_id = fork.keep + len(fork.entries), new.run_id.bytes
    if not fork.id:
        cursor.execute(Q["supersede"], (namespace, new.id))
    deadline = deadline_of(cursor, namespace, new, now)
    cursor.execute(Q["insert_run"], new_run_row(namespace, new, now, deadline, epoch=0, head=head, owner=None))
    state = RunState.PENDING if head < 0 else RunState.WAITING
    lineage = (fork.source.bytes, rules.forked_at(fork))
    cursor.execute(Q["mark_fork"], (state.value, *lineage, namespace, run_id))
    note_keyed(cursor, namespace, [new])
    if fork.keep >= 0:
        values = {"new": run_id, "source": fork.source.bytes, "namespace": namespace, "keep": fork.keep}
        cursor.execute(Q["copy_entries"], values)
    rows: list[Row] = [entry_row(namespace, run_id, 0, entry) for entry in fork.entries]
    cursor.executemany(Q["insert_entry"], rows)
    cursor.executemany(Q["upsert_attempt"], [attempt_row(namespace, blob(new.run_id), one) for one in fork.attempts])
    cursor.executemany(Q["upsert_output"], [output_row(namespace, run_id, one) for one in fork.outputs])


def _fill_inbox(cursor: sqlite3.Cursor, namespace: str, source: Run, fork: Fork, new: NewRun, now: int) -> None:
    before, chain = source.chain_id.bytes, rules.chain_of(new)
    if not fork.id:
        kept = to_json(sorted(rules.kept_for_the_next(fork)))
        cursor.execute(Q["read_for_the_source"], (now, before, namespace, kept))
    for message_id in fork.again:
        if fork.id:
            values = {"new": chain.bytes, "source": before, "message_id": message_id, "now": now}
            cursor.execute(Q["copy_message"], values | {"namespace": namespace})
        else:
            cursor.execute(Q["read_again"], (before, namespace, message_id))
    started = [] if fork.keep + len(fork.entries) >= 0 else [rules.successor_start(fork.new)]
    rows = [message_row(namespace, chain, message, now) for message in (*started, *fork.messages)]
    cursor.executemany(Q["insert_message"], rows)
