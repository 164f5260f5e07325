"""Shared by all methods of the store: the address, the SQL, the connections, the hints."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from asyncpg import Record

from batuta.clock import SECOND
from batuta.errors import UnknownRun
from batuta.ids import RunId
from batuta.journal.records import Hint
from batuta.stores.contract.claim_limits import Rotation
from batuta.stores.contract.listeners import Listeners
from batuta.stores.contract.named_queries import load_queries
from batuta.stores.postgres.database import schema
from batuta.stores.postgres.database.address import Address, parse_address
from batuta.stores.postgres.database.connection import Hook, Pool, Session, Shift, settings_of
from batuta.stores.postgres.database.row_locks import COMMIT_SECONDS, VERB_SECONDS
from batuta.stores.postgres.fast.busy_poll import BusyPoll
from batuta.stores.postgres.fast.claim_cursor import ClaimCursors
from batuta.stores.postgres.hints import Announcer, HintListener, Ticker, channel_of

T = TypeVar("T")

log = logging.getLogger("batuta.postgres")

_POOLED = (
    "%s is a pooler (statement_cache_size=0) and there is no direct_url: news of other processes are looked for every "
    "second, and a worker that died is noticed when its lease is over"
)

_UNSAFE = (
    "unsafe durability: %s has %s; when the server crashes, starts, signals and results that were acknowledged may be "
    "lost. Switch it on, or give Batuta's user a setting of its own: ALTER ROLE ... SET synchronous_commit = on"
)
said: set[str] = set()
"""Where that was said in this process: once is enough."""

HEART_PATIENCE_SECONDS = 6.0
"""Much less than a lease: a heartbeat that hangs must be tried again in time."""


class Base:
    """One namespace of one database."""

    poll_seconds: float | None = 1.0

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "default",
        schema: str | None = None,
        defaults: Mapping[str, str] | None = None,
    ) -> None:
        self.namespace = namespace
        self.address = parse_address(url, schema, defaults)
        self.faults: Callable[[str], None] | None = None
        """Testing only: called with "commit" or "claim" when a reply has come; an OSError from it loses the reply."""
        self._sql = {name: self.address.qualify(text) for name, text in load_queries("batuta.stores.postgres").items()}
        self._shift = Shift()
        short = settings_of(self.address, VERB_SECONDS)
        make = partial(self._new_session, settings=short)
        self._pool = Pool(make, self.address.pool_size, self.address.lock_timeout)
        self._activity_pools: dict[float, Pool] = {}
        """For transactions of activities, by how long they may take."""
        self._commit_session, self._beside_session = (
            self._new_session(self.address.for_sessions, settings=settings_of(self.address, COMMIT_SECONDS))
            for _ in range(2)
        )
        self._beside = asyncio.Lock()
        self._busy: set[RunId] = set()
        """Runs whose changes wait for locked rows: they are written beside the others."""
        self._committing = asyncio.Lock()
        self._busy_poll = BusyPoll(self.address.busy_wait)
        self._listeners = Listeners()
        self._channel = channel_of(self.address.schema, namespace)
        self._announcer = Announcer(self._listeners, partial(self._pool.write, self._sql["notify"], self._channel))
        self._hint_listener: HintListener | Ticker = Ticker(self._listeners, self.poll_seconds or 1.0)
        if self.address.for_sessions is not None:
            session = self._new_session(self.address.for_sessions)
            self._hint_listener = HintListener(session, self._channel, self._announcer.name, self._listeners)
        self._is_open = False
        self._place = ""
        """Names the database; read when a caller's own transaction must be known to be one of it."""
        self._held = False
        """The last claim left something because of a limit: a run that leaves makes room."""
        self._rotations: dict[tuple[str, int], Rotation] = {}
        """Where the turns of flow keys stand, by queue and priority: see the SQL about queues."""
        self._claim_cursors = ClaimCursors()
        self._look_again: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        self._pool.open()
        async with self._pool.session() as session:
            await schema.check(session, self.address, self._sql)
            rows = await session.read(self._sql["durability"])
        self._is_open = True
        unsafe = ", ".join(f"{name} = off" for name, value in rows[0].items() if value == "off")
        if unsafe and self.address.place not in said:
            said.add(self.address.place)
            log.warning(_UNSAFE, self.address.place, unsafe)
        if self.address.for_sessions is None:
            log.warning(_POOLED, self.address.place)
        self._listeners.bind()
        self._announcer.open()
        if self._listeners:
            self._hint_listener.start()

    async def close(self) -> None:
        self._is_open = False
        if self._look_again is not None:
            self._look_again.cancel()
        await self._announcer.close()
        self._listeners.unbind()
        await self._hint_listener.close()
        await self._commit_session.close()
        await self._beside_session.close()
        for pool in self._activity_pools.values():
            await pool.close()
        self._activity_pools.clear()
        await self._pool.close()

    async def migrate(self, *, plan: bool = False, repair: bool = False) -> list[str]:
        session = self._new_session()  # which waits longer for locks than those of the pool
        try:
            return await schema.migrate(session, self.address, self._sql, plan=plan, repair=repair)
        finally:
            await session.close()

    def keyed(self, text: str) -> str:
        return text

    async def now(self) -> int:
        rows = await self._pool.read(self._sql["now"])
        return int(rows[0]["now"])

    # -- named queries of this namespace

    async def _read(self, query: str, *values: Any) -> list[Record]:
        return await self._pool.read(self._sql[query], self.namespace, *values)

    async def _read_all(self, of: Callable[[Record], T], query: str, *values: Any) -> list[T]:
        """Each row as what it stands for."""
        return [of(row) for row in await self._read(query, *values)]

    async def _read_first(self, of: Callable[[Record], T], query: str, *values: Any) -> T | None:
        rows = await self._read(query, *values)
        return of(rows[0]) if rows else None

    async def _execute(self, query: str, *values: Any) -> list[Record]:
        """The same for a statement that writes, which is tried again while a row is locked."""
        return await self._pool.write(self._sql[query], self.namespace, *values)

    def _existing(self, rows: Sequence[Record], run: RunId | str) -> Record:
        """The row of a run. Raises UnknownRun."""
        if not rows:
            raise UnknownRun(run, self.namespace)
        return rows[0]

    # -- hints and sessions

    def listen(self, callback: Callable[[Hint], None]) -> Callable[[], None]:
        undo = self._listeners.add(callback)
        if self._is_open:
            self._hint_listener.start()
        return undo

    def shift_clock(self, seconds: float) -> None:
        self._shift.micros += round(seconds * SECOND)

    def _new_session(
        self,
        address: Address | None = None,
        *,
        patience: float | None = None,
        hook: Hook | None = None,
        **more: Any,
    ) -> Session:
        address = address or self.address
        patience = patience or address.statement_timeout + 10.0  # the server's word comes first
        return Session(address, self._shift, self._sql["shift"], patience=patience, hook=hook, **more)

    def _lose_reply(self, verb: str) -> None:
        if self.faults is not None:
            self.faults(verb)
