"""What reconciliations found and did, for audits."""

from __future__ import annotations

import msgspec

from pixdict.connect.database import SmallTables
from pixdict.connect.reconciliation.models import Change, Report

_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS dict_reconciliations (
        run_id TEXT NOT NULL,
        key_type TEXT NOT NULL,
        outcome TEXT NOT NULL,
        entries BIGINT NOT NULL,
        verifier TEXT NOT NULL,
        rounds INTEGER NOT NULL,
        repaired BIGINT NOT NULL,
        young BIGINT NOT NULL,
        left_over BIGINT NOT NULL,
        detail TEXT NOT NULL,
        ended_at {time} NOT NULL,
        PRIMARY KEY (run_id, key_type)
    )""",
    "CREATE INDEX IF NOT EXISTS dict_reconciliations_by_time ON dict_reconciliations (ended_at)",
    """CREATE TABLE IF NOT EXISTS dict_reconciliation_changes (
        run_id TEXT NOT NULL,
        key_type TEXT NOT NULL,
        cid TEXT NOT NULL,
        action TEXT NOT NULL,
        entry_id TEXT NOT NULL,
        before TEXT NOT NULL,
        at {time} NOT NULL,
        PRIMARY KEY (run_id, cid, entry_id)
    )""",
    "CREATE INDEX IF NOT EXISTS dict_reconciliation_changes_by_time ON dict_reconciliation_changes (at)",
)
_REPORT = ", ".join(Report.__struct_fields__)
_CHANGE = ", ".join(Change.__struct_fields__)


class Audit(SmallTables):
    """Reads and writes it. Each statement may be repeated. Methods raise DatabaseTimeout."""

    schema = _SCHEMA

    async def note(self, change: Change) -> None:
        """Before a row of ours is changed, so that a crash cannot hide it."""
        await self._run(
            f"INSERT INTO dict_reconciliation_changes ({_CHANGE}) VALUES (?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
            " ON CONFLICT (run_id, cid, entry_id) DO NOTHING",
            *(getattr(change, name) for name in Change.__struct_fields__),
        )

    async def withdraw(self, change: Change) -> None:
        """The row was left as it is."""
        sql = "DELETE FROM dict_reconciliation_changes WHERE run_id = ? AND cid = ? AND entry_id = ?"
        await self._run(sql, change.run_id, change.cid, change.entry_id)

    async def repaired(self, run_id: str, key_type: str) -> dict[str, int]:
        """How many rows were changed, by action."""
        rows = await self._run(
            "SELECT action, count(*) AS count FROM dict_reconciliation_changes WHERE run_id = ? AND key_type = ?"
            " GROUP BY action ORDER BY action",
            run_id,
            key_type,
        )
        return {row["action"]: row["count"] for row in rows}

    async def close(self, report: Report) -> None:
        """How it ended."""
        marks = ", ".join("?" * len(Report.__struct_fields__))
        await self._run(
            f"INSERT INTO dict_reconciliations ({_REPORT}) VALUES ({marks})"  # noqa: S608
            " ON CONFLICT (run_id, key_type) DO NOTHING",
            *(getattr(report, name) for name in Report.__struct_fields__),
        )

    async def reports(self, *, most: int = 50) -> list[Report]:
        """Newest first."""
        sql = f"SELECT {_REPORT} FROM dict_reconciliations ORDER BY ended_at DESC, key_type LIMIT ?"  # noqa: S608
        return msgspec.convert(await self._run(sql, most), list[Report])

    async def last(self, key_type: str, *outcomes: str) -> Report | None:
        """The newest one with one of these outcomes."""
        marks = ", ".join("?" * len(outcomes))
        sql = (
            f"SELECT {_REPORT} FROM dict_reconciliations WHERE key_type = ? AND outcome IN ({marks})"  # noqa: S608
            " ORDER BY ended_at DESC LIMIT 1"
        )
        rows = await self._run(sql, key_type, *outcomes)
        return msgspec.convert(rows[0], Report) if rows else None

    async def changes(self, *, most: int = 50) -> list[Change]:
        """Newest first."""
        sql = f"SELECT {_CHANGE} FROM dict_reconciliation_changes ORDER BY at DESC, cid LIMIT ?"  # noqa: S608
        return msgspec.convert(await self._run(sql, most), list[Change])
