"""Operations on many runs, in SQLite."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from batuta.ids import RunId
from batuta.journal.audit import Act, Changed
from batuta.journal.entries import Entry
from batuta.journal.records import Hint, Message, MessageKind, Run
from batuta.journal.states import RunState
from batuta.stores.contract import rules, stored_values
from batuta.stores.sqlite.audit import changed, record
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.rows import entry_row, message_row, one, run_of
from batuta.stores.sqlite.database.writer import Writer
from batuta.stores.sqlite.inbox import InboxWriter, Target

MANY = 20
"""More runs than that are changed in a thread: the event loop has better to do."""


class BulkVerbs(ABC):
    """The part of the store that holds runs."""

    namespace: str
    _writer: Writer

    @abstractmethod
    def clock_now(self) -> int: ...

    @abstractmethod
    def tell(self, hint: Hint) -> None: ...

    async def pause_runs(self, run_ids: Sequence[RunId], act: Act) -> list[RunId]:
        return await self._hold(run_ids, lambda holding: holding.pause(run_ids, act))

    async def resume_runs(self, run_ids: Sequence[RunId], act: Act) -> list[RunId]:
        return await self._hold(run_ids, lambda holding: holding.resume(run_ids, act))

    async def cancel_runs(self, run_ids: Sequence[RunId], reason: str, act: Act) -> list[RunId]:
        return await self._hold(run_ids, lambda holding: holding.cancel(run_ids, reason, act))

    async def end_unbegun(self, run_ids: Sequence[RunId], reason: str) -> list[RunId]:
        return await self._hold(run_ids, lambda holding: holding.end_unbegun(run_ids, reason))

    async def terminate_runs(self, run_ids: Sequence[RunId], reason: str, act: Act) -> list[RunId]:
        return await self._hold(run_ids, lambda holding: holding.terminate(run_ids, reason, act))

    async def _hold(
        self, run_ids: Sequence[RunId], verb: Callable[[BulkTransaction], tuple[list[RunId], Hint]]
    ) -> list[RunId]:
        def work(cursor: sqlite3.Cursor) -> tuple[list[RunId], Hint]:
            return verb(BulkTransaction(cursor, self.namespace, self.clock_now()))

        done, hint = await self._writer.write(work, aside=len(run_ids) > MANY)
        self.tell(hint)
        return done


class BulkTransaction:
    """One transaction, at one moment."""

    def __init__(self, cursor: sqlite3.Cursor, namespace: str, now: int) -> None:
        self._cursor = cursor
        self._namespace = namespace
        self._now = now

    def pause(self, run_ids: Sequence[RunId], act: Act) -> tuple[list[RunId], Hint]:
        runs = [run for run in self._open(run_ids) if self._may_pause(run)]
        said: list[Changed] = []
        for run in runs:
            self._pause(run, act.reason)
            said.append(changed(run, RunState.PAUSED if run.owner is None else run.state))
        record(self._cursor, self._namespace, self._now, act, said)
        return [run.run_id for run in runs], Hint(messages=[run.run_id for run in runs if run.owner is not None])

    def resume(self, run_ids: Sequence[RunId], act: Act) -> tuple[list[RunId], Hint]:
        runs = [run for run in self._open(run_ids) if run.state is RunState.PAUSED or self._pauses(run)]
        for run in runs:
            self._resume(run)
        record(self._cursor, self._namespace, self._now, act, [changed(run, _resumed_state(run)) for run in runs])
        told = [run.run_id for run in runs if run.owner is not None]
        return [run.run_id for run in runs], Hint(due=len(told) < len(runs), messages=told)

    def cancel(self, run_ids: Sequence[RunId], reason: str, act: Act) -> tuple[list[RunId], Hint]:
        hint = Hint()
        post = InboxWriter(self._cursor, self._namespace, self._now, hint)
        asked: list[Run] = []
        for run in self._open(run_ids):
            target = Target(run.run_id.bytes, run.chain_id.bytes, run.state, run.owner, run.closed_at)
            if post.deliver(target, rules.cancel_message(run.run_id, reason)):
                asked.append(run)
        post.wake()
        record(self._cursor, self._namespace, self._now, act, [changed(run, run.state) for run in asked])
        return [run.run_id for run in asked], hint

    def terminate(self, run_ids: Sequence[RunId], reason: str, act: Act) -> tuple[list[RunId], Hint]:
        runs = self._open(run_ids)
        entries = [rules.terminated_entry(run.head, self._last_word(run), self._now, reason) for run in runs]
        record(self._cursor, self._namespace, self._now, act, [changed(run, RunState.TERMINATED) for run in runs])
        return [run.run_id for run in runs], self._close(runs, entries, RunState.TERMINATED, reason)

    def end_unbegun(self, run_ids: Sequence[RunId], reason: str) -> tuple[list[RunId], Hint]:
        runs = [run for run in self._open(run_ids) if rules.may_end_unbegun(run, self._unread(run))]
        entries = [rules.cancelled_entry(self._now, reason) for _ in runs]
        return [run.run_id for run in runs], self._close(runs, entries, RunState.CANCELLED, reason)

    def _close(self, runs: Sequence[Run], entries: Sequence[Entry], state: RunState, reason: str) -> Hint:
        """Each with its last entry."""
        hint = Hint(closed=[run.run_id for run in runs])
        post = InboxWriter(self._cursor, self._namespace, self._now, hint)
        for run, entry in zip(runs, entries, strict=True):
            values = (state.value, self._now, reason, self._namespace, run.run_id.bytes, run.head)
            self._cursor.execute(Q["close_from_outside"], values)
            self._cursor.execute(Q["insert_entry"], entry_row(self._namespace, run.run_id.bytes, run.epoch + 1, entry))
            post.tell_kin(run.run_id.bytes, run.id, run.parent_seq, state, reason)
        post.wake()
        hint.messages += [run.run_id for run in runs if run.owner is not None]
        hint.due = hint.due or bool(hint.messages)  # wakes workers that wait for their slots
        return hint

    def _open(self, run_ids: Sequence[RunId]) -> list[Run]:
        asked = ((self._namespace, run_id.bytes) for run_id in dict.fromkeys(run_ids))
        rows = (one(self._cursor.execute(Q["run_by_run_id"], key)) for key in asked)
        found = (run_of(row) for row in rows if row is not None)
        return [run for run in found if run.closed_at is None]

    def _pauses(self, run: Run) -> bool:
        return one(self._cursor.execute(Q["unread_pauses"], (run.chain_id.bytes, self._namespace))) is not None

    def _last_word(self, run: Run) -> tuple[int, int] | None:
        row = one(self._cursor.execute(Q["last_word"], (run.run_id.bytes, self._namespace, run.head)))
        return None if row is None else (row[0], row[1])

    def _unread(self, run: Run) -> set[MessageKind]:
        rows = self._cursor.execute(Q["unread_all_kinds"], (run.chain_id.bytes, self._namespace)).fetchall()
        return {stored_values.MESSAGE_KINDS[kind] for (kind,) in rows}

    def _may_pause(self, run: Run) -> bool:
        return run.state is not RunState.PAUSED if run.owner is None else not self._pauses(run)

    def _pause(self, run: Run, reason: str) -> None:
        if run.owner is not None:
            row = one(self._cursor.execute(Q["count_pauses"], (run.chain_id.bytes, self._namespace)))
            number = 1 if row is None else row[0] + 1
            message = Message(message_id=f"pause:{number}", kind=MessageKind.PAUSE, name=reason)
            row = message_row(self._namespace, run.chain_id, message, self._now)
            self._cursor.execute(Q["insert_message"], row)
            return
        self._cursor.execute(Q["read_pauses"], (self._now, run.chain_id.bytes, self._namespace))
        values = {"now": self._now, "reason": reason, "namespace": self._namespace, "run_id": run.run_id.bytes}
        self._cursor.execute(Q["pause_run"], values)

    def _resume(self, run: Run) -> None:
        self._cursor.execute(Q["read_pauses"], (self._now, run.chain_id.bytes, self._namespace))
        if run.state is not RunState.PAUSED:
            return
        if rules.counts_pauses(run):
            self._note_pause(run)
        values = {
            "wake_at": rules.resumed_at(run, self._unread(run), self._now),
            "deadline": rules.put_off_by_pause(run.deadline, run.paused_at, self._now),
            "expires_at": rules.put_off_by_pause(run.expires_at, run.paused_at, self._now),
            "namespace": self._namespace,
            "run_id": run.run_id.bytes,
        }
        self._cursor.execute(Q["resume_run"], values)

    def _note_pause(self, run: Run) -> None:
        run_id, namespace = run.run_id.bytes, self._namespace
        values = {"now": self._now, "paused_at": run.paused_at, "namespace": namespace, "run_id": run_id}
        self._cursor.execute(Q["put_off_answers"], values)
        self._cursor.execute(Q["note_pause"], values)


def _resumed_state(run: Run) -> RunState:
    if run.state is not RunState.PAUSED:
        return run.state
    return RunState.PENDING if run.head < 0 else RunState.WAITING
