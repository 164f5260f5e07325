"""Connections that are lent to the code of activities."""

from __future__ import annotations

from typing import Any, Final

from asyncpg.pool import PoolConnectionProxy

from batuta.stores.postgres.database.connection import Connection

_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL activity.begun = 'here';"
"""The mark ends with the transaction: another transaction that the activity's code has begun instead does not have
it."""


class ActivityConnection(Connection):
    """Begins the transaction of an activity, and ends it, in one round trip each."""

    _top_xact: Any
    _pool_release_ctr: int

    async def begin(self, settings: str = "") -> None:
        """Raises as the driver does; the connection must be cut then."""
        await self.execute(_BEGIN + settings)
        # One of the driver's own, so that transactions that the code begins inside it are savepoints.
        self._top_xact = self.transaction(isolation="read_committed")

    async def end(self, statements: str) -> None:
        """Execute them: the last one is COMMIT or ROLLBACK."""
        await self.execute(statements)
        self._top_xact = None  # as the driver's own do

    def disown(self) -> None:
        """Statements, cursors and savepoints made with it no longer work."""
        self._pool_release_ctr += 1  # as the driver's own pool does


class LentConnection(PoolConnectionProxy):
    """The connection as an activity's code sees it, like one of a pool.

    It no longer works once it is taken back, because another activity may use the connection.
    """

    def take_back(self) -> None:
        connection = self._detach()  # type: ignore[attr-defined]  # not in the stubs
        if connection is not None:
            connection.disown()
