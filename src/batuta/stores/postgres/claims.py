"""Workers take runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from asyncpg import Record
from msgspec import json

from batuta.errors import PayloadDamaged, told
from batuta.ids import RunId
from batuta.journal.records import IN_PAGES, PAGE_BYTES, SEALED, Claim, Hint, Message, StoredRun, Unread, WorkerInfo
from batuta.stores.contract import rules
from batuta.stores.contract.claim_limits import Rotation
from batuta.stores.postgres.base import Base
from batuta.stores.postgres.database.connection import Session
from batuta.stores.postgres.database.row_locks import patiently
from batuta.stores.postgres.database.rows import (
    attempt_of,
    claimed_run_of,
    fill_journals,
    message_of,
    run_of,
    standard,
    start_in_row,
)
from batuta.stores.postgres.fast.claim_cursor import ClaimCursors, Floor
from batuta.stores.postgres.fast.column_encoding import ids_text

MOST_HANDS = 1_000
"""Queues and priorities whose rotation is remembered. Forgetting one costs some fairness, once."""


class Claims(Base):
    async def register(self, worker: WorkerInfo) -> int:
        rows = await self._execute(
            "register",
            worker.worker_id,
            worker.queues,
            json.encode(worker.code).decode(),
            worker.host,
            worker.pid,
            worker.lease,
            self.address.for_sessions is not None,
            worker.process,
        )
        return int(rows[0]["now"])

    async def retire(self, worker_id: str) -> None:
        rows = await self._execute("retire", worker_id)
        self._announcer.tell(Hint(due=rows[0]["freed"] > 0))

    async def give_up(self, worker_id: str, run_ids: Sequence[RunId], reason: str) -> int:
        rows = await self._execute("give_up", worker_id, list(run_ids), reason, rules.POISON_DEATHS)
        freed: int = rows[0]["freed"]
        self._announcer.tell(Hint(due=freed > 0))
        return freed

    @patiently
    async def claim(self, worker: WorkerInfo, limit: int, room: Mapping[str, int] | None = None) -> Claim:
        names, rooms = (list(room), list(room.values())) if room else (None, None)
        claim_cursors = self._claim_cursors.for_claim(worker.code)
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
                self._turns_of(worker.queues) if self._rotations else None,
                claim_cursors,
                replied=self._claimed,
            )
            claim, risen, more = self._taken(worker, rows)
            self._held = claim.held
            self._claim_cursors.claimed(worker.code, risen, whole=claim_cursors is None)
            await self._fill(session, more)
        if claim_cursors is not None and len(claim.stored_runs) < limit:
            self._look_again_in(self._claim_cursors.seconds_left)
        return claim

    def _taken(self, worker: WorkerInfo, rows: Sequence[Record]) -> tuple[Claim, list[Floor], list[StoredRun]]:
        """The result of a claim. The last item lists journals with more to read."""
        claim, risen, owner = Claim(), list[Floor](), worker.worker_id
        found = [
            claimed_run_of(row, owner)
            for row in rows
            if row[0] is not None or self._note(json.decode(row["news"]), claim, risen)
        ]
        claim.stored_runs = [stored for stored, _ in found]
        for stored in claim.stored_runs if self._rotations else ():
            if (rotation := self._rotations.get((stored.run.queue, stored.run.priority))) is not None:
                rotation.count(stored.run.flow_key)
        return claim, risen, [stored for stored, more in found if more]

    def _turns_of(self, queues: Sequence[str]) -> str:
        """Where the turns of flow keys stand in these queues, for the SQL."""
        turns: dict[str, dict[int, tuple[str, int, dict[str, int]]]] = {}
        for (queue, priority), rotation in self._rotations.items():
            if queue in queues:
                turns.setdefault(queue, {})[priority] = rotation.key, rotation.step, rotation.had
        return json.encode(turns).decode()

    def _look_again_in(self, seconds: float) -> None:
        """There is no second hint for a run that a look did not find because it did not begin at the very beginning."""
        if self._look_again is not None:
            self._look_again.cancel()
        self._look_again = asyncio.get_running_loop().call_later(seconds, self._listeners.tell, Hint(due=True))

    def _note(self, news: list[Any], claim: Claim, risen: list[Floor]) -> bool:
        """A row without a run: see the SQL about claims."""
        match news:
            case [queue, priority, key, step]:
                rotation = self._rotation(queue, priority)
                rotation.key, rotation.step = key, step
            case [queue, priority, floor_at]:
                risen.append((queue, priority, floor_at))
            case [again_at, limited]:
                claim.held, claim.again_at, claim.limited = True, again_at, limited or []
        return False

    def _rotation(self, queue: str, priority: int) -> Rotation:
        place = queue, priority
        if place not in self._rotations:
            if len(self._rotations) >= MOST_HANDS:
                self._rotations.clear()
            self._rotations[place] = Rotation()
        return self._rotations[place]

    def _claimed(self) -> None:
        self._lose_reply("claim")

    async def hasten(self, until: int, limit: int, *, asleep: int = 0) -> int:
        rows = await self._execute("hasten", until, limit, until + asleep)
        hastened: int = rows[0]["hastened"]
        self._claim_cursors = ClaimCursors()  # what claims know of is ahead of the clock
        self._announcer.tell(Hint(due=hastened > 0))
        return hastened

    async def due_at(self, worker: WorkerInfo) -> int | None:
        names, fingerprints = list(worker.code), list(worker.code.values())
        asked = (worker.worker_id, worker.queues, names, fingerprints)
        return await self._read_first(itemgetter("due_at"), "due_at", *asked)

    async def load(self, run_id: RunId) -> StoredRun:
        async with self._pool.session() as session:
            row = self._existing(await session.read(self._sql["run"], self.namespace, run_id), run_id)
            stored = StoredRun(run_of(row), [], _start_of(row), [])
            await self._fill(session, [stored])
            return stored

    async def _fill(self, session: Session, stored_runs: list[StoredRun]) -> None:
        """Bring the rest of what belongs to these runs. What comes in between is not lost: it is unread, or a hint.

        A run of which something cannot be read says so, and is empty."""
        try:
            await self._fill_together(session, stored_runs)
        except PayloadDamaged as error:
            for stored in stored_runs:
                stored.entries, stored.attempts = [], []
                stored.messages = [one for one in stored.messages if not one.number]  # the start in the row
                if len(stored_runs) > 1:
                    await self._fill(session, [stored])
                else:
                    stored.messages, stored.sealed = [], told(error)

    async def _fill_together(self, session: Session, stored_runs: list[StoredRun]) -> None:
        told = {
            stored.run.chain_id: stored for stored in stored_runs if stored.run.head < 0
        }  # they have nothing but messages
        begun = [stored for stored in stored_runs if stored.run.head >= 0]
        if begun:
            told |= await self._read_on(session, begun)
        if told:
            begun_too = [stored.run.head >= 0 for stored in told.values()]
            for row in await session.read(self._sql["messages"], self.namespace, list(told), begun_too):
                told[row["chain_id"]].messages.append(message_of(row))
            for stored in told.values():
                stored.more = _may_have_more(stored.messages)

    async def _read_on(self, session: Session, stored_runs: list[StoredRun]) -> dict[RunId, StoredRun]:
        """Entries and attempts of runs that have begun. Returns those with unread messages, by chain."""
        ids, chains = (
            ids_text(stored.run.run_id for stored in stored_runs),
            ids_text(stored.run.chain_id for stored in stored_runs),
        )
        heads = ",".join([str(stored.run.head) for stored in stored_runs])
        more = fill_journals(stored_runs, await session.read(self._sql["journals"], self.namespace, ids, heads, chains))
        tried = {stored.run.run_id: stored for stored, tried, _ in more if tried}
        if tried:
            for row in await session.read(self._sql["attempts"], self.namespace, list(tried)):
                tried[row["run_id"]].attempts.append(attempt_of(row))
        return {stored.run.chain_id: stored for stored, _, told in more if told}

    async def unread(self, run_ids: Sequence[RunId], *, after: int = 0) -> dict[RunId, Unread]:
        found: dict[RunId, Unread] = {}
        for row in await self._read("unread", list(run_ids), after):
            run_id = standard(row["run_id"])
            if run_id not in found:
                found[run_id] = Unread(row["epoch"], _start_of(row, "run_name"))
            if row["message_id"] is not None and found[run_id].epoch != SEALED:
                try:
                    found[run_id].messages.append(message_of(row))
                except PayloadDamaged as error:
                    found[run_id] = Unread(SEALED, [], sealed=told(error))
        for run_id, (epoch, messages, *_) in found.items():
            if epoch != SEALED and _may_have_more(messages):
                found[run_id] = Unread(epoch, messages, more=True)
        return found


def _may_have_more(messages: Sequence[Message]) -> bool:
    """Whether they may be as many as are read at once. A character has 4 bytes at most."""
    return sum([len(one.body) for one in messages if one.kind in IN_PAGES]) * 4 >= PAGE_BYTES


def _start_of(row: Record, name: str = "name") -> list[Message]:
    """The start message, if the row holds it."""
    start = row["start"]
    return [] if start is None else [start_in_row(row["run_id"], row[name], start, row["created_at"])]
