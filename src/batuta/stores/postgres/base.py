"""What all verbs of the store share: the address, the SQL, the connections, the hints."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from batuta.clock import SECOND
from batuta.journal.records import Hint
from batuta.stores.flow import Hand
from batuta.stores.listeners import Listeners
from batuta.stores.postgres import schema
from batuta.stores.postgres.address import Address, parse_address
from batuta.stores.postgres.awake import Awake
from batuta.stores.postgres.floors import Floors
from batuta.stores.postgres.hints import Announcer, Ear, Ticker, channel_of
from batuta.stores.postgres.session import Hook, Pool, Session, Shift
from batuta.stores.queries import load_queries

log = logging.getLogger("batuta.postgres")

_POOLED = (
    "%s is a pooler (statement_cache_size=0) and there is no direct_url: news of other processes are looked for every "
    "second, and a worker that died is noticed when its lease is over"
)

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
        self._pool = Pool(self._new_session, self.address.pool_size)
        self._activity_pools: dict[float, Pool] = {}
        """For transactions of activities, by how long they may take."""
        self._commit_session = self._new_session(self.address.for_sessions)
        self._committing = asyncio.Lock()
        self._awake = Awake(self.address.busy_wait)
        self._listeners = Listeners()
        self._channel = channel_of(self.address.schema, namespace)
        self._announcer = Announcer(self._listeners, partial(self._pool.write, self._sql["notify"], self._channel))
        self._ear: Ear | Ticker = Ticker(self._listeners, self.poll_seconds or 1.0)
        if self.address.for_sessions is not None:
            session = self._new_session(self.address.for_sessions)
            self._ear = Ear(session, self._channel, self._announcer.name, self._listeners)
        self._is_open = False
        self._place = ""
        """Names the database; read when a caller's own transaction must be known to be one of it."""
        self._held = False
        """The last claim left something because of a limit: a run that leaves makes room."""
        self._hands: dict[tuple[str, int], Hand] = {}
        """Where the turns of flow keys stand, by queue and priority: see the SQL about queues."""
        self._floors = Floors()
        self._look_again: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        self._pool.open()
        async with self._pool.session() as session:
            await schema.check(session, self.address, self._sql)
        self._is_open = True
        if self.address.for_sessions is None:
            log.warning(_POOLED, self.address.place)
        self._listeners.bind()
        self._announcer.open()
        if self._listeners:
            self._ear.start()

    async def close(self) -> None:
        self._is_open = False
        if self._look_again is not None:
            self._look_again.cancel()
        await self._announcer.close()
        self._listeners.unbind()
        await self._ear.close()
        await self._commit_session.close()
        for pool in self._activity_pools.values():
            await pool.close()
        self._activity_pools.clear()
        await self._pool.close()

    async def migrate(self, *, plan: bool = False) -> list[str]:
        async with self._pool.session() as session:
            return await schema.migrate(session, self.address, self._sql, plan=plan)

    async def now(self) -> int:
        rows = await self._pool.read(self._sql["now"])
        now: int = rows[0]["now"]
        return now

    def listen(self, callback: Callable[[Hint], None]) -> Callable[[], None]:
        undo = self._listeners.add(callback)
        if self._is_open:
            self._ear.start()
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
