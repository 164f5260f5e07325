"""The store on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from batuta.journal.store import Heartbeat
from batuta.stores.postgres.activity_transaction import Transactions
from batuta.stores.postgres.audit import AuditVerbs
from batuta.stores.postgres.base import HEART_PATIENCE_SECONDS
from batuta.stores.postgres.bulk_operations import BulkVerbs
from batuta.stores.postgres.bus.messages import BusVerbs
from batuta.stores.postgres.caller_transaction import CallerTransactions
from batuta.stores.postgres.database.connection import Hook, Session, settings_of
from batuta.stores.postgres.database.row_locks import VERB_SECONDS
from batuta.stores.postgres.dead_letters import DeadLetterVerbs
from batuta.stores.postgres.flows.flows import FlowVerbs
from batuta.stores.postgres.forks import ForkVerbs
from batuta.stores.postgres.heartbeat import PostgresHeartbeat
from batuta.stores.postgres.listing import Listing
from batuta.stores.postgres.marks import MarkVerbs
from batuta.stores.postgres.queues import Queues
from batuta.stores.postgres.quotas import QuotaVerbs
from batuta.stores.postgres.reading import Reading
from batuta.stores.postgres.reencryption import RewritingVerbs
from batuta.stores.postgres.resilience.partners import PartnerVerbs
from batuta.stores.postgres.retention import RetentionVerbs
from batuta.stores.postgres.schedules import ScheduleVerbs
from batuta.stores.postgres.server.api_keys import ApiKeyVerbs
from batuta.stores.postgres.server.documents import DocumentVerbs
from batuta.stores.postgres.server.requests import RequestVerbs
from batuta.stores.postgres.slot_handover import SlotHandover
from batuta.stores.postgres.starts import Starts


class PostgresStore(
    Starts,
    Transactions,
    SlotHandover,
    Queues,
    CallerTransactions,
    ScheduleVerbs,
    ForkVerbs,
    DeadLetterVerbs,
    RetentionVerbs,
    QuotaVerbs,
    MarkVerbs,
    ApiKeyVerbs,
    RequestVerbs,
    DocumentVerbs,
    PartnerVerbs,
    BusVerbs,
    BulkVerbs,
    AuditVerbs,
    RewritingVerbs,
    FlowVerbs,
    Reading,
    Listing,
):
    """A `Store` on a PostgreSQL database.

    `url` is `postgresql://...`; its options in `address.OPTIONS` are ours, all others are the driver's. A commit has a
    connection to itself, so has each heartbeat, and so has listening.
    """

    @asynccontextmanager
    async def heartbeat(self, worker_id: str) -> AsyncIterator[Heartbeat]:
        heartbeat = PostgresHeartbeat(
            self.namespace,
            worker_id,
            self._sql,
            self._heartbeat_session,
            self._announcer.tell_from_thread,
            locks=self.address.for_sessions is not None,
        )
        await heartbeat.open()
        try:
            yield heartbeat
        finally:
            await heartbeat.close()

    def _heartbeat_session(self, hook: Hook) -> Session:
        settings = settings_of(self.address, VERB_SECONDS)
        address, patience = self.address.for_sessions, HEART_PATIENCE_SECONDS
        return self._new_session(address, patience=patience, hook=hook, settings=settings)
