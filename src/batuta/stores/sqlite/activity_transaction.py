"""Transactions of activities: on the only writing connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from batuta.errors import TransactionEnded
from batuta.failpoints import failpoint
from batuta.journal.bus.messages import NewMessage
from batuta.journal.records import Change, Hint, Refusal, Verdict
from batuta.stores.sqlite.bus.messages import publish
from batuta.stores.sqlite.commits import CommitBatch, Judge, Mismatch
from batuta.stores.sqlite.database.base import Base
from batuta.stores.sqlite.database.errors import translate
from batuta.stores.sqlite.database.lent_connection import LentConnection
from batuta.stores.sqlite.database.writer import Writer
from batuta.stores.sqlite.fast.commit_single import write_alone

LONGEST_SECONDS = 2.0
"""Others wait for five seconds before they report the store as unavailable, and a lease is ten."""


class SqliteTransaction:
    """The code of its activity runs in a thread."""

    blocking = True

    def __init__(self, store: Base, writer: Writer, seconds: float) -> None:
        self._store, self._writer = store, writer
        self.seconds = min(seconds, LONGEST_SECONDS)
        self._lent: LentConnection | None = None

    @property
    def connection(self) -> LentConnection:
        if self._lent is None:
            raise TransactionEnded("the transaction is over")
        return self._lent

    async def begin(self) -> None:
        await self._writer.begin()
        self._lent = LentConnection(self._writer.cursor.connection)

    async def commit(
        self,
        worker_id: str,
        change: Change,
        may_leave: Callable[[Sequence[Refusal]], None],
        messages: Sequence[NewMessage] = (),
    ) -> Verdict | list[Refusal]:
        loan = self.connection
        loan.take_back(wait=True)  # its code has ended
        loan.check_open()
        written = self._write(worker_id, change, may_leave, messages)
        self._lent = None
        if isinstance(written, Verdict):
            self._writer.abandon()
            return written
        refusals, hint = written
        await self._writer.commit()
        failpoint("transaction.committed")
        self._store.announce(hint, [change])
        return refusals

    def _write(
        self,
        worker_id: str,
        change: Change,
        may_leave: Callable[[Sequence[Refusal]], None],
        messages: Sequence[NewMessage],
    ) -> Verdict | tuple[list[Refusal], Hint]:
        """Its errors leave the transaction open."""
        unit = self._store.unit(self._writer.cursor)
        refusals: list[Refusal] = []
        try:
            if not write_alone(unit, worker_id, change):
                batch = CommitBatch(unit, worker_id)
                batch.write([change])
                refusals = batch.refusals([change]).get(0, [])
            publish(unit, messages)
        except Mismatch:
            unit.executor.execute("ROLLBACK")
            verdict = Judge(unit, worker_id).judge(change)
            return verdict if isinstance(verdict, Verdict) else Verdict.REFUSED
        except Exception as error:
            meant = translate(error)
            if meant is None or meant is error:
                raise
            raise meant from error
        if refusals:
            may_leave(refusals)
        failpoint("transaction.written")
        return refusals, unit.hint

    async def rollback(self) -> None:
        loan, self._lent = self._lent, None
        if loan is None:
            return
        if loan.take_back(wait=False):
            self._writer.abandon()
            return
        loan.interrupt()
        # Shielded: who gives up waiting must not have it end before the statement does, which would stay then.
        await asyncio.shield(self._writer.aside(lambda: self._end(loan)))

    def _end(self, loan: LentConnection) -> None:
        loan.take_back(wait=True)
        self._writer.abandon()
