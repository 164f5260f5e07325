"""The heartbeat of one worker, on its own connection: its session is the worker's lock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import asyncpg

from batuta.errors import StoreError
from batuta.ids import RunId
from batuta.journal.process_identity import has_ended
from batuta.journal.records import Hint, Pulse, WorkerInfo
from batuta.journal.states import RunState
from batuta.stores.contract import rules
from batuta.stores.contract.migrations import require_new_enough
from batuta.stores.postgres.commits import closed_hint, closing_values
from batuta.stores.postgres.database.batch_columns import as_columns
from batuta.stores.postgres.database.connection import Connection, Hook, Session, end
from batuta.stores.postgres.database.errors import RowLocked
from batuta.stores.postgres.database.row_locks import in_turns, split
from batuta.stores.postgres.database.rows import run_ids
from batuta.stores.postgres.database.schema import VERSIONS

_CLOSING_SECONDS = 2.0
"""For runs that are over their time, when others hold their rows: the lease does not wait for them."""
_ROW_SECONDS = 4.0
"""For the worker's own row, which others hold for moments."""


class PostgresHeartbeat:
    """Lives in the event loop that made it. `make_session` gives it its connection.

    Behind a pooler it `locks` nothing: a lock would belong to a session that others get next.
    """

    def __init__(
        self,
        namespace: str,
        worker_id: str,
        sql: Mapping[str, str],
        make_session: Callable[[Hook], Session],
        tell: Callable[[Hint], None],
        *,
        locks: bool = True,
    ) -> None:
        self._namespace = namespace
        self._worker_id = worker_id
        self._sql = sql
        self._session = make_session(self._settle)
        self._tell = tell
        self._locks = locks
        self._holds_lock = False
        self._cluster = ""
        self._closed = False
        self._mending: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect and take the lock. Raises StoreUnavailable."""
        await self._session.connect()

    async def close(self) -> None:
        """Release the lock."""
        self._closed = True
        if self._mending is not None:
            await end(self._mending)
        if self._holds_lock:
            try:
                await self._session.read(self._sql["free_lock"], self._namespace, self._worker_id)
            except StoreError:
                pass  # it went with the connection
        await self._session.close()

    async def beat(self, worker: WorkerInfo, *, reap: bool) -> Pulse:
        for version, oldest_code in await self._session.read(self._sql["oldest_code"]):
            require_new_enough(VERSIONS, version, oldest_code)  # before the lease is renewed: others take the runs over
        row = await self._beat(worker, reap)
        reaped, beaten_at = row["reaped"] or 0, row["beaten_at"]
        timed_out: list[RunId] = []
        if row["overdue"]:
            timed_out = await self._time_out(row["overdue"], row["moment"])
            row = await self._beat(worker, reap)
            reaped += row["reaped"] or 0
        return Pulse(
            now=row["moment"],
            alive=row["alive"],
            timeline=f"{self._cluster}/{row['timeline']}/{row['crashed_at'] or ''}",
            position=row["position"],
            beaten_at=beaten_at,
            due_at=row["due_at"],
            unread=run_ids(row["unread"]),
            owned=dict(zip(run_ids(row["owned"]), row["epochs"] or (), strict=True)),
            peers=_gone(row),
            reaped=reaped,
            timed_out=timed_out,
            schedule_at=row["schedule_at"],
        )

    async def reap(self, worker_ids: Sequence[str]) -> int:
        total = 0
        while True:
            freed, due = await self._reap(worker_ids)
            total += freed
            self._tell(Hint(due=due > 0))
            if freed < rules.BEAT_LIMIT:
                return total

    async def _reap(self, worker_ids: Sequence[str]) -> tuple[int, int]:
        rows = await self._session.write(
            self._sql["bury"], self._namespace, self._worker_id, list(worker_ids), *_LIMITS
        )
        return rows[0]["freed"], rows[0]["due"]

    async def _beat(self, worker: WorkerInfo, reap: bool) -> asyncpg.Record:
        if self._locks and not self._holds_lock:
            held = await self._session.read(self._sql["hold_lock"], self._namespace, self._worker_id)
            self._holds_lock = held[0][0]
        values = (
            self._namespace,
            worker.worker_id,
            worker.queues,
            list(worker.code),
            list(worker.code.values()),
            worker.lease,
            reap,
            *_LIMITS,
        )
        rows = await in_turns(lambda: self._session.write(self._sql["beat"], *values), _ROW_SECONDS)
        self._tell(Hint(due=(rows[0]["due"] or 0) > 0))
        return rows[0]

    async def _time_out(self, overdue: Sequence[object], now: int) -> list[RunId]:
        """Close runs that have timed out. A run that moved meanwhile is left for the next beat."""
        closed: list[RunId] = []
        late: dict[str, list[tuple[Any, ...]]] = {}
        for row in await self._session.read(self._sql["last_entries"], self._namespace, overdue):
            if reason := rules.overtime(row["deadline"], row["expires_at"], now):
                last = None if row["crc"] is None else (row["at"], row["crc"])
                entry = rules.timed_out_entry(row["head"], last, now, reason)
                values = closing_values(row, row["head"], entry, RunState.TIMED_OUT, reason)
                late.setdefault(reason, []).append(values)
        end = time.monotonic() + _CLOSING_SECONDS
        for reason, rows in late.items():
            try:
                closed += await self._close(reason, rows, now)
            except RowLocked:  # by somebody else: the others are closed, and the next beat looks again
                closed += await self._close_unlocked(reason, rows, now, end)
        return closed

    async def _close_unlocked(self, reason: str, rows: list[tuple[Any, ...]], now: int, end: float) -> list[RunId]:
        closed: list[RunId] = []
        asked = [row[0] for row in rows]
        locked = {row[0] for row in await self._session.write(self._sql["locked"], self._namespace, asked, [], [])}
        pieces = [[row for row in rows if row[0] not in locked]]
        while pieces and time.monotonic() < end:
            if not (piece := pieces.pop()):
                continue
            try:
                closed += await self._close(reason, piece, now)
            except RowLocked:  # that of a child
                if len(piece) > 1:
                    pieces += split(piece)
        return closed

    async def _close(self, reason: str, rows: Sequence[tuple[Any, ...]], now: int) -> list[RunId]:
        values = (self._namespace, RunState.TIMED_OUT, reason, rules.PARENT_CLOSED, *as_columns(rows, 7), now)
        closed = await self._session.write(self._sql["close_runs"], *values)
        self._tell(closed_hint(closed[0]))
        return run_ids(closed[0]["closed"])

    # -- the session

    async def _settle(self, connection: Connection) -> None:
        """On each new connection: take the lock, learn which server it is, and notice its end."""
        self._holds_lock = False
        if self._locks:
            # Not waited for: after a broken connection, the server may keep the old session for a while, and its lock
            # with it.
            self._holds_lock = await connection.fetchval(self._sql["hold_lock"], self._namespace, self._worker_id)
        self._cluster = await self._name_of_cluster(connection)
        connection.add_termination_listener(self._lost)

    async def _name_of_cluster(self, connection: Connection) -> str:
        try:
            return str(await connection.fetchval(self._sql["system_identifier"]))
        except asyncpg.InsufficientPrivilegeError:
            return "unnamed"

    def _lost(self, _connection: object) -> None:
        self._holds_lock = False
        if not self._closed and (self._mending is None or self._mending.done()):
            self._mending = asyncio.get_running_loop().create_task(self._mend())

    async def _mend(self) -> None:
        """Connect again without waiting for the next beat: without its lock this worker seems dead."""
        wait = 0.02
        while not self._closed:
            try:
                await self._session.connect()
                return
            except StoreError:
                await asyncio.sleep(wait)
                wait = min(wait * 2, 1.0)


def _gone(row: asyncpg.Record) -> list[str]:
    """Workers without a lock whose process has ended; or that are silent, if that cannot be seen."""
    if not row["peers"]:
        return []
    found = zip(row["peers"], row["processes"], row["silent"], strict=True)
    ended = ((worker_id, has_ended(process), silent) for worker_id, process, silent in found)
    return [worker_id for worker_id, has, silent in ended if has or (has is None and silent)]


_LIMITS = (rules.BEAT_LIMIT, rules.POISON_DEATHS, rules.POISONED)
