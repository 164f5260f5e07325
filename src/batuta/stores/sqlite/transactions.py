"""Transactions of activities: on the writing connection, which nobody else has meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from batuta import failpoints
from batuta.errors import TransactionEnded
from batuta.failpoints import failpoint
from batuta.journal.records import Change, Hint, Refusal, Verdict
from batuta.stores.sqlite.alone import write_alone
from batuta.stores.sqlite.batch import Batch, Judge, Mismatch
from batuta.stores.sqlite.errors import translate
from batuta.stores.sqlite.loans import Loan
from batuta.stores.sqlite.writer import Writer

if TYPE_CHECKING:
    from batuta.stores.sqlite.store import SqliteStore

LONGEST_SECONDS = 2.0
"""Others wait for five seconds before they say that the store is away, and a lease is ten."""


class SqliteTransaction:
    """The code of its activity runs in a thread."""

    blocking = True

    def __init__(self, store: SqliteStore, writer: Writer, seconds: float) -> None:
        self._store, self._writer = store, writer
        self.seconds = min(seconds, LONGEST_SECONDS)
        self._loan: Loan | None = None

    @property
    def connection(self) -> Loan:
        if self._loan is None:
            raise TransactionEnded("the transaction is over")
        return self._loan

    async def begin(self) -> None:
        writer = self._writer
        if not writer.try_begin():
            await writer.begin()
        self._loan = Loan(writer.connection)

    async def commit(
        self, worker_id: str, change: Change, may_leave: Callable[[Sequence[Refusal]], None]
    ) -> Verdict | list[Refusal]:
        loan = self.connection
        loan.take_back(wait=True)  # its code has ended
        loan.check_open()
        written = self._write(worker_id, change, may_leave)
        self._loan = None
        if isinstance(written, Verdict):
            self._writer.abandon()
            return written
        hint, refusals = written
        if not self._writer.commit_now():
            await self._writer.commit()
        if failpoints.armed is not None:
            failpoint("transaction.committed")
        self._store.announce(hint, [change])
        return refusals

    def _write(
        self, worker_id: str, change: Change, may_leave: Callable[[Sequence[Refusal]], None]
    ) -> Verdict | tuple[Hint, list[Refusal]]:
        """What it raises leaves the transaction open."""
        cursor, namespace, now = self._writer.cursor, self._store.namespace, self._store.clock_now()
        try:
            hint = write_alone(cursor, namespace, worker_id, change, now)
            refusals: list[Refusal] = []
            if hint is None:
                batch = Batch(cursor, namespace, worker_id, now)
                hint = batch.write([change])
                answer = batch.refusals([change]).get(0, [])
                refusals = answer if isinstance(answer, list) else []
        except Mismatch:
            cursor.execute("ROLLBACK")
            verdict = Judge(cursor, namespace, worker_id, now).judge(change)
            return verdict if isinstance(verdict, Verdict) else Verdict.REFUSED
        except Exception as error:
            meant = translate(error)
            if meant is None or meant is error:
                raise
            raise meant from error
        if refusals:
            may_leave(refusals)
        if failpoints.armed is not None:
            failpoint("transaction.written")
        return hint, refusals

    async def rollback(self) -> None:
        loan, self._loan = self._loan, None
        if loan is None:
            return
        if loan.take_back(wait=False):
            self._writer.abandon()
            return
        loan.interrupt()
        # Shielded: who gives up waiting must not have it end before the statement does, which would stay then.
        await asyncio.shield(self._writer.aside(lambda: self._end(loan)))

    def _end(self, loan: Loan) -> None:
        loan.take_back(wait=True)
        self._writer.abandon()
