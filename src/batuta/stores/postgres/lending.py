"""Connections that are lent to the code of activities. Their transaction begins with the first statement of that code,
and ends with the last one of ours: neither BEGIN nor COMMIT costs a round trip.

For that, messages of PostgreSQL's protocol are put before those that the driver sends. The server replies to all of
them together, and the driver passes over the replies to what it has not sent. Where the driver is not as we know it,
or a pooler stands before the server, statements are sent one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from batuta.stores.postgres.awake import Awake
from batuta.stores.postgres.session import DRIVER_ERRORS, KNOWN_INSIDE, Connection

log = logging.getLogger("batuta.postgres")

IS_KNOWN_INSIDE: Final = asyncpg.__version__.startswith(KNOWN_INSIDE)
"""Whether the driver is as we know it."""
BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"
MARK: Final = "SET LOCAL activity.begun = 'here'"
"""Gone with the transaction: another one, that the activity's code has begun in its place, does not have it."""


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body


_EXECUTE: Final = _message(b"E", bytes(5))  # whatever was bound last, to its end


def _bound(statement: bytes, values: Sequence[str] = ()) -> bytes:
    """Executes a prepared statement, whose parameters are sent as texts."""
    texts = [value.encode() for value in values]
    sized = b"".join([len(text).to_bytes(4, "big") + text for text in texts])
    return _message(b"B", b"\0%b\0\0\0%b%b\0\0" % (statement, len(texts).to_bytes(2, "big"), sized)) + _EXECUTE


_PASSIVE: Final = (
    "_get_timeout abort backend_pid backend_secret close get_record_class get_server_pid get_settings is_closed "
    "is_connected"
).split()
_ACTIVE: Final = frozenset(
    "bind bind_execute_many close_portal close_statement copy_in copy_out execute prepare query".split()
)


class _First:
    """Stands in for the driver's protocol until something is sent: the transaction is begun before it.

    All that the driver sends goes through its protocol, so that no statement can be executed before the BEGIN. What is
    not known here is refused.
    """

    def __init__(self, connection: ActivityConnection, protocol: Any, begins: bytes) -> None:
        self._connection, self.protocol, self.begins = connection, protocol, begins
        for name in _PASSIVE:
            setattr(self, name, getattr(protocol, name))

    def is_in_transaction(self) -> bool:
        return True

    async def bind_execute(
        self, state: Any, args: Any, portal_name: str, limit: int, return_extra: bool, timeout: float | None
    ) -> Any:
        """A statement that is prepared already: the BEGIN goes with it. But the driver would take the reply to BEGIN
        for the end of a cursor, which has a portal with a name."""
        connection, protocol = self._connection, self.protocol
        if portal_name:
            await connection.begin()
            return await protocol.bind_execute(state, args, portal_name, limit, return_extra, timeout)
        connection.send_begin()
        if (awake := connection.awake) is not None:
            awake.stay()
        try:
            answer = await protocol.bind_execute(state, args, portal_name, limit, return_extra, timeout)
        except Exception:
            await connection.make_sure()
            raise
        if awake is not None:
            awake.rest()
        connection.is_heard = True
        return answer

    def __getattr__(self, name: str) -> Any:
        if name not in _ACTIVE:
            raise AttributeError(f"the driver's protocol is asked for {name!r}, which is not known")

        async def after_begin(*args: Any, **options: Any) -> Any:
            await self._connection.begin()
            return await getattr(self.protocol, name)(*args, **options)

        return after_begin


class ActivityConnection(Connection):
    """Begins the transaction of an activity, and commits it together with a statement."""

    _protocol: Any
    _transport: Any
    _top_xact: Any
    _whole: Any = None
    _first: _First | None = None
    _fence: bytes = b""
    _commit: Any = None
    is_heard = False
    """The server has replied since the transaction was to begin."""
    awake: Awake | None = None
    """Stays awake for the reply to the first statement."""

    async def begin(self, settings: str = "") -> None:
        """Begin the transaction now. When it raises, the connection is cut: what is executed next would be durable."""
        self._unveil()
        try:
            await self.execute(f"{BEGIN}; {MARK}; {settings}")
        except BaseException:
            self.terminate()
            raise
        self._begun(heard=True)

    async def begin_with_first(self, fence: str) -> None:
        """Have the transaction begin with its first statement. `fence` is what is executed before its commit."""
        if self._first is None:
            begin, mark, last, self._commit = [await self.prepare(one) for one in (BEGIN, MARK, fence, "COMMIT")]
            begins = _bound(begin.get_name().encode()) + _bound(mark.get_name().encode())
            self._kept, self._fence = (begin, mark, last), last.get_name().encode()
            self._first = _First(self, self._protocol, begins)
        self._protocol = self._first
        self._begun(heard=False)

    def _begun(self, *, heard: bool) -> None:
        if self._whole is None:
            self._whole = self.transaction(isolation="read_committed")
        # One of the driver's own, so that those that the code begins inside it are savepoints.
        self._top_xact, self.is_heard = self._whole, heard

    def _unveil(self) -> bytes:
        """Use the driver's protocol from here on. What must be sent before all else."""
        first = self._first
        if first is None or self._protocol is not first:
            return b""
        self._protocol = first.protocol
        return first.begins

    def send_begin(self) -> None:
        """Before what the driver sends next."""
        self._transport.write(self._unveil())

    async def make_sure(self) -> None:
        """The first statement failed. When it was never sent, as one whose values are of the wrong type, or its reply
        was not waited for, those to BEGIN have not come yet; and without a transaction nothing may be executed."""
        if not self.is_closed() and not self._protocol.is_in_transaction():
            try:
                await self._protocol.query("SELECT", None)  # which has a reply of its own
            except DRIVER_ERRORS:
                log.debug("the first statement of an activity failed, and so does what follows it", exc_info=True)
            except BaseException:
                self.terminate()
                raise
        self.is_heard = not self.is_closed() and self._protocol.is_in_transaction()
        if not self.is_heard:
            self.terminate()

    async def commit_at_once(self, values: Sequence[str], awake: Awake | None) -> None:
        """Execute the fence and commit, in one round trip. When the fence raises, nothing is committed."""
        if self.is_closed():
            raise asyncpg.InterfaceError("connection is closed")
        begins = self._unveil()
        self._transport.write(begins + _bound(self._fence, values))
        if awake is not None:
            awake.stay()
        await self._protocol.bind_execute(self._commit._state, (), "", 0, False, None)
        if awake is not None:
            awake.rest()
        self._top_xact = None  # as the driver's own commit does

    async def end(self, how: str) -> None:
        """COMMIT or ROLLBACK."""
        if not self._unveil():
            await self.execute(how)
        self._top_xact = None


class LentConnection(PoolConnectionProxy):
    """The connection as an activity's code has it, as one of a pool: of no use any more once it is taken back, whoever
    has kept it. Another activity has the connection then."""

    def take_back(self) -> None:
        self._detach()  # type: ignore[attr-defined]  # not in the stubs
