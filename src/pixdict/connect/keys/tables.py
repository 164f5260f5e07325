"""The tables of keys and claims. Each statement may be repeated: an activity that is tried again does no harm."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import json

from batuta.clock import SystemClock, as_datetime
from pixdict.connect.database import Database
from pixdict.connect.keys.models import ClaimRow, EntryRow, EntryStatus
from pixdict.dict.entries import Entry

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
        updated_at {time} NOT NULL
    )""",
    "CREATE INDEX IF NOT EXISTS dict_entries_by_key ON dict_entries (key_value)",
    "CREATE INDEX IF NOT EXISTS dict_entries_by_cid ON dict_entries (key_type, cid)",
    "CREATE INDEX IF NOT EXISTS dict_entries_by_request_id ON dict_entries (request_id)",
    """CREATE TABLE IF NOT EXISTS dict_claims (
        id TEXT PRIMARY KEY,
        side TEXT NOT NULL,
        status TEXT NOT NULL,
        key_value TEXT NOT NULL,
        directory_id TEXT NOT NULL,
        problem TEXT NOT NULL,
        updated_at {time} NOT NULL
    )""",
    "CREATE INDEX IF NOT EXISTS dict_claims_by_directory_id ON dict_claims (directory_id)",
    """CREATE TABLE IF NOT EXISTS dict_polls (name TEXT PRIMARY KEY, until {time} NOT NULL)""",
)
_ENTRY = "id, status, request_id, cid, problem, document"
_CLAIM = "id, side, status, key_value, directory_id, problem"


class KeyTables:
    """Reads and writes them. Methods raise DatabaseTimeout, ConstraintViolation, InvalidArgument."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._is_ready = False

    async def _run(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        if not self._is_ready:
            time = "TIMESTAMPTZ" if self._database.partitions else "TEXT"
            await self._database.script([one.format(time=time) for one in _SCHEMA])
            self._is_ready = True
        return await self._database.run(statement, *values)

    async def run(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        """One statement of those who compare the tables with the directory."""
        return await self._run(statement, *values)

    async def insert_entry(self, row: EntryRow) -> None:
        """Add an entry; one of that id stays as it is."""
        entry = row.entry
        await self._run(
            "INSERT INTO dict_entries (id, status, key_type, key_value, request_id, cid, problem, document, updated_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
            *(row.id, row.status, entry.key_type, entry.key or "", row.request_id, row.cid, row.problem),
            _text(entry),
            _now(),
        )

    async def store_entry(self, id: str, entry: Entry, cid: str) -> None:
        """An entry as the directory has it: it is active."""
        await self._run(
            "UPDATE dict_entries SET status = ?, key_value = ?, cid = ?, problem = '', document = ?, updated_at = ?"
            " WHERE id = ?",
            *(str(EntryStatus.ACTIVE), entry.key or "", cid, _text(entry), _now(), id),
        )

    async def set_entry_status(self, id: str, status: str, problem: str = "") -> None:
        """Another status, and why."""
        sql = "UPDATE dict_entries SET status = ?, problem = ?, updated_at = ? WHERE id = ?"
        await self._run(sql, status, problem, _now(), id)

    async def entry(self, id: str) -> EntryRow | None:
        """One entry."""
        return _entry(await self._run(f"SELECT {_ENTRY} FROM dict_entries WHERE id = ?", id))  # noqa: S608

    async def active_entry(self, key: str) -> EntryRow | None:
        """The active entry of a key."""
        sql = f"SELECT {_ENTRY} FROM dict_entries WHERE key_value = ? AND status = 'ACTIVE'"  # noqa: S608
        return _entry(await self._run(sql, key))

    async def insert_claim(self, row: ClaimRow) -> None:
        """Add a claim; one of that id stays as it is."""
        await self._run(
            f"INSERT INTO dict_claims ({_CLAIM}, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
            " ON CONFLICT (id) DO NOTHING",
            *(row.id, row.side, row.status, row.key, row.directory_id, row.problem, _now()),
        )

    async def set_claim(self, id: str, status: str, directory_id: str, problem: str = "") -> None:
        """How a claim is now."""
        sql = "UPDATE dict_claims SET status = ?, directory_id = ?, problem = ?, updated_at = ? WHERE id = ?"
        await self._run(sql, status, directory_id, problem, _now(), id)

    async def claim(self, id: str) -> ClaimRow | None:
        """One claim."""
        return _claim(await self._run(f"SELECT {_CLAIM} FROM dict_claims WHERE id = ?", id))  # noqa: S608

    async def claim_of(self, directory_id: str, side: str) -> ClaimRow | None:
        """Our claim of a claim of the directory."""
        sql = f"SELECT {_CLAIM} FROM dict_claims WHERE directory_id = ? AND side = ?"  # noqa: S608
        return _claim(await self._run(sql, directory_id, side))

    async def polled_until(self, name: str) -> datetime | None:
        """How far the changes of a list are known."""
        rows = await self._run("SELECT until FROM dict_polls WHERE name = ?", name)
        if not rows:
            return None
        found = rows[0]["until"]
        return found if isinstance(found, datetime) else datetime.fromisoformat(found)

    async def set_polled_until(self, name: str, until: datetime) -> None:
        """Keep it."""
        sql = "INSERT INTO dict_polls VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET until = EXCLUDED.until"
        await self._run(sql, name, until)


def _text(entry: Entry) -> str:
    return json.encode(entry).decode()


def _now() -> datetime:
    return as_datetime(SystemClock().now())


def _entry(rows: list[dict[str, Any]]) -> EntryRow | None:
    if not rows:
        return None
    row = rows[0]
    return EntryRow(entry=json.decode(row.pop("document"), type=Entry), **row)


def _claim(rows: list[dict[str, Any]]) -> ClaimRow | None:
    return ClaimRow(key=rows[0].pop("key_value"), **rows[0]) if rows else None
