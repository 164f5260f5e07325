"""Connections: made when they are needed, made anew when they broke, never left in a doubtful state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import asyncpg

from batuta.ids import jitter
from batuta.stores.postgres.address import Address
from batuta.stores.postgres.faults import TRANSIENT, answered, translate, unreachable

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
    Statement = asyncpg.prepared_stmt.PreparedStatement[asyncpg.Record]
else:
    Connection = asyncpg.Connection  # generic in the stubs alone
    Statement = asyncpg.prepared_stmt.PreparedStatement
Hook = Callable[[Connection], Awaitable[None]]
Execute = Callable[[tuple[Any, ...]], Awaitable[list[asyncpg.Record]]]
"""Executes a prepared statement once, with these values."""

# A killed backend shows as any of these; a timeout of the driver is an OSError.
DRIVER_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    EOFError,
)

KNOWN_INSIDE = ("0.30.", "0.31.", "0.32.")
"""Versions of the driver whose inner way to execute a statement is known."""

CONNECT_SECONDS = 10.0
TRIES = 8
"""How often a deadlock or serialisation failure is tried, before it is reported."""

SETTINGS = {
    "timezone": "UTC",
    # Who waited for a lock must see what was done under it.
    "default_transaction_isolation": "read committed",
    # One generic plan per statement, and none but key look-ups: see queries.sql.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    "idle_in_transaction_session_timeout": "15s",
}


def _settings(address: Address) -> dict[str, str]:
    timeouts = {"statement_timeout": address.statement_timeout, "lock_timeout": address.lock_timeout}
    return SETTINGS | {name: f"{round(seconds * 1000)}ms" for name, seconds in timeouts.items()}


class Shift:
    """How far the clock of a store is moved, in microseconds. Tests only."""

    def __init__(self) -> None:
        self.micros = 0


def _read_in_small_pieces(connection: Connection) -> None:
    """asyncio makes room for 256 KB at each read, for which the allocator goes to the system and back each time."""
    transport = getattr(connection, "_transport", None)
    if transport is not None and hasattr(transport, "max_size"):
        transport.max_size = 32 * 1024


def _execution(connection: Connection, statement: Statement) -> Execute:
    """How to execute a statement of a connection that is known to be open.

    The driver's public way goes through four checks of that and three more coroutines each time, a tenth of what Python
    adds to a lone commit. Where its inner one is not as we know it, the public one is taken. There is no timer for each
    statement either: see `Session._watch`.
    """
    state = getattr(statement, "_state", None)
    bind_execute: Any = getattr(getattr(connection, "_protocol", None), "bind_execute", None)
    if state is None or bind_execute is None or not asyncpg.__version__.startswith(KNOWN_INSIDE):
        return lambda args: statement.fetch(*args)
    timeout = getattr(asyncpg.protocol, "NO_TIMEOUT", None)
    return partial(bind_execute, state, portal_name="", limit=0, return_extra=False, timeout=timeout)


class Session:
    """One connection, for one statement at a time, in one event loop."""

    def __init__(
        self,
        address: Address,
        shift: Shift,
        shift_query: str,
        *,
        patience: float,
        hook: Hook | None = None,
        settings: Mapping[str, str] | None = None,
        kind: type[Any] = asyncpg.Connection,
    ) -> None:
        self._kind = kind
        self._settings = _settings(address) if settings is None else settings
        self._address = address
        self._is_pooled = address.is_pooled  # asked for with every statement
        self._shift = shift
        self._shift_query = shift_query
        self._patience = patience
        self._hook = hook
        self._connection: Connection | None = None
        self._statements: dict[str, tuple[Statement, Execute]] = {}
        self._shifted = 0
        self._making = asyncio.Lock()
        self._asked_at: float | None = None
        """When the statement was sent that has no reply yet."""
        self._watching: asyncio.TimerHandle | None = None

    async def connect(self) -> Connection:
        """The connection, made if there is none. Raises StoreUnavailable: nothing was sent then."""
        connection = self._connection
        if connection is None or connection.is_closed() or self._is_behind:
            async with self._making:
                return await self._settle()
        return connection

    async def read(self, query: str, *args: Any) -> list[asyncpg.Record]:
        """Rows of a query that writes nothing. A broken connection is replaced once; then StoreUnavailable."""
        try:
            return await self._once(query, args)
        except DRIVER_ERRORS as error:
            if not self._broken:
                raise translate(error, self._address.place, writing=False) from error
        try:
            return await self._once(query, args)
        except DRIVER_ERRORS as error:
            raise translate(error, self._address.place, writing=False) from error

    async def write(self, query: str, *args: Any, replied: Callable[[], None] | None = None) -> list[asyncpg.Record]:
        """Rows of one statement that writes, which is a transaction of its own.

        Raises OutcomeUnknown unless a rollback is certain; the connection has been cut then. `replied` is called when
        the reply is here; an OSError from it counts as a broken connection.
        """
        for attempt in range(1, TRIES + 1):
            try:
                rows = await self._once(query, args)
                if replied is not None:
                    replied()
                return rows
            except DRIVER_ERRORS as error:
                if getattr(error, "sqlstate", None) not in TRANSIENT or attempt == TRIES:
                    raise translate(error, self._address.place, writing=True) from error
            await asyncio.sleep(0.002 * 2**attempt * jitter())
        raise AssertionError("the last try returns or raises")

    async def write_in_parts(self, query: str, parts: Iterable[tuple[Any, ...] | None]) -> list[Any]:
        """The value that a statement returns for each of these parts, in one transaction. The next part is asked for
        while the database is at work on the one before. Nothing is written when a value or a part is None, or when
        asking for one raises.

        Raises OutcomeUnknown when the commit is in doubt, and only then. Not for sessions of a pooler.
        """
        connection = await self.connect()
        under_way: asyncio.Task[Any] | None = None
        found: list[Any] = []
        committing = False
        try:
            # Of this very connection, which is never replaced here: on another one each part would be a transaction.
            statement, _ = self._statements.get(query) or await self._prepared(connection, query)
            await connection.execute("BEGIN")
            for part in parts:
                if under_way is not None:
                    found.append(await under_way)
                under_way = None
                if part is None:
                    break
                under_way = asyncio.get_running_loop().create_task(statement.fetchval(*part))
                await asyncio.sleep(0)  # it is sent now
            found.append(None if under_way is None else await under_way)
            committing = None not in found
            await connection.execute("COMMIT" if committing else "ROLLBACK")
            return found
        except BaseException as error:
            self.drop()  # which undoes what is not committed
            if under_way is not None:
                await asyncio.gather(under_way, return_exceptions=True)
            if isinstance(error, DRIVER_ERRORS):
                raise translate(error, self._address.place, writing=committing) from error
            raise

    async def rehearse(self, query: str, *args: Any) -> None:
        """What `write` would raise; nothing of it is kept."""
        connection = await self.connect()
        try:
            await connection.execute("BEGIN")
            try:
                await connection.fetch(query, *args)
            finally:
                await connection.execute("ROLLBACK")
        except BaseException as error:
            if answered(error, self._address.place) is None:
                self.drop()
            if isinstance(error, DRIVER_ERRORS):
                raise translate(error, self._address.place, writing=False) from error
            raise

    @property
    def _is_behind(self) -> bool:
        """Whether the session's clock is not the one that the tests want. One that is shared has none of its own."""
        return self._shifted != self._shift.micros and not self._address.is_pooled

    @property
    def _broken(self) -> bool:
        return self._connection is None or self._connection.is_closed()

    def drop(self) -> None:
        """Cut the connection at once; the next statement makes another."""
        self._stop_watching()
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.terminate()

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    async def close(self) -> None:
        """Say goodbye to the server."""
        self._stop_watching()
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            try:
                await connection.close(timeout=2)
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
                connection.terminate()

    async def _once(self, query: str, args: tuple[Any, ...]) -> list[asyncpg.Record]:
        connection = self._connection
        if connection is None or connection.is_closed() or self._shifted != self._shift.micros:
            connection = await self.connect()
        try:
            if self._is_pooled:
                return await self._once_pooled(connection, query, args)
            _, execute = self._statements.get(query) or await self._prepared(connection, query)
            self._asked_at = time.monotonic()
            if self._watching is None:
                self._watch()
            return await execute(args)
        except BaseException as error:
            # Also when cancelled: the statement may still be running, and its reply must not reach the next caller.
            if answered(error, self._address.place) is None:
                self.drop()
            raise
        finally:
            self._asked_at = None

    def _watch(self) -> None:
        """Cut the connection when a reply has been waited for too long. One timer for many statements: one for each, as
        the driver has it, costs more than all its checks."""
        self._watching = None
        if self._asked_at is None:
            return
        left = self._asked_at + self._patience - time.monotonic()
        if left > 0:
            self._watching = asyncio.get_running_loop().call_later(left, self._watch)
        else:
            self.drop()

    async def _once_pooled(self, connection: Connection, query: str, args: tuple[Any, ...]) -> list[asyncpg.Record]:
        """In a transaction that brings its own settings: the session is another each time, and others have it next."""
        await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED;" + self.local_settings())
        try:
            rows = await connection.fetch(query, *args)
        except asyncpg.PostgresError as error:
            if answered(error, self._address.place) is not None:
                await connection.execute("ROLLBACK")
            raise
        await connection.execute("COMMIT")
        return rows

    def local_settings(self) -> str:
        """Statements that give a transaction what the session cannot have."""
        local = dict(self._settings)
        if self._shift.micros:
            local["testing.batuta_shift"] = str(self._shift.micros)
        return "".join(f"SET LOCAL {name} = '{value}';" for name, value in local.items())

    async def _prepared(self, connection: Connection, query: str) -> tuple[Statement, Execute]:
        """The statement, kept for the life of the connection: looking it up in the driver's own cache costs more."""
        statement = await connection.prepare(query)
        prepared = self._statements[query] = (statement, _execution(connection, statement))
        return prepared

    async def _settle(self) -> Connection:
        try:
            if self._connection is None or self._connection.is_closed():
                self._statements.clear()
                self._connection = await self._make()
                self._shifted = 0
            if self._is_behind:
                wanted = self._shift.micros
                await self._connection.fetch(self._shift_query, str(wanted))
                self._shifted = wanted
            return self._connection
        except (*DRIVER_ERRORS, ValueError) as error:
            self.drop()
            raise unreachable(error, self._address.place) from error

    async def _make(self) -> Connection:
        address = self._address
        named = {"application_name": "batuta"}
        connection: Connection = await asyncpg.connect(
            address.dsn,
            connection_class=self._kind,
            timeout=CONNECT_SECONDS,
            command_timeout=self._patience,
            statement_cache_size=address.statement_cache_size,
            max_cached_statement_lifetime=0,
            server_settings=named if address.is_pooled else {**named, **self._settings},  # a pooler refuses settings
        )
        _read_in_small_pieces(connection)
        if self._hook is not None:
            try:
                await self._hook(connection)
            except BaseException:
                connection.terminate()
                raise
        return connection


async def end(task: asyncio.Task[None], patience: float = 2.0) -> None:
    """Wait for a task that was asked to end, and cancel it only when it does not.

    A statement that is cut off leaves a second connection behind, which the driver opens to cancel the first.
    """
    _done, pending = await asyncio.wait([task], timeout=patience)
    if pending:
        task.cancel()
        await asyncio.wait([task])


class Pool:
    """A few sessions for everything that is not a commit. The one used last is used next."""

    def __init__(self, make: Callable[[], Session], size: int) -> None:
        self._make = make
        self._idle: list[Session] = []
        self._closed = False
        self._room = asyncio.Semaphore(size)

    def open(self) -> None:
        """Usable again after a close."""
        self._closed = False

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """A session to oneself."""
        session = await self.take()
        try:
            yield session
        finally:
            self.give_back(session)

    async def take(self) -> Session:
        """The same for who gives it back."""
        await self._room.acquire()
        try:
            return self._idle.pop() if self._idle else self._make()
        except BaseException:
            self._room.release()
            raise

    def give_back(self, session: Session) -> None:
        if self._closed:  # it was in use when the pool was closed
            session.drop()
        else:
            self._idle.append(session)
        self._room.release()

    async def read(self, query: str, *args: Any) -> list[asyncpg.Record]:
        async with self.session() as session:
            return await session.read(query, *args)

    async def write(self, query: str, *args: Any, replied: Callable[[], None] | None = None) -> list[asyncpg.Record]:
        async with self.session() as session:
            return await session.write(query, *args, replied=replied)

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            await self._idle.pop().close()
