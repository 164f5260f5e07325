"""Connections: opened when needed, reopened when broken, never left in a doubtful state."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg

from batuta.durations import human_duration
from batuta.errors import ClientError, StoreUnavailable
from batuta.ids import jitter
from batuta.stores.contract import rules
from batuta.stores.postgres.database.address import Address
from batuta.stores.postgres.database.errors import TRANSIENT, answered, translate, unreachable
from batuta.stores.postgres.database.process_fork import opening
from batuta.stores.postgres.database.row_locks import in_turns
from batuta.stores.postgres.fast.array_types import declare_arrays

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
"""Versions of the driver whose internal way to execute a statement is known."""

T = TypeVar("T")

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 2.0
"""After so long without a reply another connection is asked whether the server is at work on the statement."""
LOOK_SECONDS = 3.0
"""How long that one may take."""
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}
"""A silently lost peer is noticed in 14 s when nothing is sent, and in 10 s when data is not acknowledged (this one
is in milliseconds). Where the system has such options."""
_STATE = "SELECT a.state FROM pg_stat_activity a WHERE a.pid = $1"
_IDLE = ("idle", "idle in transaction", "idle in transaction (aborted)")
TRIES = 8
"""How often a deadlock or serialisation failure is tried, before it is reported."""

SETTINGS = {
    "timezone": "UTC",
    # A statement that waited for a lock must see what was written under it.
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


def settings_of(address: Address, longest_lock: float = math.inf) -> dict[str, str]:
    """Of a session. `longest_lock`: seconds that one statement waits for a row at most."""
    timeouts = {
        "statement_timeout": address.statement_timeout,
        "lock_timeout": min(address.lock_timeout, longest_lock),
    }
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


def _notice_dead_peers(connection: Connection) -> None:
    """A router or NAT may forget a connection without a word to either side."""
    transport = getattr(connection, "_transport", None)
    raw = None if transport is None else transport.get_extra_info("socket")
    if raw is None or raw.family not in (socket.AF_INET, socket.AF_INET6):
        return
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _execution(connection: Connection, statement: Statement) -> Execute:
    """How to execute a statement of a connection that is known to be open.

    The driver's public way checks that four times and takes three more coroutines each time, a tenth of what Python
    adds to a lone commit. If its internals are not as we know them, the public way is used. There is no timer for each
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
        self._settings = settings_of(address) if settings is None else settings
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
        self._looking: asyncio.Task[None] | None = None
        self._parents: Connection | None = None
        """In a forked process: the parent's connection, which is never touched."""

    async def connect(self) -> Connection:
        """The connection, opened if there is none. Raises StoreUnavailable: then nothing was sent."""
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
            if not self.is_broken:
                raise translate(error, self._address.place, writing=False) from error
        try:
            return await self._once(query, args)
        except DRIVER_ERRORS as error:
            raise translate(error, self._address.place, writing=False) from error

    async def write(self, query: str, *args: Any, replied: Callable[[], None] | None = None) -> list[asyncpg.Record]:
        """Rows of one statement that writes, in its own transaction.

        Raises OutcomeUnknown unless a rollback is certain; the connection is then closed. `replied` is called when the
        reply has arrived; an OSError from it counts as a broken connection.
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
        """The value that a statement returns for each of these parts, in one transaction. The next part is requested
        while the database works on the one before. Nothing is written when a value or a part is None, or when
        requesting one raises.

        Raises OutcomeUnknown when the commit is in doubt, and only then. Not for sessions of a pooler.
        """
        connection = await self.connect()
        under_way: asyncio.Task[Any] | None = None
        found: list[Any] = []
        committing = False
        try:
            # Of this very connection, which is never replaced here: on another one each part would be a transaction.
            statement, _ = self._statements.get(query) or await self._prepared(connection, query)
            await self.reply(connection.execute("BEGIN"))
            for part in parts:
                if under_way is not None:
                    found.append(await self.reply(under_way))
                under_way = None
                if part is None:
                    break
                under_way = asyncio.get_running_loop().create_task(statement.fetchval(*part))
                await asyncio.sleep(0)  # it is sent now
            found.append(None if under_way is None else await self.reply(under_way))
            committing = None not in found
            await self.reply(connection.execute("COMMIT" if committing else "ROLLBACK"))
            return found
        except BaseException as error:
            self.drop()  # which rolls back what is not committed
            if under_way is not None:
                await asyncio.gather(under_way, return_exceptions=True)
            if isinstance(error, DRIVER_ERRORS):
                raise translate(error, self._address.place, writing=committing) from error
            raise

    async def rehearse(self, query: str, *args: Any) -> None:
        """The error that `write` would raise; nothing is written."""
        connection = await self.connect()
        try:
            await self.reply(connection.execute("BEGIN"))
            try:
                await self.reply(connection.fetch(query, *args))
            finally:
                await self.reply(connection.execute("ROLLBACK"))
        except BaseException as error:
            if answered(error, self._address.place) is None:
                self.drop()
            if isinstance(error, DRIVER_ERRORS):
                raise translate(error, self._address.place, writing=False) from error
            raise

    @property
    def _is_behind(self) -> bool:
        """Whether the session's clock differs from the one that the tests want. A shared session has none."""
        return self._shifted != self._shift.micros and not self._address.is_pooled

    @property
    def is_broken(self) -> bool:
        """Whether it has no connection."""
        return self._connection is None or self._connection.is_closed()

    def drop(self) -> None:
        """Cut the connection at once; the next statement makes another."""
        self._stop_watching()
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.terminate()

    def forget_socket(self, nothing: int) -> None:
        """In a forked process. The number of the descriptor stays taken, by `nothing`: the transport will close it."""
        connection, self._connection = self._connection, None
        transport = getattr(connection, "_transport", None)
        sock = None if transport is None else transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            os.dup2(nothing, sock.fileno(), inheritable=False)
        self._parents = connection

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        if self._looking is not None and self._looking is not asyncio.current_task():
            self._looking.cancel()

    async def close(self) -> None:
        """Close the connection in order."""
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
            self._asked_at = time.monotonic()
            if self._watching is None:
                self._watch()
            _, execute = self._statements.get(query) or await self._prepared(connection, query)
            return await execute(args)
        except BaseException as error:
            # Also when cancelled: the statement may still be running, and its reply must not reach the next caller.
            if answered(error, self._address.place) is None:
                self.drop()
            raise
        finally:
            self._asked_at = None

    async def reply(self, statement: Awaitable[T]) -> T:
        """The result of a statement on this session's connection; it is closed when no reply can be expected."""
        self._asked_at = time.monotonic()
        if self._watching is None:
            self._watch()
        try:
            return await statement
        finally:
            self._asked_at = None

    def _watch(self) -> None:
        """Close the connection when a reply takes too long, and earlier when none will come.

        One timer for many statements: one for each, as the driver has it, costs more than all its checks.
        """
        self._watching = None
        asked_at, connection = self._asked_at, self._connection
        if asked_at is None or connection is None:
            return
        waited, loop = time.monotonic() - asked_at, asyncio.get_running_loop()
        if waited >= self._patience:
            self.drop()
            return
        if waited >= SILENCE_SECONDS and self._looking is None and not self._is_pooled:
            self._looking = loop.create_task(self._look(connection, asked_at))
        wait = SILENCE_SECONDS - waited if waited < SILENCE_SECONDS else SILENCE_SECONDS
        self._watching = loop.call_later(min(wait, self._patience - waited), self._watch)

    async def _look(self, connection: Connection, asked_at: float) -> None:
        """The reply takes long. Cut the connection unless the server is at work on the statement: then the question or
        the answer got lost. What cannot be reached by another connection either is cut, too."""
        try:
            if not await self._is_at_work(connection.get_server_pid()):
                await asyncio.sleep(SILENCE_SECONDS / 10)  # it may have answered just now
                if self._connection is connection and self._asked_at == asked_at:
                    self.drop()
        finally:
            self._looking = None

    async def _is_at_work(self, pid: int) -> bool:
        try:
            other: Connection = await asyncpg.connect(self._address.dsn, timeout=LOOK_SECONDS, statement_cache_size=0)
        except DRIVER_ERRORS as error:
            return isinstance(error, asyncpg.PostgresError)  # the server itself has no place for it
        try:
            rows = await other.fetch(_STATE, pid, timeout=LOOK_SECONDS)
            return bool(rows) and rows[0][0] not in _IDLE
        except DRIVER_ERRORS:
            return False
        finally:
            other.terminate()

    async def _once_pooled(self, connection: Connection, query: str, args: tuple[Any, ...]) -> list[asyncpg.Record]:
        """In a transaction with its own settings: each one may have another session, which others use next."""
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
        """Statements that set in a transaction what the session cannot have."""
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
        if self._parents is not None:
            raise ClientError(rules.OPENED_BY_PARENT)
        try:
            if self._connection is None or self._connection.is_closed():
                self._statements.clear()
                with opening.one_more():
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
        _sessions.add(self)
        _read_in_small_pieces(connection)
        _notice_dead_peers(connection)
        if asyncpg.__version__.startswith(KNOWN_INSIDE):
            declare_arrays(connection)
        if self._hook is not None:
            try:
                await self._hook(connection)
            except BaseException:
                connection.terminate()
                raise
        return connection


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
"""Sessions that have connected."""


def _forget_sockets() -> None:
    """In a forked process: close the parent's sockets. The server takes a worker for alive while one is open."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for session in list(_sessions):
        session.forget_socket(nothing)
    os.close(nothing)


os.register_at_fork(after_in_child=_forget_sockets)


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

    def __init__(self, make: Callable[[], Session], size: int, lock_timeout: float = 0.0) -> None:
        """`lock_timeout`: for how long a write is tried again when a row is locked."""
        self._make = make
        self._lock_timeout = lock_timeout
        self._idle: list[Session] = []
        self._closed = False
        self._room = asyncio.Semaphore(size)
        self._served = 0

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
        """The same for who gives it back. Raises StoreUnavailable when all are in use, and none for anything that
        works."""
        if self._room.locked():
            await self._wait_for_room()
        else:
            await self._room.acquire()
        try:
            return self._idle.pop() if self._idle else self._make()
        except BaseException:
            self._room.release()
            raise

    async def _wait_for_room(self) -> None:
        while True:
            served = self._served
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self._room.acquire()
                return
            except TimeoutError:
                if self._served == served:
                    raise StoreUnavailable(
                        f"the database has not answered for {human_duration(CONNECT_SECONDS)}, and all connections "
                        f"are waiting"
                    ) from None

    def give_back(self, session: Session) -> None:
        if not session.is_broken:
            self._served += 1
        if self._closed:  # it was in use when the pool was closed
            session.drop()
        else:
            self._idle.append(session)
        self._room.release()

    async def read(self, query: str, *args: Any) -> list[asyncpg.Record]:
        async with self.session() as session:
            return await session.read(query, *args)

    async def write(self, query: str, *args: Any) -> list[asyncpg.Record]:
        return await in_turns(lambda: self._write(query, args), self._lock_timeout)

    async def _write(self, query: str, args: tuple[Any, ...]) -> list[asyncpg.Record]:
        async with self.session() as session:
            return await session.write(query, *args)

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            await self._idle.pop().close()
