"""Workers take runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from asyncpg import Record
from msgspec import json

from batuta.errors import UnknownRun
from batuta.ids import RunId
from batuta.journal.records import Claim, Hint, Message, Tape, WorkerInfo
from batuta.stores.flow import Hand
from batuta.stores.postgres.base import Base
from batuta.stores.postgres.floors import Floor
from batuta.stores.postgres.rows import (
    attempt_of,
    claimed_tape_of,
    fill_journals,
    message_of,
    run_of,
    standard,
    start_in_row,
)
from batuta.stores.postgres.session import Session
from batuta.stores.postgres.texts import ids_text

MOST_HANDS = 1_000
"""Queues and priorities whose turns are remembered. Forgetting them costs some fairness, once."""


class Work(Base):
    """Claiming."""

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

    async def claim(self, worker: WorkerInfo, limit: int, room: Mapping[str, int] | None = None) -> Claim:
        names, rooms = (list(room), list(room.values())) if room else (None, None)
        floors = self._floors.for_claim(worker.code)
        async with self._pool.session() as session:
            rows = await session.write(
                self._sql["claim"],
                self.namespace,
                worker.worker_id,
                list(dict.fromkeys(worker.queues)),
                list(worker.code),
                list(worker.code.values()),
                limit,
                names,
                rooms,
                self._turns_of(worker.queues) if self._hands else None,
                floors,
                replied=self._claimed,
            )
            claim, risen, more = self._taken(worker, rows)
            self._held = claim.held
            self._floors.claimed(worker.code, risen, whole=floors is None)
            await self._fill(session, more)
        if floors is not None and len(claim.tapes) < limit:
            self._look_again_in(self._floors.seconds_left)
        return claim

    def _taken(self, worker: WorkerInfo, rows: Sequence[Record]) -> tuple[Claim, list[Floor], list[Tape]]:
        """What a claim says. The last are those of its tapes of which there is more to be read."""
        claim, risen, owner = Claim(), list[Floor](), worker.worker_id
        found = [
            claimed_tape_of(row, owner)
            for row in rows
            if row[0] is not None or self._note(json.decode(row["news"]), claim, risen)
        ]
        claim.tapes = [tape for tape, _ in found]
        for tape in claim.tapes if self._hands else ():
            if (hand := self._hands.get((tape.run.queue, tape.run.priority))) is not None:
                hand.count(tape.run.flow_key)
        return claim, risen, [tape for tape, more in found if more]

    def _turns_of(self, queues: Sequence[str]) -> str:
        """Where the turns of flow keys stand in these queues, for the SQL."""
        turns: dict[str, dict[int, tuple[str, int, dict[str, int]]]] = {}
        for (queue, priority), hand in self._hands.items():
            if queue in queues:
                turns.setdefault(queue, {})[priority] = hand.key, hand.step, hand.had
        return json.encode(turns).decode()

    def _look_again_in(self, seconds: float) -> None:
        """Nobody hints again at what a look did not find because it did not begin at the very beginning."""
        if self._look_again is not None:
            self._look_again.cancel()
        self._look_again = asyncio.get_running_loop().call_later(seconds, self._listeners.tell, Hint(due=True))

    def _note(self, news: list[Any], claim: Claim, risen: list[Floor]) -> bool:
        """What a row says that holds no run: see the SQL about claims."""
        match news:
            case [queue, priority, key, step]:
                hand = self._hand(queue, priority)
                hand.key, hand.step = key, step
            case [queue, priority, floor_at]:
                risen.append((queue, priority, floor_at))
            case [again_at, limited]:
                claim.held, claim.again_at, claim.limited = True, again_at, limited or []
        return False

    def _hand(self, queue: str, priority: int) -> Hand:
        place = queue, priority
        if place not in self._hands:
            if len(self._hands) >= MOST_HANDS:
                self._hands.clear()
            self._hands[place] = Hand()
        return self._hands[place]

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
            tape = Tape(run_of(rows[0]), [], _start_of(rows[0]), [])
            await self._fill(session, [tape])
            return tape

    async def _fill(self, session: Session, tapes: list[Tape]) -> None:
        """Bring the rest of what belongs to these runs. What comes in between is not lost: it is unread, or a hint."""
        told = {tape.run.chain_id: tape for tape in tapes if tape.run.head < 0}  # they have nothing but messages
        begun = [tape for tape in tapes if tape.run.head >= 0]
        if begun:
            told |= await self._read_on(session, begun)
        if told:
            for row in await session.read(self._sql["messages"], self.namespace, list(told)):
                told[row["chain_id"]].messages.append(message_of(row))

    async def _read_on(self, session: Session, tapes: list[Tape]) -> dict[RunId, Tape]:
        """Entries and attempts of runs that have begun. Returns those with unread messages, by chain."""
        ids, chains = ids_text(tape.run.run_id for tape in tapes), ids_text(tape.run.chain_id for tape in tapes)
        heads = ",".join([str(tape.run.head) for tape in tapes])
        more = fill_journals(tapes, await session.read(self._sql["journals"], self.namespace, ids, heads, chains))
        tried = {tape.run.run_id: tape for tape, tried, _ in more if tried}
        if tried:
            for row in await session.read(self._sql["attempts"], self.namespace, list(tried)):
                tried[row["run_id"]].attempts.append(attempt_of(row))
        return {tape.run.chain_id: tape for tape, _, told in more if told}

    async def unread(self, run_ids: Sequence[RunId]) -> dict[RunId, tuple[int, list[Message]]]:
        found: dict[RunId, tuple[int, list[Message]]] = {}
        for row in await self._pool.read(self._sql["unread"], self.namespace, list(run_ids)):
            run_id = standard(row["run_id"])
            if run_id not in found:
                found[run_id] = row["epoch"], _start_of(row, "run_name")
            messages = found[run_id][1]
            if row["message_id"] is not None:
                messages.append(message_of(row))
        return found


def _start_of(row: Record, name: str = "name") -> list[Message]:
    """The start message, if it lies in the row."""
    start = row["start"]
    return [] if start is None else [start_in_row(row["run_id"], row[name], start, row["created_at"])]
