"""The tables of keys and claims. Each statement may be repeated: an activity that is tried again does no harm."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Literal, Protocol

from msgspec import Struct, json

from batuta.clock import SystemClock, as_datetime
from pixdict.connect.database import Database, DatabaseTransaction, Rows, SmallTables
from pixdict.connect.keys.models import ClaimRow, EntryRow, EntryStatus, Outcome
from pixdict.dict.claims import Claim, ExtendedClaim
from pixdict.dict.entries import Entry
from pixdict.errors import ConstraintViolation

log = logging.getLogger("pixdict.connect")

_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS dict_entries (
        id TEXT PRIMARY KEY,
        status TEXT NOT NULL,
        key_type TEXT NOT NULL,
        key_value TEXT NOT NULL,
        request_id TEXT NOT NULL,
        cid TEXT NOT NULL,
        problem TEXT NOT NULL,
        document TEXT NOT NULL,
        request TEXT NOT NULL,
        outcome TEXT NOT NULL,
        created_at {time} NOT NULL,
        updated_at {time} NOT NULL
    )""",
    "CREATE INDEX IF NOT EXISTS dict_entries_by_key ON dict_entries (key_value)",
    "CREATE INDEX IF NOT EXISTS dict_entries_by_cid ON dict_entries (key_type, cid)",
    "CREATE INDEX IF NOT EXISTS dict_entries_by_request_id ON dict_entries (request_id)",
    "CREATE INDEX IF NOT EXISTS dict_entries_by_time ON dict_entries (created_at, id)",
    """CREATE TABLE IF NOT EXISTS dict_claims (
        id TEXT PRIMARY KEY,
        side TEXT NOT NULL,
        status TEXT NOT NULL,
        key_value TEXT NOT NULL,
        directory_id TEXT NOT NULL,
        problem TEXT NOT NULL,
        document TEXT NOT NULL,
        donor TEXT NOT NULL,
        expires_at {time},
        request TEXT NOT NULL,
        outcome TEXT NOT NULL,
        created_at {time} NOT NULL,
        updated_at {time} NOT NULL
    )""",
    "CREATE INDEX IF NOT EXISTS dict_claims_by_directory_id ON dict_claims (directory_id)",
    """CREATE UNIQUE INDEX IF NOT EXISTS dict_claims_of_claimer ON dict_claims (directory_id)
        WHERE side = 'CLAIMER' AND directory_id <> ''""",
    "CREATE INDEX IF NOT EXISTS dict_claims_by_time ON dict_claims (created_at, id)",
    """CREATE TABLE IF NOT EXISTS dict_polls (name TEXT PRIMARY KEY, until {time} NOT NULL)""",
)
_ONE_REQUEST_FOR_A_CLAIM = """UPDATE dict_claims SET status = 'FAILED', directory_id = '',
        problem = 'ClaimAlreadyExistsForKey: ' || directory_id || ' is the claim of another request'
    WHERE id IN (SELECT id FROM (
        SELECT id, ROW_NUMBER() OVER (PARTITION BY directory_id ORDER BY
            CASE WHEN status IN ('COMPLETED', 'CANCELLED') THEN 0 ELSE 1 END, created_at, id) AS place
        FROM dict_claims WHERE side = 'CLAIMER' AND directory_id <> '') AS placed WHERE place > 1)"""
"""For tables that are older than the unique index: who has ended a claim keeps it, or else the first."""
_ENTRY = "id, status, request_id, cid, problem, document, request, outcome, created_at"
_CLAIM = "id, side, status, key_value, directory_id, problem, document, donor, expires_at, request, outcome, created_at"
_MOST = 200
"""Ids of one statement."""


class Watch(Protocol):
    """Hears of each row that has changed, after that is durable. It raises nothing. New rows are not told."""

    async def entry_changed(self, row: EntryRow) -> None: ...
    async def claim_changed(self, row: ClaimRow) -> None: ...


class _Writes:
    """The statements that write."""

    async def _run(self, statement: str, *values: Any) -> Rows:
        raise NotImplementedError

    async def _changed(self, row: EntryRow | ClaimRow) -> None:
        raise NotImplementedError

    async def insert_entry(self, row: EntryRow) -> bool:
        """Add an entry; one of that id stays as it is, and it is False."""
        entry, now = row.entry, _now()
        found = await self._run(
            "INSERT INTO dict_entries (id, status, key_type, key_value, request_id, cid, problem, document, request,"
            " outcome, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (id) DO NOTHING RETURNING id",
            *(row.id, row.status, entry.key_type, entry.key or "", row.request_id, row.cid, row.problem),
            *(_text(entry), row.request, _text(row.outcome), now, now),
        )
        return bool(found)

    async def store_entry(self, id: str, entry: Entry, cid: str, outcome: Outcome | None = None) -> None:
        """An entry as the directory has it: it is active."""
        fields = {"status": str(EntryStatus.ACTIVE), "key_value": entry.key or "", "cid": cid, "problem": ""}
        await self._set("dict_entries", id, outcome, document=_text(entry), **fields)

    async def set_entry_status(self, id: str, status: str, problem: str = "", outcome: Outcome | None = None) -> None:
        """Another status, and why."""
        await self._set("dict_entries", id, outcome, status=str(status), problem=problem)

    async def answer_entry(self, id: str, problem: str, outcome: Outcome) -> None:
        """The request has ended; the status stays."""
        await self._set("dict_entries", id, outcome, problem=problem)

    async def insert_claim(self, row: ClaimRow) -> bool:
        """Add a claim; one of that id stays as it is, and it is False."""
        now = _now()
        found = await self._run(
            f"INSERT INTO dict_claims ({_CLAIM}, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
            " ON CONFLICT (id) DO NOTHING RETURNING id",
            *(row.id, row.side, row.status, row.key, row.directory_id, row.problem, _text(row.claim), row.donor),
            *(row.expires_at, row.request, _text(row.outcome), now, now),
        )
        return bool(found)

    async def set_claim(
        self, id: str, status: str, directory_id: str = "", problem: str = "", outcome: Outcome | None = None
    ) -> None:
        """How a claim is now."""
        await self._set("dict_claims", id, outcome, status=status, directory_id=directory_id, problem=problem)

    async def store_claim(self, id: str, claim: ExtendedClaim, outcome: Outcome | None = None) -> None:
        """A claim as the directory has it."""
        fields = {
            "status": claim.status,
            "directory_id": str(claim.id),
            "problem": "",
            "donor": claim.donor_participant,
        }
        await self._set("dict_claims", id, outcome, expires_at=claim.resolution_period_end, **fields)

    async def answer_claim(self, id: str, outcome: Outcome) -> None:
        """The request has ended; the status stays."""
        await self._set("dict_claims", id, outcome)

    async def ask_entry(self, id: str, request: str) -> EntryRow | None:
        """Bind a new request to an active entry that has none under way. None: it has, or is not active."""
        sql = (
            "UPDATE dict_entries SET request = ?, outcome = '', updated_at = ? WHERE id = ? AND status = 'ACTIVE'"  # noqa: S608
            f" AND (request = '' OR outcome <> '') RETURNING {_ENTRY}"
        )
        if (row := _entry(await self._run(sql, request, _now(), id))) is not None:
            await self._changed(row)
        return row

    async def ask_claim(self, id: str, request: str) -> ClaimRow | None:
        """The same for a claim that the directory has not ended."""
        sql = (
            "UPDATE dict_claims SET request = ?, outcome = '', updated_at = ? WHERE id = ?"  # noqa: S608
            " AND status IN ('OPEN', 'WAITING_RESOLUTION', 'CONFIRMED') AND (request = '' OR outcome <> '')"
            f" RETURNING {_CLAIM}"
        )
        if (row := _claim(await self._run(sql, request, _now(), id))) is not None:
            await self._changed(row)
        return row

    async def _set(self, table: str, id: str, outcome: Outcome | None, **fields: Any) -> None:
        """An outcome is that of one request: the row may have another one by now."""
        sets, values = [f"{name} = ?" for name in fields], list(fields.values())
        if outcome is not None:
            sets.append("outcome = CASE WHEN request = ? THEN ? ELSE outcome END")
            values += [outcome.request, _text(outcome)]
        columns = _ENTRY if table == "dict_entries" else _CLAIM
        sql = f"UPDATE {table} SET {', '.join([*sets, 'updated_at = ?'])} WHERE id = ? RETURNING {columns}"  # noqa: S608
        rows = await self._run(sql, *values, _now(), id)
        if (row := _entry(rows) if table == "dict_entries" else _claim(rows)) is not None:
            await self._changed(row)


class ChangedTables(_Writes):
    """Writes of one transaction."""

    def __init__(self, transaction: DatabaseTransaction) -> None:
        self._transaction = transaction
        self.connection = transaction.connection
        """For `transaction=` of the client; None: the tables are in another database than the bus."""
        self.changed: list[EntryRow | ClaimRow] = []

    async def _changed(self, row: EntryRow | ClaimRow) -> None:
        self.changed.append(row)

    async def _run(self, statement: str, *values: Any) -> Rows:
        return await self._transaction.run(statement, *values)


class KeyTables(SmallTables, _Writes):
    """Reads and writes them, each write durable by itself. Methods raise DatabaseTimeout, ConstraintViolation,
    InvalidArgument."""

    schema = _SCHEMA

    def __init__(self, database: Database, watch: Watch | None = None) -> None:
        super().__init__(database)
        self.watch = watch

    async def prepare(self) -> None:
        """Create what is missing, also in tables where several requests had one claim."""
        try:
            await super().prepare()
        except ConstraintViolation:
            log.warning("some claims of the directory belonged to several requests: all but one of each are FAILED")
            await self._database.script([_ONE_REQUEST_FOR_A_CLAIM])
            await super().prepare()

    async def run(self, statement: str, *values: Any) -> Rows:
        """One statement of those who compare the tables with the directory."""
        return await self._run(statement, *values)

    @asynccontextmanager
    async def change(self) -> AsyncIterator[ChangedTables]:
        """Writes that are durable together, at the end of the block."""
        await self.prepare()
        async with self._database.transaction() as transaction:
            tables = ChangedTables(transaction)
            yield tables
        for row in tables.changed:
            await self._changed(row)

    async def _changed(self, row: EntryRow | ClaimRow) -> None:
        if self.watch is not None:
            await (self.watch.entry_changed(row) if isinstance(row, EntryRow) else self.watch.claim_changed(row))

    async def entry_changed(self, id: str) -> None:
        """A row was written with a statement of others."""
        if self.watch is not None and (row := await self.entry(id)) is not None:
            await self.watch.entry_changed(row)

    async def entry(self, id: str) -> EntryRow | None:
        """One entry."""
        return _entry(await self._run(f"SELECT {_ENTRY} FROM dict_entries WHERE id = ?", id))  # noqa: S608

    async def active_entry(self, key: str) -> EntryRow | None:
        """The active entry of a key."""
        sql = f"SELECT {_ENTRY} FROM dict_entries WHERE key_value = ? AND status = 'ACTIVE'"  # noqa: S608
        return _entry(await self._run(sql, key))

    async def entry_of_key(self, key: str) -> EntryRow | None:
        """The entry that a key has, or is about to have: the active one first."""
        sql = (
            f"SELECT {_ENTRY} FROM dict_entries WHERE key_value = ? AND status IN ('ACTIVE', 'DELETING', 'PENDING')"  # noqa: S608
            " ORDER BY status, created_at DESC LIMIT 1"
        )
        return _entry(await self._run(sql, key))

    async def entry_ids(self, keys: Sequence[str]) -> dict[str, str]:
        """The id of the entry of each of at most 200 keys, chosen as by `entry_of_key`."""
        marks = ", ".join("?" * len(keys))
        sql = (
            f"SELECT key_value, id FROM dict_entries WHERE key_value IN ({marks})"  # noqa: S608
            " AND status IN ('ACTIVE', 'DELETING', 'PENDING') ORDER BY status DESC, created_at"
        )
        return {row["key_value"]: row["id"] for row in await self._run(sql, *keys)} if keys else {}

    async def entries(
        self, *, status: str = "", key_type: str = "", before: tuple[datetime, str] | None = None, limit: int = 50
    ) -> list[EntryRow]:
        """The newest first. `before`: the time and id of the last one that is known."""
        found = await self._listed(_ENTRY, "dict_entries", {"status": status, "key_type": key_type}, before, limit)
        return [_entry([row]) for row in found]  # type: ignore[misc]

    async def claim(self, id: str) -> ClaimRow | None:
        """One claim."""
        return _claim(await self._run(f"SELECT {_CLAIM} FROM dict_claims WHERE id = ?", id))  # noqa: S608

    async def claim_of(self, directory_id: str, side: str) -> ClaimRow | None:
        """Our claim of a claim of the directory."""
        sql = f"SELECT {_CLAIM} FROM dict_claims WHERE directory_id = ? AND side = ?"  # noqa: S608
        return _claim(await self._run(sql, directory_id, side))

    async def claims(
        self,
        *,
        status: str = "",
        side: str = "",
        key: str = "",
        before: tuple[datetime, str] | None = None,
        limit: int = 50,
    ) -> list[ClaimRow]:
        """The newest first, as of entries."""
        wanted = {"status": status, "side": side, "key_value": key}
        return [_claim([row]) for row in await self._listed(_CLAIM, "dict_claims", wanted, before, limit)]  # type: ignore[misc]

    async def _listed(
        self, columns: str, table: str, wanted: dict[str, str], before: tuple[datetime, str] | None, limit: int
    ) -> Rows:
        tests = [f"{name} = ?" for name, value in wanted.items() if value]
        values: list[Any] = [value for value in wanted.values() if value]
        if before is not None:
            tests.append("(created_at < ? OR created_at = ? AND id < ?)")
            values += [before[0], before[0], before[1]]
        where = f" WHERE {' AND '.join(tests)}" if tests else ""
        sql = f"SELECT {columns} FROM {table}{where} ORDER BY created_at DESC, id DESC LIMIT {int(limit)}"  # noqa: S608
        return await self._run(sql, *values)

    async def outcomes(self, table: Literal["dict_entries", "dict_claims"], ids: Sequence[str]) -> list[Outcome]:
        """Those of the last requests of these rows, as far as they are known."""
        found: list[Outcome] = []
        for place in range(0, len(ids), _MOST):
            some = ids[place : place + _MOST]
            marks = ", ".join("?" * len(some))
            sql = f"SELECT outcome FROM {table} WHERE outcome <> '' AND id IN ({marks})"  # noqa: S608
            found += [json.decode(row["outcome"], type=Outcome) for row in await self._run(sql, *some)]
        return found

    async def polled_until(self, name: str) -> datetime | None:
        """How far the changes of a list are known."""
        rows = await self._run("SELECT until FROM dict_polls WHERE name = ?", name)
        if not rows:
            return None
        return _moment(rows[0]["until"])

    async def set_polled_until(self, name: str, until: datetime) -> None:
        """Keep it."""
        sql = "INSERT INTO dict_polls VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET until = EXCLUDED.until"
        await self._run(sql, name, until)


class ReplicaTables(KeyTables):
    """Of a replica, where nothing can be written: its tables come from the primary."""

    async def prepare(self) -> None:
        """Nothing is missing."""


def _text(value: Struct | None) -> str:
    return "" if value is None else json.encode(value).decode()


def _now() -> datetime:
    return as_datetime(SystemClock().now())


def _moment(value: datetime | str | None) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def _common(row: dict[str, Any]) -> dict[str, Any]:
    outcome = row.pop("outcome")
    row["outcome"] = json.decode(outcome, type=Outcome) if outcome else None
    row["created_at"] = _moment(row["created_at"])
    return row


def _entry(rows: Rows) -> EntryRow | None:
    if not rows:
        return None
    row = _common(rows[0])
    return EntryRow(entry=json.decode(row.pop("document"), type=Entry), **row)


def _claim(rows: Rows) -> ClaimRow | None:
    if not rows:
        return None
    row = _common(rows[0])
    document = row.pop("document")
    claim = json.decode(document, type=Claim) if document else None
    row["expires_at"] = _moment(row["expires_at"])
    return ClaimRow(key=row.pop("key_value"), claim=claim, **row)
