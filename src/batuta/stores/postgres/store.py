"""The store on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from batuta.journal.store import Heart
from batuta.stores.postgres.audit import AuditVerbs
from batuta.stores.postgres.base import HEART_PATIENCE_SECONDS
from batuta.stores.postgres.forks import ForkVerbs
from batuta.stores.postgres.guests import Guests
from batuta.stores.postgres.handing import Handing
from batuta.stores.postgres.heart import PostgresHeart
from batuta.stores.postgres.holding import HoldingVerbs
from batuta.stores.postgres.letters import LetterVerbs
from batuta.stores.postgres.queues import Queues
from batuta.stores.postgres.quotas import QuotaVerbs
from batuta.stores.postgres.reading import Reading
from batuta.stores.postgres.retention import RetentionVerbs
from batuta.stores.postgres.rewriting import RewritingVerbs
from batuta.stores.postgres.schedules import ScheduleVerbs
from batuta.stores.postgres.session import Hook, Session
from batuta.stores.postgres.starts import Starts
from batuta.stores.postgres.transactions import Transactions


class PostgresStore(
    Starts,
    Transactions,
    Handing,
    Queues,
    Guests,
    ScheduleVerbs,
    ForkVerbs,
    LetterVerbs,
    RetentionVerbs,
    QuotaVerbs,
    HoldingVerbs,
    AuditVerbs,
    RewritingVerbs,
    Reading,
):
    """A `Store` on a PostgreSQL database.

    `url` is `postgresql://...`; its options in `address.OPTIONS` are ours, all others are the driver's. A commit has a
    connection to itself, so has each heartbeat, and so has listening.
    """

    def heart(self, worker_id: str) -> AbstractAsyncContextManager[Heart]:
        return self._beating(worker_id)

    @asynccontextmanager
    async def _beating(self, worker_id: str) -> AsyncIterator[Heart]:
        heart = PostgresHeart(
            self.namespace,
            worker_id,
            self._sql,
            self._heart_session,
            self._announcer.tell_from_thread,
            locks=self.address.for_sessions is not None,
        )
        await heart.open()
        try:
            yield heart
        finally:
            await heart.close()

    def _heart_session(self, hook: Hook) -> Session:
        return self._new_session(self.address.for_sessions, patience=HEART_PATIENCE_SECONDS, hook=hook)
