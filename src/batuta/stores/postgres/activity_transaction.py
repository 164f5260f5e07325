"""Transactions of activities: on separate connections, with the run's fence as the last statement."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from typing import Any, TypeVar

import asyncpg

from batuta.errors import StoreError, StoreUnavailable, TransactionEnded
from batuta.failpoints import failpoint
from batuta.journal.bus.messages import NewMessage
from batuta.journal.records import Change, Hint, Refusal, Verdict
from batuta.journal.store import Transaction
from batuta.stores.contract import rules
from batuta.stores.postgres import cross_run_effects
from batuta.stores.postgres.bus.messages import message_columns
from batuta.stores.postgres.commits import Commits
from batuta.stores.postgres.database import batch_columns
from batuta.stores.postgres.database.connection import DRIVER_ERRORS, SETTINGS, Connection, Pool, Session
from batuta.stores.postgres.database.errors import TRANSIENT, answered, translate, unreachable
from batuta.stores.postgres.database.lent_connection import ActivityConnection, LentConnection
from batuta.stores.postgres.fast.busy_poll import BusyPoll

T = TypeVar("T")

_MOST = 1_000
"""Connections for activities; a worker has places for far fewer."""
_GRACE_SECONDS = 5.0
"""For the turn of an activity's answer, while its transaction waits."""
_FENCE, _OTHER = "BT001", "BT002"
_NO_POOL: Any = None
_ENDED = (
    "the activity's code has ended its transaction by itself, or its connection broke: what it had written may be "
    "there, and its result is not. Leave the transaction open: batuta commits it"
)
_PLANNER = ("plan_cache_mode", "enable_seqscan", "enable_hashjoin", "enable_mergejoin", "enable_bitmapscan", "jit")
_OUR_PLANS = "".join(f"SET LOCAL {name} = {SETTINGS[name]};" for name in _PLANNER)
"""For our own statements, after the activity's: see `session.SETTINGS`."""


class Transactions(Commits):
    """Beginning transactions for activities."""

    def transact(self, seconds: float) -> Transaction:
        pool = self._activity_pools.get(seconds)
        if pool is None:
            settings = self._activity_settings(seconds)
            make = partial(self._new_session, settings=settings, kind=ActivityConnection)
            pool = self._activity_pools[seconds] = Pool(make, _MOST)
        return PostgresTransaction(self, pool, seconds)

    def why_not_transactional(self, is_async: bool) -> str:
        return (
            "" if is_async else "a plain function: on PostgreSQL the connection is async, so define it with `async def`"
        )

    def _activity_settings(self, seconds: float) -> dict[str, str]:
        """Of the activity's own statements: the database's defaults, with limits."""
        return {
            "default_transaction_isolation": "read committed",
            "statement_timeout": f"{round(self.address.statement_timeout * 1000)}ms",
            "lock_timeout": f"{round(self.address.lock_timeout * 1000)}ms",
            "idle_in_transaction_session_timeout": f"{round((seconds + _GRACE_SECONDS) * 1000)}ms",
        }

    # -- for the transactions

    open_transactions = 0

    @cached_property
    def awake(self) -> BusyPoll:
        """For those of a lone activity. Its code may take any time: that must not hold back other commits."""
        return BusyPoll(self.address.busy_wait)

    def step_within(self, worker_id: str, change: Change) -> str:
        """Statements that write one entry and commit. Values stand in them, for only so can there be several."""
        entry = change.entries[0]
        body, namespace, owner = quoted(entry.body), quoted(self.namespace), quoted(worker_id)
        numbers = f"{change.epoch}, {change.head}, {entry.ord}, '{entry.kind}', {entry.at}, {entry.crc}"
        function = self.address.qualify("batuta.commit_within")
        return f"SELECT {function}({namespace}, '{change.run_id}', {owner}, {numbers}, {body}); COMMIT"

    @property
    def whole(self) -> str:
        """A statement that raises unless the transaction is still the original one."""
        return f"SELECT {self.address.qualify('batuta.must_be_whole')}()"

    def statement_for(self, worker_id: str, change: Change) -> tuple[str, tuple[Any, ...], bool]:
        """The statement that writes the change; and whether it reaches beyond its run."""
        if batch_columns.reaches_out(change):
            statement, columns = cross_run_effects.statement_of([change])
            return self._sql[statement], (self.namespace, worker_id, rules.PARENT_CLOSED, *columns), True
        query, values = self._alone(worker_id, change)
        if query is not None:
            return query, values, False
        columns = batch_columns.change_columns([change]) + batch_columns.start_columns([change])
        return self._sql["commit_changes"], (self.namespace, worker_id, *columns), False

    def publishing(self, messages: Sequence[NewMessage]) -> tuple[Any, ...]:
        """A statement, and its parameters."""
        return self._sql["publish_messages"], self.namespace, *message_columns(messages)

    async def why_lost(self, worker_id: str, change: Change) -> Verdict:
        """For a change whose fence failed, and that is rolled back."""
        async with self._committing:
            found = await self._judge(worker_id, [change], [0], self._commit_session)
        return found.get(0, Verdict.REFUSED)  # also when it was written before: by another transaction

    def replied(self) -> None:
        """The reply to a commit is here. An OSError from it counts as a broken connection."""
        failpoint("transaction.committed")
        if self.faults is not None:
            self._lose_reply("commit")

    def announce(self, change: Change, hint: Hint) -> None:
        self._announce_changes([change], {}, hint)


class PostgresTransaction:
    """The code of its activity is async, and has an asyncpg connection."""

    blocking = False

    def __init__(self, store: Transactions, pool: Pool, seconds: float) -> None:
        self._store, self._pool, self.seconds = store, pool, seconds
        self._session: Session | None = None
        self._connection: ActivityConnection | None = None
        self._lent: LentConnection | None = None
        self._rolling_back: asyncio.Task[None] | None = None

    @property
    def connection(self) -> LentConnection:
        if self._lent is None:
            raise TransactionEnded("the transaction is over")
        return self._lent

    async def begin(self) -> None:
        store, session = self._store, await self._pool.take()
        self._session = session
        store.open_transactions += 1
        try:
            connection: Any = await session.connect()
            if store.open_transactions == 1:
                store.awake.stay()  # for the code's first statement, too
            await session.reply(connection.begin(session.local_settings() if store.address.is_pooled else ""))
            self._lent = LentConnection(_NO_POOL, connection)
        except BaseException as error:
            self._end(cut=True)
            if isinstance(error, DRIVER_ERRORS):
                raise unreachable(error, self._store.address.place) from error
            raise
        self._connection = connection

    async def commit(
        self,
        worker_id: str,
        change: Change,
        may_leave: Callable[[Sequence[Refusal]], None],
        messages: Sequence[NewMessage] = (),
    ) -> Verdict | list[Refusal]:
        connection = self._connection
        if connection is None:
            raise TransactionEnded("the transaction is over")
        self._take_back()
        if not connection.is_in_transaction():
            raise TransactionEnded(_ENDED)
        if not messages and batch_columns.is_step(
            change
        ):  # the commonest case: fence, entry and commit in one round trip
            return await self._commit_step(connection, worker_id, change)
        verdict, hint, refusals = await self._write(connection, worker_id, change)
        if verdict is None:
            await self.rollback()
            return await self._store.why_lost(worker_id, change)
        if verdict is Verdict.UNREAD:
            await self.rollback()
            return verdict
        may_leave(refusals)
        if messages:
            hint.bus = bool(await self._publish(connection, messages))
        failpoint("transaction.written")
        await self._committed(connection, connection.end("COMMIT"))
        self._store.announce(change, hint)
        return refusals

    async def _commit_step(
        self, connection: ActivityConnection, worker_id: str, change: Change
    ) -> Verdict | list[Refusal]:
        store = self._store
        if store.open_transactions == 1:
            store.awake.stay()
        committing = connection.end(store.step_within(worker_id, change))
        return [] if await self._committed(connection, committing) else await store.why_lost(worker_id, change)

    async def _write(
        self, connection: Connection, worker_id: str, change: Change
    ) -> tuple[Verdict | bool | None, Hint, list[Refusal]]:
        """True when its fence holds, None when it does not; or UNREAD."""
        query, values, reaches = self._store.statement_for(worker_id, change)
        with self._broken(connection):
            await self._reply(connection.execute(f"{self._store.whole};{_OUR_PLANS}"))
            rows = await self._reply(connection.fetch(query, *values))
        if not reaches:
            held = bool(rows) and ("won" not in rows[0].keys() or bool(rows[0]["won"]))  # noqa: SIM118 - a Record
            return (True if held else None), Hint(due=any(row.get("due") for row in rows)), []
        answer = cross_run_effects.verdicts_of([change], rows[0])[0].get(0, [])
        if isinstance(answer, Verdict):
            return answer, Hint(), []
        # Not a change that was written before: that one has its own rows.
        won = change.run_id in (rows[0]["won"] or ())
        return (True if won else None), cross_run_effects.hint_of(rows[0]), answer

    async def _publish(self, connection: Connection, messages: Sequence[NewMessage]) -> list[str]:
        with self._broken(connection):
            rows = await self._reply(connection.fetch(*self._store.publishing(messages)))
        fresh: list[str] = rows[0]["fresh"]
        return fresh

    @contextmanager
    def _broken(self, connection: Connection) -> Iterator[None]:
        """Errors of our own statements, as what they mean before the commit."""
        try:
            yield
        except DRIVER_ERRORS as error:
            if getattr(error, "sqlstate", None) == _OTHER:
                raise TransactionEnded(_ENDED) from error
            if _is_said(error, connection):
                raise _meant(error, self._store.address.place) from error
            raise StoreUnavailable(f"the connection of an activity's transaction broke: {error}") from error

    async def _committed(self, connection: ActivityConnection, committing: Awaitable[None]) -> bool:
        """False when the fence did not hold. Whether it is that, or raises: nothing is left of the transaction here."""
        try:
            await self._reply(committing)
            self._store.awake.rest()
            self._store.replied()
        except BaseException as error:
            if getattr(error, "sqlstate", None) == _FENCE:
                await self.rollback()
                return False
            if getattr(error, "sqlstate", None) == _OTHER:
                await self.rollback()
                raise TransactionEnded(_ENDED) from error
            said = _is_said(error, connection)
            self._end(cut=True)
            if not isinstance(error, DRIVER_ERRORS):
                raise
            place = self._store.address.place
            if said:  # a constraint that is tested at the end
                raise _meant(error, place) from error
            raise translate(error, place, writing=True) from error
        self._end(cut=False)
        return True

    def _reply(self, statement: Awaitable[T]) -> Awaitable[T]:
        return statement if self._session is None else self._session.reply(statement)

    async def rollback(self) -> None:
        """Goes on when its caller has stopped waiting: a connection that is closed in the middle of a statement is
        left to the server with its locks, until that statement has ended."""
        if self._rolling_back is None:
            if self._connection is None:
                return
            self._rolling_back = asyncio.ensure_future(self._roll_back(self._connection))
        await asyncio.shield(self._rolling_back)

    async def _roll_back(self, connection: ActivityConnection) -> None:
        self._take_back()
        good = False
        try:
            if not connection.is_closed() and connection.is_in_transaction():
                with suppress(*DRIVER_ERRORS):
                    await self._reply(connection.end("ROLLBACK"))
                    good = True
        finally:  # also when the loop ends: no other activity may find the connection in this transaction
            self._end(cut=not good)

    def _end(self, *, cut: bool) -> None:
        """`cut`: the state of the connection is unknown."""
        self._connection = None
        self._take_back()
        session, self._session = self._session, None
        if session is not None:
            if cut:
                session.drop()
            self._pool.give_back(session)
            self._store.open_transactions -= 1

    def _take_back(self) -> None:
        lent, self._lent = self._lent, None
        if lent is not None:
            lent.take_back()


def quoted(text: str) -> str:
    """A text literal for a statement, whatever the session's settings for backslashes and quotes."""
    tag = "batuta"
    while f"${tag}$" in text or text.endswith(f"${tag}"):
        tag += "_"
    return f"${tag}${text}${tag}$"


def _meant(error: BaseException, place: str) -> StoreError:
    """The server's error. A deadlock is the attempt's own error: the store is not unavailable."""
    if isinstance(error, asyncpg.InterfaceError):
        return StoreError(
            f"the activity's code has left a statement under way on its connection: await all of them ({error})"
        )
    found = None if getattr(error, "sqlstate", None) in TRANSIENT else answered(error, place)
    return found or StoreError(f"PostgreSQL at {place} says: {error}")


def _is_said(error: BaseException, connection: Connection) -> bool:
    """Whether the server itself says that it did not do it, or the driver that it has sent nothing."""
    return (
        isinstance(error, asyncpg.PostgresError | asyncpg.InterfaceError)
        and not isinstance(error, asyncpg.PostgresConnectionError)
        and not connection.is_closed()
    )
