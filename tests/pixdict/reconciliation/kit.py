"""Our entries and those of the directory, made on either side alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from prometheus_client import CollectorRegistry

from batuta import connect, job
from batuta.bus import Message, subscribe
from batuta.client import Batuta
from batuta.clock import as_datetime
from pixdict.bridge import BridgeClient, BridgeSettings, serve
from pixdict.connect.database import Database, open_database
from pixdict.connect.keys import KeyTables
from pixdict.connect.keys.models import EntryRow
from pixdict.connect.reconciliation import (
    QUEUE,
    Audit,
    HeldEntries,
    Mirror,
    Options,
    ReconciliationActivities,
    ReconciliationMetrics,
    Report,
    reconcile_keys,
    reconciliation_worker,
)
from pixdict.dict import messages
from pixdict.dict.cids import cid_of, vsync_of
from pixdict.dict.entries import Entry, ExtendedEntry
from pixdict.dict.keys import KeyType
from pixdict.directory import Directory
from pixdict.directory.service import Service
from pixdict.directory.storage import StoredEntry
from pixdict.errors import RateLimited
from tests.pixdict.directory.kit import A, Bank, account, create
from tests.pixdict.keys.kit import DirectBridge

AT_ONCE = Options(settle=0.0, pause=0.0)
"""For tests in which nothing else changes anything."""


def entry(number: int, **options: Any) -> Entry:
    """One of our keys, with an account of its own."""
    return create(f"+55619{number:08}", **{"at": account(number=str(number))} | options).entry


class Sides:
    """The directory and our own tables, of participant A."""

    def __init__(self, directory: Service, tables: KeyTables) -> None:
        self.directory, self.storage, self.tables = directory, directory.storage, tables
        self.held = HeldEntries(tables)
        self.bank = Bank(directory, A)

    def there(self, made: Entry, request_id: UUID | None = None, *, now: int | None = None) -> StoredEntry:
        """At the directory alone."""
        id, at = request_id or uuid4(), self.directory.now() if now is None else now
        moment = as_datetime(at)
        shown = ExtendedEntry(
            key=made.key or "",
            key_type=made.key_type,
            account=made.account,
            owner=made.owner,
            creation_date=moment,
            key_ownership_date=moment,
        )
        stored = StoredEntry(shown, cid_of(made, id), id)
        self.storage.put_entry(stored, at)
        return stored

    async def here(
        self, id: str, made: Entry, request_id: UUID | None = None, *, status: str = "ACTIVE", cid: str | None = None
    ) -> str:
        """In our own tables alone."""
        known = request_id or uuid4()
        found = cid_of(made, known) if cid is None else cid
        await self.tables.insert_entry(EntryRow(id=id, status=status, request_id=str(known), entry=made, cid=found))
        return found

    async def both(self, id: str, made: Entry) -> StoredEntry:
        stored = self.there(made)
        await self.here(id, made, stored.request_id)
        return stored

    async def row(self, id: str) -> EntryRow:
        found = await self.tables.entry(id)
        assert found is not None
        return found

    async def agree(self) -> bool:
        """Whether both sides have the same, type by type, identifiers made from our own entries."""
        for key_type in KeyType:
            rows = await self.tables.run(
                "SELECT id FROM dict_entries WHERE key_type = ? AND status = 'ACTIVE'", str(key_type)
            )
            found = [await self.row(one["id"]) for one in rows]
            ours = vsync_of([cid_of(one.entry, UUID(one.request_id)) for one in found])
            if ours != self.storage.vsync(A, str(key_type)) or [one for one in found if not one.cid]:
                return False
        return True


class EventBridge(DirectBridge):
    """The calls of a reconciliation, without gRPC and HTTP. `limited`: calls that find no tokens first."""

    def __init__(self, bank: Bank) -> None:
        super().__init__(bank)
        self.limited: list[str] = []

    async def create_sync_verification(
        self, key_type: str, verifier: str, *, request_id: str | UUID
    ) -> messages.ExtendedSyncVerification:
        asked = messages.SyncVerification(
            participant=self.bank.ispb, key_type=key_type, participant_sync_verifier=verifier
        )
        message = messages.CreateSyncVerificationRequest(sync_verification=asked)
        found: messages.ExtendedSyncVerification = self._ask("createSyncVerification", message).sync_verification
        return found

    async def list_cid_events(
        self, key_type: str, *, start_time: datetime, limit: int = 0
    ) -> messages.ListCidSetEventsResponse:
        self._limit("listCidSetEvents")
        found: messages.ListCidSetEventsResponse = self._ask(
            "listCidSetEvents",
            Participant=self.bank.ispb,
            KeyType=key_type,
            StartTime=start_time.isoformat(),
            Limit=limit,
        )
        return found

    async def get_entry_by_cid(self, cid: str) -> messages.GetEntryByCidResponse:
        self._limit("getEntryByCid")
        found: messages.GetEntryByCidResponse = self._ask("getEntryByCid", value=cid)
        return found

    def _limit(self, operation: str) -> None:
        if operation in self.limited:
            self.limited.remove(operation)
            raise RateLimited(30.0)


class Alerts:
    """What goes to the bus; a message whose id is known is dropped."""

    def __init__(self) -> None:
        self.sent: dict[str, Any] = {}

    async def publish(self, topic: str, payload: Any, *, key: str, id: str, type: str) -> None:
        self.sent.setdefault(id, {"topic": topic, "key": key, "type": type, **payload})


def activities_of(bridge: Any, held: HeldEntries, database: Database, publish: Any) -> ReconciliationActivities:
    metrics = ReconciliationMetrics(CollectorRegistry())
    return ReconciliationActivities(bridge, held, Mirror(database), Audit(database), metrics, publish)


class Stand(Sides):
    """Over gRPC and HTTP, with a worker on SQLite."""

    def __init__(self, directory: Directory, client: Batuta, speaks: BridgeClient, database: Database) -> None:
        super().__init__(directory.service, KeyTables(database))
        self.client, self.speaks, self.database = client, speaks, database
        self.audit, self.registry = Audit(database), CollectorRegistry()
        self.alerts: list[Message[Any]] = []

    async def reconcile(self, options: Options = AT_ONCE) -> dict[str, Report]:
        handle = await self.client.start(reconcile_keys, options, queue=QUEUE)
        reports = await asyncio.wait_for(handle.result(), 120)
        return {one.key_type: one for one in reports}

    async def changes(self) -> list[tuple[str, str, str]]:
        """Action, row and its status before, of each repair."""
        return sorted((one.action, one.entry_id, one.before) for one in await self.audit.changes(most=10_000))

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@asynccontextmanager
async def stand(path: Path, url: str) -> AsyncIterator[Stand]:
    """`url`: of the database with our tables."""
    database = await open_database(url)
    made: list[Stand] = []

    @job
    async def note(message: Message[Any]) -> None:
        made[0].alerts.append(message)

    async with (
        Directory.serve(path=path / "directory.db") as directory,
        connect(f"sqlite:///{path}/batuta.db", migrate=True) as client,
        serve(BridgeSettings(directory=directory.url, participant=A, first_wait=0.01), client, grace=0.5) as bridge,
        BridgeClient(bridge.address) as speaks,
    ):
        s = Stand(directory, client, speaks, database)
        made.append(s)
        async with reconciliation_worker(
            client,
            speaks,
            s.tables,
            database,
            s.registry,
            subscriptions=[subscribe("core-events", note, queue=QUEUE)],
            grace=0.5,
        ):
            yield s
    await database.close()
