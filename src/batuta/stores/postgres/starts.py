"""Runs come in, and messages for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from asyncpg import Record

from batuta.errors import BadData, OutcomeUnknown, RunClosed, StoreUnavailable, UnknownRun
from batuta.ids import RunId
from batuta.journal.audit import Act
from batuta.journal.records import GIVES, Hint, Message, NewRun, Run, StartOutcome
from batuta.stores.contract import rules
from batuta.stores.postgres.audit import act_values
from batuta.stores.postgres.base import Base
from batuta.stores.postgres.database import batch_columns
from batuta.stores.postgres.database.connection import Session
from batuta.stores.postgres.database.errors import RowLocked
from batuta.stores.postgres.database.row_locks import patiently, split
from batuta.stores.postgres.database.rows import run_of, run_of_start, standard
from batuta.stores.postgres.fast.column_encoding import plain_texts, unowned_texts

_SLICE = 256
"""Outcomes of a large batch that are reported before others get a turn on the event loop."""
_PART = 1_000
"""Plain runs that are inserted by one statement: while the database has them, the next are made ready."""
_JUST_GONE = "the run with id {!r} disappeared during the start: try again"


class Starts(Base):
    """Starting and sending."""

    async def start(self, run: NewRun, message: Message | None = None) -> tuple[Run, bool]:
        if message is None:
            return rules.started((await self._start_patiently([run], None))[0])
        return await self._start_and_send(run, message)

    @patiently
    async def _start_and_send(self, run: NewRun, message: Message) -> tuple[Run, bool]:
        if run.debounce and (replaced := await self._start_debounced(run, message)) is not None:
            return replaced
        may_join = run.if_exists in GIVES
        columns = (
            *batch_columns.new_run_columns([batch_columns.unowned_row(run)]),
            *_message_values(rules.start_message(run)),
        )
        values = (self.namespace, may_join, *columns, *_message_values(message))
        async with self._pool.session() as session:
            [(outcome, receiver, state, owner)] = await session.write(self._sql["start_and_send"], *values)
            if outcome == "taken":
                rows = await session.read(self._sql["run"], self.namespace, receiver)
                return rules.started(outcome_of(run, rows[0] if rows else None))
            if outcome == "closed":
                raise RunClosed(run.id, state)
            if outcome == "full":
                raise rules.inbox_full(self.namespace, run.id, int(state))
            self._announce("sent" if outcome == "new" else outcome, receiver, state, owner)
            rows = await session.read(self._sql["run"], self.namespace, receiver)
        return run_of(rows[0]), receiver == run.run_id

    async def _start_debounced(self, run: NewRun, message: Message) -> tuple[Run, bool] | None:
        """None when it was written before, or its id is taken: then it is a start as any other."""
        values = (self.namespace, None, *batch_columns.together_columns([run]), *_message_values(message))
        async with self._pool.session() as session:
            for row in await session.write(self._sql["start_debounced_and_send"], *values):
                if row["outcome"] == "full":
                    raise rules.inbox_full(self.namespace, run.id, int(row["receiver_state"]))
                self._announce(row["outcome"], row["started"], row["receiver_state"], None)
                rows = await session.read(self._sql["run"], self.namespace, row["started"])
                return run_of(rows[0]), row["started"] == run.run_id
        return None

    async def start_many(self, runs: Sequence[NewRun], after: NewRun | None = None) -> list[StartOutcome]:
        if after is None and not runs:
            return []
        if after is not None:
            return await self._start_patiently(runs, after)
        try:
            return await self._start_many(runs)
        except RowLocked:
            return await self._start_apart(runs)

    async def _start_apart(self, runs: Sequence[NewRun]) -> list[StartOutcome]:
        """Start runs that need no locked row.

        A start whose id, or the run that has it, is in another open transaction is reported as locked, and does not
        delay the others.
        """
        outcomes: list[StartOutcome] = []
        end, pieces = time.monotonic() + self.address.lock_timeout, [list(runs)]
        while pieces:
            piece = pieces.pop()
            try:
                outcomes += await self._start_many(piece)
            except RowLocked as error:
                if len(piece) > 1 and time.monotonic() < end:
                    pieces += reversed(split(piece))
                else:
                    outcomes += [RowLocked(*error.args) for _ in piece]
            except StoreUnavailable as error:
                if any(isinstance(outcome, tuple) for outcome in outcomes):
                    raise OutcomeUnknown(str(error)) from error
                raise
        return outcomes

    @patiently
    async def _start_patiently(self, runs: Sequence[NewRun], after: NewRun | None) -> list[StartOutcome]:
        return await self._start_many(runs, after)

    async def _start_many(self, runs: Sequence[NewRun], after: NewRun | None = None) -> list[StartOutcome]:
        outcomes: dict[RunId, StartOutcome] = {}
        async with self._pool.session() as session:
            if after is None and (created := await self._insert_plain(session, runs)):
                return await self._all_new(runs, created)
            asked = list(runs) if after is None else [*(rules.member(run, after) for run in runs), after]
            try:
                rows = await self._insert(session, asked, after)
            except BadData:
                sound = await self._sound(session, asked, after, outcomes)
                rows = await self._insert(session, sound, after) if sound else []
            try:
                await self._tell_outcomes(session, asked, after, rows, outcomes)
            except StoreUnavailable as error:
                if not rows:
                    raise
                # "Nothing was written" would be a lie: some of them are.
                raise OutcomeUnknown(str(error)) from error
        return [outcomes[run.run_id] for run in asked]

    async def _insert(self, session: Session, runs: Sequence[NewRun], after: NewRun | None) -> list[Record]:
        query, values = self._insertion(runs, after)
        return await session.write(query, *values)

    async def _insert_plain(self, session: Session, runs: Sequence[NewRun]) -> list[int]:
        """When they were created, part by part; nothing when they are not as most runs are, or a transaction of several
        parts broke before its commit: then nothing is written."""
        query = self._sql["start_plain"]
        size = _PART if not self.address.is_pooled else len(runs)
        parts = (self._plain_part(runs[first : first + size]) for first in range(0, len(runs), size))
        try:
            if len(runs) > size:
                created = await session.write_in_parts(query, parts)
            else:
                part = next(parts)
                created = [None] if part is None else list((await session.write(query, *part))[0])
        except BadData:
            return []
        except StoreUnavailable:
            if len(runs) <= size:
                raise
            return []  # as one statement it is tried again, or its outcome is reported as unknown
        return [] if None in created else created

    def _plain_part(self, runs: Sequence[NewRun]) -> tuple[Any, ...] | None:
        values = plain_texts(runs)
        return None if values is None else (self.namespace, *values)

    async def _all_new(self, runs: Sequence[NewRun], created: list[int]) -> list[StartOutcome]:
        self._announcer.tell(Hint(due=True))
        size = _PART if len(created) > 1 else len(runs)
        outcomes: list[StartOutcome] = []
        for number, run in enumerate(runs, 1):
            if number % _SLICE == 0:
                await asyncio.sleep(0)  # callers that just got their outcome begin to work meanwhile
            created_at = created[(number - 1) // size]
            outcomes.append((run_of_start(run, created_at, None, created_at + run.delay), True))
        return outcomes

    def _insertion(self, runs: Sequence[NewRun], after: NewRun | None) -> tuple[str, list[object]]:
        if after is None and not any(run.debounce for run in runs):
            return self._sql["start_runs"], [self.namespace, *unowned_texts(runs)]
        awaiting = next((run.run_id for run in runs if run is after), None)
        return self._sql["start_together"], [self.namespace, awaiting, *batch_columns.together_columns(runs)]

    async def _sound(
        self, session: Session, runs: Sequence[NewRun], after: NewRun | None, outcomes: dict[RunId, StartOutcome]
    ) -> list[NewRun]:
        """The runs whose data the database accepts; for the others it notes why not. Nothing is written."""
        try:
            query, values = self._insertion(runs, after)
            await session.rehearse(query, *values)
        except BadData as error:
            middle = len(runs) // 2
            if middle == 0:
                outcomes[runs[0].run_id] = error
                return []
            halves = (runs[:middle], runs[middle:])
            return [run for half in halves for run in await self._sound(session, half, after, outcomes)]
        return list(runs)

    async def _tell_outcomes(
        self,
        session: Session,
        runs: Sequence[NewRun],
        after: NewRun | None,
        rows: Sequence[Record],
        outcomes: dict[RunId, StartOutcome],
    ) -> None:
        """The outcome of each. Starts that made no new run are looked up."""
        made = {row["started"].int: row for row in rows}
        replaced: dict[RunId, RunId] = {}
        if rows:
            self._announcer.tell(Hint(due=True))
            if "asked" in rows[0]:
                made = {row["started"].int: row for row in rows if row["asked"] == row["started"]}
                replaced = {row["asked"]: row["started"] for row in rows if row["asked"] != row["started"]}
        rest: list[NewRun] = []
        for number, run in enumerate(runs, 1):
            if number % _SLICE == 0:
                await asyncio.sleep(0)  # callers that just got their outcome begin to work meanwhile
            row = made.get(run.run_id.int)
            if row is not None and run is not after and (after is None or after.run_id.int in made):
                outcomes[run.run_id] = (run_of_start(run, row["started_at"], row["ends_at"], row["due_at"]), True)
            elif run.run_id not in outcomes:
                rest.append(run)
        if rest:
            outcomes.update(await self._look_up(session, rest, replaced))

    async def _look_up(
        self, session: Session, runs: Sequence[NewRun], replaced: Mapping[RunId, RunId]
    ) -> dict[RunId, StartOutcome]:
        """The existing runs in place of the requested ones; `replaced` has some of those."""
        keys = [replaced.get(run.run_id, run.run_id) for run in runs]
        ids = [run.id for run in runs]
        found = await session.read(self._sql["standing_starts"], self.namespace, keys, ids)
        known = {row["asked"]: row for row in found}
        outcomes = {run.run_id: outcome_of(run, known.get(key)) for run, key in zip(runs, keys, strict=True)}
        if len(known) < len(runs):
            for (run_id,) in await session.read(self._sql["elsewhere"], self.namespace, list(outcomes)):
                outcomes[standard(run_id)] = BadData(f"run {run_id} cannot be inserted: its run id is taken")
        return outcomes

    async def send(self, run_id: RunId, message: Message, act: Act | None = None) -> bool:
        query, said = ("send_message", ()) if act is None else ("send_as_act", act_values(act))
        [(outcome, receiver, state, owner, *_)] = await self._execute(query, run_id, *_message_values(message), *said)
        if outcome == "unknown":
            raise UnknownRun(run_id, self.namespace)
        if outcome in ("closed", "full"):
            rows = await self._read("run", run_id)
            id = rows[0]["id"] if rows else run_id
            raise RunClosed(id, state) if outcome == "closed" else rules.inbox_full(self.namespace, id, int(state))
        self._announce(outcome, receiver, state, owner)
        return bool(outcome == "sent")

    async def unpark(self, run_id: RunId, act: Act | None = None) -> bool:
        rows = await self._execute("unpark", run_id, *act_values(act))
        known, unparked, _ = rows[0]
        if not known:
            raise UnknownRun(run_id, self.namespace)
        self._announcer.tell(Hint(due=unparked))
        return bool(unparked)

    def _announce(self, outcome: str, receiver: RunId, state: str | None, owner: str | None) -> None:
        if outcome == "sent" and owner is not None:
            self._announcer.tell(Hint(messages=[standard(receiver)]))
        elif outcome == "sent" and state in ("pending", "waiting"):
            self._announcer.tell(Hint(due=True))


def outcome_of(run: NewRun, row: Record | Mapping[str, Any] | None) -> StartOutcome:
    """For a start that made no new run, or conflicts: the existing run."""
    if row is None:
        return StoreUnavailable(_JUST_GONE.format(run.id))
    if row["run_id"] == run.run_id:
        return run_of(row), True  # the same start, also one that is written again because its first answer was lost
    return (run_of(row), False) if run.debounce else rules.taken_by(run, run_of(row))


def _message_values(message: Message) -> tuple[str, str, str, str]:
    return message.message_id, message.kind, message.name, message.body
