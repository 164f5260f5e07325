"""Our own entries as a reconciliation reads and repairs them."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from msgspec import Struct, json

from batuta.clock import Clock, SystemClock, as_datetime
from pixdict.connect.keys.models import EntryRow, EntryStatus
from pixdict.connect.keys.tables import KeyTables
from pixdict.connect.reconciliation.mirror import as_time
from pixdict.connect.reconciliation.models import Snapshot
from pixdict.dict.cids import EMPTY_VSYNC, cid_of, vsync_of
from pixdict.dict.entries import Entry

_PAGE = 500
_ROW = "id, status, cid, key_value, updated_at"


class Held(Struct, frozen=True, kw_only=True):
    """One of our rows."""

    id: str
    status: str
    cid: str
    key: str
    updated_at: datetime


class HeldEntries:
    """Rows that changed after a time that is given are left as they are. Methods raise DatabaseTimeout."""

    def __init__(self, tables: KeyTables, clock: Clock | None = None) -> None:
        self._tables, self._clock = tables, clock or SystemClock()

    def now(self) -> datetime:
        """By the clock of the tables."""
        return as_datetime(self._clock.now())

    async def snapshot(self, key_type: str) -> Snapshot:
        """The verifier of our active entries. Each identifier is made anew from its entry."""
        taken_at, entries, verifier, after = self.now(), 0, EMPTY_VSYNC, ""
        sql = (
            "SELECT id, request_id, cid, document FROM dict_entries"
            " WHERE key_type = ? AND status = 'ACTIVE' AND id > ? ORDER BY id LIMIT ?"
        )
        while rows := await self._tables.run(sql, key_type, after, _PAGE):
            verifier = vsync_of([verifier, *[await self._identified(row) for row in rows]])
            entries, after = entries + len(rows), rows[-1]["id"]
        return Snapshot(taken_at=taken_at, entries=entries, verifier=verifier)

    async def _identified(self, row: dict[str, Any]) -> str:
        """The identifier of a row; a stored one that does not fit its entry is replaced."""
        try:
            request_id = UUID(row["request_id"])
        except ValueError:  # of a row that others wrote
            return str(row["cid"])
        cid = cid_of(json.decode(row["document"], type=Entry), request_id)
        if cid != row["cid"]:
            sql = "UPDATE dict_entries SET cid = ? WHERE id = ? AND cid = ? AND document = ?"
            await self._tables.run(sql, cid, row["id"], row["cid"], row["document"])
        return cid

    async def page(self, key_type: str, after: str, most: int) -> list[tuple[str, datetime]]:
        """Identifiers of active entries, in their order, each with the time of its last change."""
        rows = await self._tables.run(
            "SELECT cid, updated_at FROM dict_entries WHERE key_type = ? AND status = 'ACTIVE' AND cid > ?"
            " ORDER BY cid LIMIT ?",
            key_type,
            after,
            most,
        )
        return [(row["cid"], as_time(row["updated_at"])) for row in rows]

    async def of_request(self, request_id: UUID) -> Held | None:
        """The row that was made with that request id."""
        sql = f"SELECT {_ROW} FROM dict_entries WHERE request_id = ?"  # noqa: S608
        return next(iter(await self._rows(sql, str(request_id))), None)

    async def active(self, key_type: str, *, cid: str = "", key: str = "") -> list[Held]:
        """The active rows with that identifier, or that key."""
        column, value = ("cid", cid) if cid else ("key_value", key)
        sql = f"SELECT {_ROW} FROM dict_entries WHERE key_type = ? AND {column} = ? AND status = 'ACTIVE'"  # noqa: S608
        return await self._rows(sql, key_type, value)

    async def _rows(self, sql: str, *values: Any) -> list[Held]:
        return [
            Held(key=row.pop("key_value"), updated_at=as_time(row.pop("updated_at")), **row)
            for row in await self._tables.run(sql, *values)
        ]

    async def add(self, id: str, entry: Entry, request_id: UUID, cid: str) -> None:
        """An entry that the directory has and we have not."""
        row = EntryRow(id=id, status=EntryStatus.ACTIVE, request_id=str(request_id), entry=entry, cid=cid)
        await self._tables.insert_entry(row)

    async def restore(self, held: Held, entry: Entry, cid: str, unchanged_since: datetime) -> bool:
        """Make a row active, with what the directory has. Returns False when it changed lately."""
        rows = await self._tables.run(
            "UPDATE dict_entries SET status = ?, key_value = ?, cid = ?, problem = '', document = ?, updated_at = ?"
            " WHERE id = ? AND updated_at <= ? RETURNING id",
            *(str(EntryStatus.ACTIVE), entry.key or "", cid, json.encode(entry).decode(), self.now(), held.id),
            unchanged_since,
        )
        return await self._is_changed(rows)

    async def retire(self, held: Held, status: str, unchanged_since: datetime) -> bool:
        """A row that the directory has not any more. Returns False when it changed lately."""
        rows = await self._tables.run(
            "UPDATE dict_entries SET status = ?, problem = ?, updated_at = ?"
            " WHERE id = ? AND status = 'ACTIVE' AND cid = ? AND updated_at <= ? RETURNING id",
            *(status, "the directory has no such entry", self.now(), held.id, held.cid, unchanged_since),
        )
        return await self._is_changed(rows)

    async def _is_changed(self, rows: list[dict[str, Any]]) -> bool:
        for row in rows:
            await self._tables.entry_changed(row["id"])
        return bool(rows)

    async def ending_of(self, held: Held) -> EntryStatus:
        """TRANSFERRED when a claim took the key; DELETED otherwise."""
        rows = await self._tables.run(
            "SELECT id FROM dict_claims WHERE key_value = ? AND side = 'DONOR'"
            " AND (status IN ('OPEN', 'WAITING_RESOLUTION', 'CONFIRMED') OR status = 'COMPLETED' AND updated_at >= ?)",
            held.key,
            held.updated_at,
        )
        return EntryStatus.TRANSFERRED if rows else EntryStatus.DELETED
