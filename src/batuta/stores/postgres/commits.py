"""The hot path: changes of a batch made durable in one round trip, each under its run's fence."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any

from asyncpg import Record

from batuta.errors import OutcomeUnknown, StoreUnavailable
from batuta.failpoints import failpoint
from batuta.ids import RunId
from batuta.journal.audit import Act
from batuta.journal.child_outcomes import ended_outcome
from batuta.journal.entries import Entry
from batuta.journal.records import Change, Hint, Refusal, Verdict
from batuta.journal.states import CLOSED, RunState
from batuta.stores.contract import rules
from batuta.stores.postgres import cross_run_effects
from batuta.stores.postgres.audit import act_values
from batuta.stores.postgres.base import Base
from batuta.stores.postgres.database import batch_columns
from batuta.stores.postgres.database.connection import Session
from batuta.stores.postgres.database.errors import RowLocked
from batuta.stores.postgres.database.row_locks import in_turns, patiently, split
from batuta.stores.postgres.database.rows import run_ids
from batuta.stores.postgres.fast.column_encoding import entry_texts, ids_text, job_texts, start_texts

BESIDE_SECONDS = 5.0
"""For splitting a batch that waits for locked rows, beside the others."""


class Commits(Base):
    """Committing and closing."""

    async def commit(self, worker_id: str, changes: Sequence[Change]) -> dict[int, Verdict | list[Refusal]]:
        if not changes:
            return {}
        if self._busy and self._busy.issuperset([change.run_id for change in changes]):
            async with self._beside:  # the others need not wait for it
                return await self._spare(worker_id, changes, self._beside_session, BESIDE_SECONDS)
        await self._committing.acquire()
        try:
            query, values = self._alone(worker_id, changes[0]) if len(changes) == 1 else (None, ())
            if query is None:
                return await self._commit_part(worker_id, changes, self._commit_session)
            self._busy_poll.stay()
            rows = await self._commit_session.write(query, *values, replied=self._committed)
            self._busy_poll.rest()
            if not rows:
                return await self._settle(worker_id, changes, {}, [0], Hint(), self._commit_session)
            if changes[0].move is not None:  # else it goes on by itself
                due = rows[0]["due"] or self._held
                self._announcer.tell_after(Hint(due=due or False, closed=[changes[0].run_id]))
            return {}
        except RowLocked:
            return await self._spare(worker_id, changes, self._commit_session, 0.0)
        finally:
            self._committing.release()

    async def _spare(
        self, worker_id: str, changes: Sequence[Change], session: Session, seconds: float
    ) -> dict[int, Verdict | list[Refusal]]:
        """Write the changes that need no locked row; the others are BUSY.

        First it asks which of their own rows, parents and receivers are locked. If that was not all, as when another
        open transaction has begun a run with the id of a start, changes without a start are tried separately. For this
        many seconds, failing parts are then split further.
        """
        locked = await in_turns(lambda: self._locked(changes, session), self.address.lock_timeout)
        indexes = [index for index, change in enumerate(changes) if change.run_id not in locked]
        busy = [index for index, change in enumerate(changes) if change.run_id in locked]
        pieces, answers, end = deque([indexes]), dict[int, Verdict | list[Refusal]](), time.monotonic() + seconds
        is_written = False
        while pieces:
            if not (piece := pieces.popleft()):
                continue
            try:
                found = await self._commit_part(worker_id, [changes[index] for index in piece], session)
                is_written = True
                answers.update({piece[place]: answer for place, answer in found.items()})
            except RowLocked:
                starts = [index for index in piece if changes[index].start is not None]
                if 0 < len(starts) < len(piece):
                    pieces += [[index for index in piece if changes[index].start is None], starts]
                elif len(piece) > 1 and time.monotonic() < end:
                    pieces += split(piece)
                else:
                    busy += piece
            except StoreUnavailable as error:
                if is_written:  # "nothing was written" would be a lie
                    raise OutcomeUnknown(str(error)) from error
                raise
        answers.update(dict.fromkeys(busy, Verdict.BUSY))
        self._busy.difference_update(change.run_id for change in changes)
        self._busy.update(changes[index].run_id for index in busy)
        return answers

    async def _locked(self, changes: Sequence[Change], session: Session) -> set[RunId]:
        reaching = [(change.run_id, change.effects) for change in changes if change.effects is not None]
        sends = [(run_id, send.id) for run_id, effects in reaching for send in effects.sends]
        asked = [change.run_id for change in changes]
        rows = await session.write(self._sql["locked"], self.namespace, asked, *batch_columns.as_columns(sends, 2))
        return {row["run_id"] for row in rows}

    async def _commit_part(
        self, worker_id: str, changes: Sequence[Change], session: Session
    ) -> dict[int, Verdict | list[Refusal]]:
        """As `commit`, by the statements for many."""
        found = batch_columns.survey(changes)
        if found.beyond:
            answers, lost, hint = await self._write_beyond(worker_id, changes, session)
            return await self._settle(worker_id, changes, answers, lost, hint, session)
        lost, due = await self._write(worker_id, changes, found, session)
        return await self._settle(worker_id, changes, {}, lost, Hint(due=due), session, moved=bool(found.moved))

    async def _settle(
        self,
        worker_id: str,
        changes: Sequence[Change],
        answers: dict[int, Verdict | list[Refusal]],
        lost: list[int],
        hint: Hint,
        session: Session,
        *,
        moved: bool = True,
    ) -> dict[int, Verdict | list[Refusal]]:
        """Judge the changes whose fence failed, and tell of the others. `moved`: a run does not go on here."""
        try:
            if lost:
                answers.update(await self._judge(worker_id, changes, lost, session))
        except StoreUnavailable as error:  # "nothing was written" would be a lie: the others of the batch are
            raise OutcomeUnknown(str(error)) from error
        self._announce_changes(changes if moved else (), answers, hint)
        return answers

    def _announce_changes(
        self, changes: Sequence[Change], answers: Mapping[int, Verdict | list[Refusal]], hint: Hint
    ) -> None:
        hint.due = hint.due or (self._held and any(change.move is not None for change in changes))
        self._announce_ends(changes, answers, hint)

    def _announce_ends(
        self, changes: Sequence[Change], answers: Mapping[int, Verdict | list[Refusal]], hint: Hint
    ) -> None:
        """The hint, and which runs have closed."""
        if any(isinstance(answer, Verdict) for answer in answers.values()):
            changes = [one for index, one in enumerate(changes) if not isinstance(answers.get(index), Verdict)]
        hint.closed = [one.run_id for one in changes if one.move is not None and one.move.state in CLOSED]
        self._announcer.tell(hint)

    async def _write(
        self, worker_id: str, changes: Sequence[Change], found: batch_columns.Survey, session: Session
    ) -> tuple[list[int], bool]:
        """Indexes of the changes whose fence failed, and whether a run became due."""
        send = partial(self._send, session)
        ordered = batch_columns.in_order(changes)
        if found.readers and (texts := job_texts(ordered)) is not None:
            rows = await send(self._sql["commit_jobs"], self.namespace, worker_id, *texts)
            winners, won, due = rows[0]
            return lost_of(changes, winners, won), due or False
        if found.is_entries_only():
            read = ids_text([change.run_id for change in found.readers])
            columns = entry_texts(ordered, found) + start_texts(found.starts) + [len(changes), read]
            rows = await send(self._sql["commit_entries"], self.namespace, worker_id, *columns)
            winners, won, due, also_due = rows[0]
            due = due or also_due or False
        else:
            columns = batch_columns.change_columns(ordered) + batch_columns.start_columns(found.starts)
            rows = await send(self._sql["commit_changes"], self.namespace, worker_id, *columns)
            won, due = rows[0]
            winners = len(won or ())
        return lost_of(changes, winners, won), due

    async def _write_beyond(
        self, worker_id: str, changes: Sequence[Change], session: Session
    ) -> tuple[dict[int, Verdict | list[Refusal]], list[int], Hint]:
        """The same for changes that reach beyond their runs, some of which have their answer then."""
        statement, columns = cross_run_effects.statement_of(batch_columns.in_order(changes))
        values = self.namespace, worker_id, rules.PARENT_CLOSED, *columns
        rows = await self._send(session, self._sql[statement], *values)
        return *cross_run_effects.verdicts_of(changes, rows[0]), cross_run_effects.hint_of(rows[0])

    def _alone(self, worker_id: str, change: Change) -> tuple[str | None, tuple[Any, ...]]:
        """The statement for a change of one row, with scalars: less than half the work of arrays. Else None.

        Everything is checked here, and not in named functions: after the wait for a sync each function is read from
        memory again, which costs more than its work.
        """
        if len(change.entries) != 1 or change.effects is not None or change.consumed or change.attempts:
            return None, ()
        entry, move, start = change.entries[0], change.move, change.start
        written = entry.ord, entry.kind._value_, entry.at, entry.crc, entry.body
        if start is None:
            fenced = self.namespace, change.run_id, change.epoch, change.head, *written
            if move is None:
                return self._sql["commit_entry"], (*fenced, worker_id)
            if move.state in CLOSED and not move.outcome and not move.children:
                return self._sql["commit_last_entry"], (*fenced, worker_id, move.state._value_, move.reason)
        elif move is None and rules.is_plain_start(start):
            whose = self.namespace, worker_id, start.run_id, start.id
            if rules.says_nothing_more(start):
                named = start.name, start.code or start.name, start.queue
                return self._sql["commit_plain_start"], (*whose, *named, change.epoch, *written[2:])
            return self._sql["commit_start"], (
                *whose,
                start.kind._value_,
                start.name,
                start.queue,
                start.priority,
                start.version,
                start.tags,
                start.memo,
                start.timeout,
                start.execution_timeout,
                change.epoch,
                *written,
                start.code or start.name,
            )
        return None, ()

    def _send(self, session: Session, query: str, *values: object) -> Awaitable[list[Record]]:
        return session.write(query, *values, replied=self._committed)

    def _committed(self) -> None:
        failpoint("commit.after")
        self._lose_reply("commit")

    async def _judge(
        self, worker_id: str, changes: Sequence[Change], lost: list[int], session: Session
    ) -> dict[int, Verdict]:
        """The changes whose fence failed and that we had not written before."""
        asked = [changes[index].run_id for index in lost]
        starts = (changes[index].start for index in lost)
        known = [
            (None,) * 3 if start is None else (start.id, batch_columns.renewal_of(start), start.queue)
            for start in starts
        ]
        columns = [*batch_columns.as_columns(known, 3), [changes[index].new_head for index in lost]]
        rows = await session.read(self._sql["standing"], self.namespace, worker_id, asked, *columns)
        standing = {row["run_id"]: row for row in rows}
        verdicts = ((index, _verdict(changes[index], worker_id, standing[changes[index].run_id])) for index in lost)
        return {index: verdict for index, verdict in verdicts if verdict is not None}

    @patiently
    async def close_run(
        self, run_id: RunId, head: int, entry: Entry, state: RunState, reason: str, act: Act | None = None
    ) -> bool:
        async with self._pool.session() as session:
            run = self._existing(await session.read(self._sql["run"], self.namespace, run_id), run_id)
            columns = [[value] for value in closing_values(run, head, entry, state, reason)]
            values = (state, reason, rules.PARENT_CLOSED)
            query, said = ("close_runs", ()) if act is None else ("close_as_act", act_values(act))
            rows = await session.write(self._sql[query], self.namespace, *values, *columns, None, *said)
        self._announcer.tell(closed_hint(rows[0]))
        return rows[0]["closed"] is not None


def lost_of(changes: Sequence[Change], winners: int, won: Sequence[RunId] | None) -> list[int]:
    """Indexes of the changes whose fence failed. `won` may be missing when there are none."""
    if winners == len(changes):
        return []
    durable = set(won or ())
    return [index for index, change in enumerate(changes) if change.run_id not in durable]


def closing_values(run: Record, head: int, entry: Entry, state: RunState, reason: str) -> tuple[Any, ...]:
    """The arguments of close_runs for a run, of which `run` tells id and parent."""
    seq = run["parent_seq"]
    outcome = "" if run["parent_run_id"] is None else ended_outcome(seq, run["id"], state, reason)
    return run["run_id"], head, entry.kind, entry.at, entry.crc, entry.body, outcome


def closed_hint(row: Record) -> Hint:
    """The hint to send after close_runs."""
    return Hint(
        due=row["due"],
        messages=run_ids(row["disowned"]) + run_ids(row["told"]),
        closed=run_ids(row["closed"]),
    )


def _verdict(change: Change, worker_id: str, row: Record) -> Verdict | None:
    """None when the change exists already: its epoch and its new head were written by us."""
    epoch, head, owner = row["epoch"], row["head"], row["owner"]
    if epoch is None:
        if change.start is None or not row["live"]:
            return Verdict.REFUSED
        return Verdict.EXISTS if row["taken"] else Verdict.QUEUED if row["shut"] else Verdict.REFUSED
    if epoch != change.epoch:
        return Verdict.REFUSED
    if head == change.head and owner == worker_id and row["closed_at"] is None and rules.must_read(change.move):
        return Verdict.UNREAD  # the fence would have held: nothing but messages kept it from closing
    return None if head == change.new_head and rules.was_me(change, worker_id, owner, row["crc"]) else Verdict.REFUSED
