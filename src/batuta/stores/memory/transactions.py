"""Transactions of activities in memory: there is no database for their code to write to, so that one is the entry of
the activity and what it sends out, together or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from batuta.errors import WrongTransaction
from batuta.failpoints import failpoint
from batuta.journal.records import Change, Refusal, Verdict
from batuta.stores.memory.commits import Commit

if TYPE_CHECKING:
    from batuta.stores.memory.store import MemoryStore


class MemoryTransaction:
    """Nothing is held while its activity runs."""

    blocking = never_was = False

    def __init__(self, store: MemoryStore, seconds: float) -> None:
        self._store, self.seconds = store, seconds

    @property
    def connection(self) -> NoReturn:
        raise WrongTransaction(
            "memory:// has no database that an activity could write to: use SQLite or PostgreSQL, also in this test, "
            "or a double of the activity"
        )

    async def begin(self) -> None: ...

    async def commit(
        self, worker_id: str, change: Change, may_leave: Callable[[Sequence[Refusal]], None]
    ) -> Verdict | list[Refusal]:
        failpoint("transaction.written")
        with self._store.transaction() as moment:
            commit = Commit(moment, worker_id)
            verdict = commit.judge(change)
            if verdict is not True:  # False: it was written before, by another transaction
                return verdict or Verdict.REFUSED
            may_leave(commit.foreseen(change))
            answer = commit.write([change]).get(0, [])
        failpoint("transaction.committed")
        return answer

    async def rollback(self) -> None: ...
