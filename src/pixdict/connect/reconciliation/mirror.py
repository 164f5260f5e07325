"""The directory's identifiers as its events tell them: a copy that grows with each walk, and how far it goes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pixdict.connect.database import SmallTables
from pixdict.dict.cids import EMPTY_VSYNC, vsync_of
from pixdict.dict.keys import KeyType
from pixdict.dict.messages import CidSetEvent

_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS dict_cids (
        key_type TEXT NOT NULL,
        cid TEXT NOT NULL,
        is_there INTEGER NOT NULL,
        at {time} NOT NULL,
        PRIMARY KEY (key_type, cid)
    )""",
    "CREATE TABLE IF NOT EXISTS dict_cid_walks (key_type TEXT PRIMARY KEY, until {time} NOT NULL)",
)
BEGINNING = datetime(2020, 1, 1, tzinfo=UTC)
"""Before the first event of any directory."""
_PAGE = 5_000
_KEPT = timedelta(days=2)
"""For how long it is known when an identifier was removed."""


class Mirror(SmallTables):
    """Reads and writes it. Each statement may be repeated. Methods raise DatabaseTimeout."""

    schema = _SCHEMA

    async def until(self, key_type: str) -> datetime | None:
        """The time of the newest event that is known."""
        rows = await self._run("SELECT until FROM dict_cid_walks WHERE key_type = ?", key_type)
        return as_time(rows[0]["until"]) if rows else None

    async def apply(self, key_type: str, events: Sequence[CidSetEvent]) -> None:
        """Take over events, in their order. Those that are known already change nothing."""
        if not events:
            return
        last = {event.cid: event for event in events}
        values: list[Any] = []
        for event in last.values():
            values += [key_type, event.cid, int(event.type == "ADDED"), event.timestamp]
        await self._run(
            f"INSERT INTO dict_cids (key_type, cid, is_there, at) VALUES {', '.join(['(?, ?, ?, ?)'] * len(last))}"  # noqa: S608
            " ON CONFLICT (key_type, cid) DO UPDATE SET is_there = EXCLUDED.is_there, at = EXCLUDED.at"
            " WHERE EXCLUDED.at >= dict_cids.at",
            *values,
        )
        await self._run(
            "INSERT INTO dict_cid_walks (key_type, until) VALUES (?, ?) ON CONFLICT (key_type)"
            " DO UPDATE SET until = EXCLUDED.until WHERE EXCLUDED.until > dict_cid_walks.until",
            key_type,
            max(event.timestamp for event in events),
        )

    async def correct(self, key_type: str, cid: str, *, is_there: bool) -> None:
        """What the directory says of one identifier, whatever its events say."""
        sql = (
            "INSERT INTO dict_cids (key_type, cid, is_there, at) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (key_type, cid) DO UPDATE SET is_there = EXCLUDED.is_there"
        )
        await self._run(sql, key_type, cid, int(is_there), BEGINNING)

    async def clear(self, key_type: str) -> None:
        """The next walk begins with the first event."""
        name = KeyType(key_type).value
        await self._run("SELECT 1 AS one")  # the tables are there
        await self._database.script(
            [f"DELETE FROM {table} WHERE key_type = '{name}'" for table in ("dict_cids", "dict_cid_walks")]  # noqa: S608
        )

    async def prune(self, key_type: str) -> None:
        """Drop identifiers that were removed long ago."""
        if (until := await self.until(key_type)) is not None:
            sql = "DELETE FROM dict_cids WHERE key_type = ? AND is_there = 0 AND at < ?"
            await self._run(sql, key_type, until - _KEPT)

    async def verifier(self, key_type: str) -> str:
        """Of all identifiers that are there."""
        found, after = EMPTY_VSYNC, ""
        while cids := [cid for cid, _ in await self.page(key_type, after, _PAGE)]:
            found, after = vsync_of([found, *cids]), cids[-1]
        return found

    async def page(self, key_type: str, after: str, most: int) -> list[tuple[str, datetime]]:
        """Identifiers that are there, in their order, each with the time of its event."""
        sql = "SELECT cid, at FROM dict_cids WHERE key_type = ? AND is_there = 1 AND cid > ? ORDER BY cid LIMIT ?"
        return [(row["cid"], as_time(row["at"])) for row in await self._run(sql, key_type, after, most)]

    async def changed_at(self, key_type: str, cid: str) -> datetime | None:
        """The time of the last event of one identifier."""
        rows = await self._run("SELECT at FROM dict_cids WHERE key_type = ? AND cid = ?", key_type, cid)
        return as_time(rows[0]["at"]) if rows else None


def as_time(found: Any) -> datetime:
    """SQLite has times as texts."""
    return found if isinstance(found, datetime) else datetime.fromisoformat(found)
