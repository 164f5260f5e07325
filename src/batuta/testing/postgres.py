"""Databases on a real PostgreSQL for environments, and a store that lives in virtual time there.

The test controls the clock of such a database: `batuta_now()` is replaced by a function that returns the test's time.
Sockets of the store do not keep time from passing, but a statement under way does: its reply takes no time.
"""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from inspect import isawaitable
from typing import Any

from batuta.clock import Clock
from batuta.errors import MissingExtra
from batuta.ids import RunId
from batuta.journal.entries import Entry
from batuta.journal.records import NewRun, Page, RunFilter
from batuta.journal.states import OPEN
from batuta.journal.store import CallerTransaction
from batuta.testing.databases import DatabaseMaker, run_aside
from batuta.testing.servers import ExternalPostgres, launch_postgres
from batuta.testing.virtualtime import VirtualLoop

try:
    import asyncpg

    from batuta.stores.postgres import PostgresStore
    from batuta.stores.postgres.base import said
    from batuta.stores.postgres.database.address import Address
    from batuta.stores.postgres.database.connection import Connection, Hook, Session
    from batuta.stores.postgres.hints import Announcer, HintListener
except ImportError as error:
    raise MissingExtra("store='postgres' of an environment", "postgres") from error

_CLOCK = (
    "CREATE UNLOGGED TABLE batuta.testing_clock (now bigint NOT NULL)",
    "INSERT INTO batuta.testing_clock VALUES (0)",
    # Connections of the test's own know no setting of ours: for them it is in the table.
    """CREATE OR REPLACE FUNCTION batuta.batuta_now() RETURNS bigint LANGUAGE sql VOLATILE AS $$
        SELECT coalesce(nullif(current_setting('testing.batuta_shift', true), '')::bigint,
                        (SELECT t.now FROM batuta.testing_clock t))
    $$""",
)
_TELL_TIME = "UPDATE batuta.testing_clock SET now = $1"
_NEWS_WITHIN = 0.02
"""Seconds of real time that news of a caller's own transaction are given to arrive before time passes."""


@cache
def _server() -> DatabaseMaker:
    """One for this process. It ends with it."""
    return launch_postgres()


@cache
def _template(*, virtual: bool) -> str:
    """A migrated database to make others from."""
    server = _server()
    url = server.create_database()
    if isinstance(server, ExternalPostgres):  # one of ours is gone with all that it has
        atexit.register(server.drop_database, url)
    run_aside(_prepare(url, virtual=virtual))
    return url


async def _prepare(url: str, *, virtual: bool) -> None:
    store = PostgresStore(url)
    try:
        await store.migrate()
    finally:
        await store.close()
    if virtual:
        connection = await asyncpg.connect(url)
        try:
            for statement in _CLOCK:
                await connection.execute(statement)
        finally:
            await connection.close()


def postgres_store(url: str, clock: Clock, *, virtual: bool) -> PostgresStore:
    """A store in that database."""
    store = VirtualPostgresStore(url, clock) if virtual else PostgresStore(url)
    said.add(store.address.place)  # that it is gone when the server crashes is no news
    return store


@contextmanager
def fresh_database(*, virtual: bool = False) -> Iterator[str]:
    """The address of a migrated database that is dropped at the end.

    `virtual`: `VirtualPostgresStore` sets its time. Raises ServerUnavailable where no PostgreSQL can be started (see
    `batuta.testing.servers`).
    """
    template = _template(virtual=virtual)
    url = _server().create_database(template)
    try:
        yield url
    finally:
        _server().drop_database(url)


class _ClockShift:
    """Instead of a shift: the time itself, which changes whenever it has moved."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    @property
    def micros(self) -> int:
        return self._clock.now()


class _HoldingProtocol:
    """The transport of an asyncpg connection. Time stands still until a reply has arrived."""

    def __init__(self, protocol: Any, loop: VirtualLoop) -> None:
        self._protocol, self._loop = protocol, loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._protocol, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            answer = found(*args, **kwargs)
            return self._loop.held(answer) if isawaitable(answer) else answer

        return call


@cache
def _holding(kind: type[Any]) -> type[Any]:
    """All connections of that class, also those that are lent to activities."""

    class Holding(kind):  # type: ignore[misc]  # whichever it is
        def __init__(self, protocol: Any, transport: Any, loop: Any, *more: Any) -> None:
            super().__init__(_HoldingProtocol(protocol, loop), transport, loop, *more)
            loop.let_time_pass(transport.get_extra_info("socket").fileno())

    return Holding


class _VirtualSession(Session):
    """Time stands still while it connects. Nothing watches for late replies: no time passes until they come."""

    async def _make(self) -> Connection:
        return await _loop().held(super()._make())

    def _watch(self) -> None:
        pass


class _VirtualEar(HintListener):
    """Listens to the test's own transactions. It does not check its connection regularly."""

    async def _hears_news_within(self, seconds: float) -> bool:
        return await self._news.wait()


class VirtualPostgresStore(PostgresStore):
    """In a database without other writers, except for the test's own transactions: hints are certain."""

    poll_seconds: float | None = None

    def __init__(self, url: str, clock: Clock) -> None:
        self._clock, self._moving = clock, _ClockShift(clock)
        super().__init__(url, defaults={"busy_wait": "0"})
        self._announcer = Announcer(self._listeners, _nobody_else)
        self._hint_listener = _VirtualEar(self._new_session(), self._channel, self._announcer.name, self._listeners)

    @property
    def _shift(self) -> Any:
        return self._moving

    @_shift.setter
    def _shift(self, _: Any) -> None:
        pass

    def shift_clock(self, seconds: float) -> None:
        raise NotImplementedError("time is the event loop's: `env.advance()` moves it")

    def _new_session(
        self, address: Address | None = None, *, patience: float | None = None, hook: Hook | None = None, **more: Any
    ) -> Session:
        kind = _holding(more.pop("kind", asyncpg.Connection))
        query, wait = self._sql["shift"], patience or self.address.statement_timeout
        return _VirtualSession(self.address, self._shift, query, patience=wait, hook=hook, kind=kind, **more)

    async def enter(self, transaction: object, runs: Sequence[NewRun]) -> CallerTransaction:
        await self._pool.write(_TELL_TIME, self._clock.now())  # the caller's connection has no other way to know
        _loop().wait_for_news(_NEWS_WITHIN)
        return await super().enter(transaction, runs)


class Snapshot:
    """The questions of `stuck` to a store, read beside an event loop that stands still."""

    namespace = "default"

    def __init__(self, url: str) -> None:
        self._journals: dict[RunId, list[Entry]] = {}
        self._page = Page([], None)
        run_aside(self._read(url))

    async def _read(self, url: str) -> None:
        store = PostgresStore(url)
        await store.open()
        try:
            self._page = await store.list_runs(RunFilter(states=tuple(OPEN)))
            self._journals = {run.run_id: await store.journal(run.run_id) for run in self._page.runs}
        finally:
            await store.close()

    async def list_runs(self, *_: Any) -> Page:
        return self._page

    async def journal(self, run_id: RunId) -> list[Entry]:
        return self._journals[run_id]


def _loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


async def _nobody_else(_: list[str]) -> None:
    """There is no other process to notify."""
