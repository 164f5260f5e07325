"""Transactions of activities in memory: without a database, one holds only the entry of the activity and its outbox,
together or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NoReturn

from batuta.errors import WrongTransaction
from batuta.failpoints import failpoint
from batuta.journal.bus.messages import NewMessage
from batuta.journal.records import Change, Refusal, Verdict
from batuta.stores.memory.bus.messages import publish
from batuta.stores.memory.commits import Commit
from batuta.stores.memory.unit_of_work import UnitOfWork


class MemoryTransaction:
    """Nothing is held while its activity runs."""

    blocking = False

    def __init__(self, work: Callable[[], AbstractContextManager[UnitOfWork]], seconds: float) -> None:
        """`work`: begins a unit of work of the store."""
        self._work, self.seconds = work, seconds

    @property
    def connection(self) -> NoReturn:
        raise WrongTransaction(
            "memory:// has no database for an activity to write to: use SQLite or PostgreSQL, also in this test, "
            "or a double of the activity"
        )

    async def begin(self) -> None: ...

    async def commit(
        self,
        worker_id: str,
        change: Change,
        may_leave: Callable[[Sequence[Refusal]], None],
        messages: Sequence[NewMessage] = (),
    ) -> Verdict | list[Refusal]:
        failpoint("transaction.written")
        with self._work() as unit:
            commit = Commit(unit, worker_id)
            verdict = commit.judge(change)
            if verdict is not True:  # False: it was written before, by another transaction
                return verdict or Verdict.REFUSED
            may_leave(commit.foreseen(change))
            answer = commit.write([change]).get(0, [])
            publish(unit, messages)
        failpoint("transaction.committed")
        return answer

    async def rollback(self) -> None: ...
