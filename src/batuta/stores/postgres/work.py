"""Runs come in, and workers take them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import json

from batuta.errors import AlreadyStarted, BadData, OutcomeUnknown, RunClosed, StoreUnavailable, UnknownRun
from batuta.ids import RunId
from batuta.journal.records import Hint, IfExists, Message, NewRun, Run, StartOutcome, Tape, WorkerInfo
from batuta.stores import rules
from batuta.stores.postgres import batch
from batuta.stores.postgres.base import Base
from batuta.stores.postgres.rows import attempt_of, fill_journals, message_of, run_of, run_of_start, standard
from batuta.stores.postgres.session import Session
from batuta.stores.postgres.texts import ids_text


class Work(Base):
    """Starting, sending and claiming."""

    async def start(self, run: NewRun, message: Message | None = None) -> tuple[Run, bool]:
        if message is None:
            return rules.started((await self.start_many([run]))[0])
        may_join = run.if_exists is IfExists.RETURN
        columns = (*batch.new_run_columns([batch.unowned_row(run)]), *_message_values(rules.start_message(run)))
        values = (self.namespace, may_join, *columns, *_message_values(message))
        async with self._pool.session() as session:
            [(outcome, receiver, state, owner)] = await session.write(self._sql["start_and_send"], *values)
            if outcome == "taken":
                raise AlreadyStarted(run.id, state)
            if outcome == "closed":
                raise RunClosed(run.id, state)
            self._announce("sent" if outcome == "new" else outcome, receiver, state, owner)
            rows = await session.read(self._sql["run"], self.namespace, receiver)
        return run_of(rows[0]), receiver == run.run_id

    async def start_many(self, runs: Sequence[NewRun]) -> list[StartOutcome]:
        outcomes: dict[RunId, StartOutcome] = {}
        async with self._pool.session() as session:
            try:
                await self._start_many(session, runs, outcomes)
            except StoreUnavailable as error:
                if not outcomes:
                    raise
                # "Nothing was written" would be a lie: some of them are.
                raise OutcomeUnknown(str(error)) from error
        return [outcomes[run.run_id] for run in runs]

    async def _start_many(self, session: Session, runs: Sequence[NewRun], outcomes: dict[RunId, StartOutcome]) -> None:
        try:
            rows = await session.write(self._sql["start_runs"], self.namespace, *batch.unowned_columns(runs))
        except BadData as error:
            middle = len(runs) // 2
            if middle == 0:
                outcomes[runs[0].run_id] = error
                return
            for some in (runs[:middle], runs[middle:]):  # a value was refused: find out whose
                await self._start_many(session, some, outcomes)
            return
        new = {row["started"]: row for row in rows}
        if new:
            self._announcer.tell(Hint(due=True))
        outcomes.update({run.run_id: (run_of_start(run, new[run.run_id]), True) for run in runs if run.run_id in new})
        for run in runs:
            if run.run_id not in new:
                outcomes[run.run_id] = await self._taken(session, run)

    async def _taken(self, session: Session, run: NewRun) -> StartOutcome:
        if known := await session.read(self._sql["run"], self.namespace, run.run_id):
            return run_of(known[0]), True  # the same start, written again because its first answer was lost
        current = await session.read(self._sql["current_run"], self.namespace, run.id)
        if not current:
            return StoreUnavailable(f"the run with id {run.id!r} vanished while another was started: try again")
        if run.if_exists is IfExists.RETURN:
            return run_of(current[0]), False
        return AlreadyStarted(run.id, current[0]["state"])

    async def send(self, run_id: RunId, message: Message) -> bool:
        rows = await self._pool.write(self._sql["send_message"], self.namespace, run_id, *_message_values(message))
        outcome, receiver, state, owner = rows[0]
        if outcome == "unknown":
            raise UnknownRun(run_id, self.namespace)
        if outcome == "closed":
            raise RunClosed(run_id, state)
        self._announce(outcome, receiver, state, owner)
        return bool(outcome == "sent")

    async def unpark(self, run_id: RunId) -> bool:
        known, unparked = (await self._pool.write(self._sql["unpark"], self.namespace, run_id))[0]
        if not known:
            raise UnknownRun(run_id, self.namespace)
        self._announcer.tell(Hint(due=unparked))
        return bool(unparked)

    def _announce(self, outcome: str, receiver: RunId, state: str | None, owner: str | None) -> None:
        if outcome == "sent" and owner is not None:
            self._announcer.tell(Hint(messages=[standard(receiver)]))
        elif outcome == "sent" and state in ("pending", "waiting"):
            self._announcer.tell(Hint(due=True))

    async def register(self, worker: WorkerInfo) -> int:
        rows = await self._pool.write(
            self._sql["register"],
            self.namespace,
            worker.worker_id,
            worker.queues,
            json.encode(worker.code).decode(),
            worker.host,
            worker.pid,
            worker.lease,
            self.address.for_sessions is not None,
        )
        now: int = rows[0]["now"]
        return now

    async def retire(self, worker_id: str) -> None:
        rows = await self._pool.write(self._sql["retire"], self.namespace, worker_id)
        self._announcer.tell(Hint(due=rows[0]["freed"] > 0))

    async def claim(self, worker: WorkerInfo, limit: int) -> list[Tape]:
        async with self._pool.session() as session:
            rows = await session.write(
                self._sql["claim"],
                self.namespace,
                worker.worker_id,
                worker.queues,
                list(worker.code),
                list(worker.code.values()),
                limit,
                replied=self._claimed,
            )
            return await self._tapes(session, [run_of(row) for row in rows])

    def _claimed(self) -> None:
        self._lose_reply("claim")

    async def due_at(self, worker: WorkerInfo) -> int | None:
        names, fingerprints = list(worker.code), list(worker.code.values())
        rows = await self._pool.read(
            self._sql["due_at"], self.namespace, worker.worker_id, worker.queues, names, fingerprints
        )
        due_at: int | None = rows[0]["due_at"]
        return due_at

    async def load(self, run_id: RunId) -> Tape:
        async with self._pool.session() as session:
            rows = await session.read(self._sql["run"], self.namespace, run_id)
            if not rows:
                raise UnknownRun(run_id, self.namespace)
            return (await self._tapes(session, [run_of(rows[0])]))[0]

    async def _tapes(self, session: Session, runs: list[Run]) -> list[Tape]:
        """Bring the rest of what belongs to these runs. What comes in between is not lost: it is unread, or a hint."""
        if not runs:
            return []
        ids, chains = ids_text(run.run_id for run in runs), ids_text(run.chain_id for run in runs)
        heads = ",".join([str(run.head) for run in runs])
        tapes = [Tape(run, [], [], []) for run in runs]
        more = fill_journals(tapes, await session.read(self._sql["journals"], self.namespace, ids, heads, chains))
        tried = {tape.run.run_id: tape for tape, tried, _ in more if tried}
        if tried:
            for row in await session.read(self._sql["attempts"], self.namespace, list(tried)):
                tried[row["run_id"]].attempts.append(attempt_of(row))
        told = {tape.run.chain_id: tape for tape, _, told in more if told}
        if told:
            for row in await session.read(self._sql["messages"], self.namespace, list(told)):
                told[row["chain_id"]].messages.append(message_of(row))
        return tapes

    async def unread(self, run_ids: Sequence[RunId]) -> dict[RunId, tuple[int, list[Message]]]:
        found: dict[RunId, tuple[int, list[Message]]] = {}
        for row in await self._pool.read(self._sql["unread"], self.namespace, list(run_ids)):
            _epoch, messages = found.setdefault(standard(row["run_id"]), (row["epoch"], []))
            if row["message_id"] is not None:
                messages.append(message_of(row))
        return found


def _message_values(message: Message) -> tuple[str, str, str, str]:
    return message.message_id, message.kind, message.name, message.body
