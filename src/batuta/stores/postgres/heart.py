"""The heartbeat of one worker, on a connection of its own: its session is the worker's lock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import asyncpg

from batuta.errors import StoreError
from batuta.journal.records import Hint, Pulse, WorkerInfo
from batuta.journal.states import RunState
from batuta.stores import rules
from batuta.stores.postgres.batch import as_columns
from batuta.stores.postgres.commits import closed_hint, closing_values
from batuta.stores.postgres.rows import run_ids
from batuta.stores.postgres.session import Connection, Hook, Session, end


class PostgresHeart:
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
        self._timeline = ""
        self._closed = False
        self._mending: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect and take the lock. Raises StoreUnavailable."""
        await self._session.connect()

    async def close(self) -> None:
        """Let go of the lock."""
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
        row = await self._beat(worker, reap)
        reaped = row["reaped"] or 0
        if row["overdue"]:
            await self._time_out(row["overdue"], row["moment"])
            row = await self._beat(worker, reap)
            reaped += row["reaped"] or 0
        return Pulse(
            now=row["moment"],
            alive=row["alive"],
            timeline=self._timeline,
            due_at=row["due_at"],
            unread=run_ids(row["unread"]),
            owned=dict(zip(run_ids(row["owned"]), row["epochs"] or (), strict=True)),
            peers=row["peers"] or [],
            reaped=reaped,
            schedule_at=row["schedule_at"],
        )

    async def bury(self, worker_ids: Sequence[str]) -> int:
        total = 0
        while True:
            freed, due = await self._bury(worker_ids)
            total += freed
            self._tell(Hint(due=due > 0))
            if freed < rules.BEAT_LIMIT:
                return total

    async def _bury(self, worker_ids: Sequence[str]) -> tuple[int, int]:
        rows = await self._session.write(
            self._sql["bury"], self._namespace, self._worker_id, list(worker_ids), *_LIMITS
        )
        return rows[0]["freed"], rows[0]["due"]

    async def _beat(self, worker: WorkerInfo, reap: bool) -> asyncpg.Record:
        if self._locks and not self._holds_lock:
            held = await self._session.read(self._sql["hold_lock"], self._namespace, self._worker_id)
            self._holds_lock = held[0][0]
        rows = await self._session.write(
            self._sql["beat"],
            self._namespace,
            worker.worker_id,
            worker.queues,
            list(worker.code),
            list(worker.code.values()),
            worker.lease,
            reap,
            *_LIMITS,
        )
        self._tell(Hint(due=(rows[0]["due"] or 0) > 0))
        return rows[0]

    async def _time_out(self, overdue: Sequence[object], now: int) -> None:
        """Close runs whose time is over. One that moved meanwhile is left for the next beat."""
        late: dict[str, list[tuple[object, ...]]] = {}
        for row in await self._session.read(self._sql["last_entries"], self._namespace, overdue):
            if reason := rules.overtime(row["deadline"], row["expires_at"], now):
                last = None if row["crc"] is None else (row["at"], row["crc"])
                entry = rules.timed_out_entry(row["head"], last, now, reason)
                values = closing_values(row, row["head"], entry, RunState.TIMED_OUT, reason)
                late.setdefault(reason, []).append(values)
        for reason, rows in late.items():
            closed = await self._session.write(
                self._sql["close_runs"],
                self._namespace,
                RunState.TIMED_OUT,
                reason,
                rules.PARENT_CLOSED,
                *as_columns(rows, 7),
                now,
            )
            self._tell(closed_hint(closed[0]))

    # -- the session

    async def _settle(self, connection: Connection) -> None:
        """On each new connection: take the lock, learn which history the server is on, and notice its end."""
        self._holds_lock = False
        if self._locks:
            await self._take_lock(connection)
        self._timeline = f"{await self._cluster(connection)}/{await connection.fetchval(self._sql['timeline'])}"
        connection.add_termination_listener(self._lost)

    async def _take_lock(self, connection: Connection) -> None:
        # Not waited for: after a cut, the server may keep the session of before for a while, and its lock with it.
        self._holds_lock = await connection.fetchval(self._sql["hold_lock"], self._namespace, self._worker_id)

    async def _cluster(self, connection: Connection) -> str:
        try:
            return str(await connection.fetchval(self._sql["system_identifier"]))
        except asyncpg.InsufficientPrivilegeError:
            return "unnamed"

    def _lost(self, _connection: object) -> None:
        self._holds_lock = False
        if not self._closed and (self._mending is None or self._mending.done()):
            self._mending = asyncio.get_running_loop().create_task(self._mend())

    async def _mend(self) -> None:
        """Connect again without waiting for the next beat: without its lock this worker seems to be gone."""
        wait = 0.02
        while not self._closed:
            try:
                await self._session.connect()
                return
            except StoreError:
                await asyncio.sleep(wait)
                wait = min(wait * 2, 1.0)


_LIMITS = (rules.BEAT_LIMIT, rules.POISON_DEATHS, rules.POISONED)
