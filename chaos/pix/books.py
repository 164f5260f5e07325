"""What our tables, the directory's file, the customers and the store say in the end."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

from msgspec import Struct

from batuta.connect import store_for
from batuta.verify import verify
from chaos.pix.customers import Book
from chaos.pix.parts import ISPB
from chaos.report import Tally
from pixdict.connect.database import open_database
from pixdict.connect.keys import WORKFLOWS
from pixdict.dict.cids import EMPTY_VSYNC, vsync_of

Rows = Mapping[str, list[dict[str, Any]]]


async def rows_of(store: str) -> Rows:
    """Our own tables."""
    database = await open_database(store)
    try:
        return {name: await database.run(f"SELECT * FROM dict_{name}") for name in ("entries", "claims")}
    finally:
        await database.close()


class Books(Struct, frozen=True):
    """Our tables and the directory's file."""

    ours: Rows
    entries: dict[str, str]
    """Keys of ours that the directory has, with their identifiers."""
    added: list[str]
    """Identifiers of ours that it ever added."""
    claims: list[tuple[str, str, str]]
    """Ids, keys, and statuses."""

    @classmethod
    def read(cls, ours: Rows, directory: Path) -> Books:
        with closing(sqlite3.connect(directory)) as found:
            entries = found.execute("SELECT key, cid FROM entries WHERE participant = ?", (ISPB,)).fetchall()
            added = found.execute("SELECT cid FROM cid_events WHERE participant = ? AND type = 'ADDED'", (ISPB,))
            claims = found.execute("SELECT id, key, status FROM claims").fetchall()
            return cls(ours, dict(entries), [cid for (cid,) in added], [(str(UUID(id)), *rest) for id, *rest in claims])


def compare(books: Books, told: Book, tally: Tally, *, creations: int, claimed: int) -> None:
    """One entry and one identifier for each request; what customers were told, our tables and the directory agree."""
    ours = [row for row in books.ours["entries"] if row["status"] == "ACTIVE"]
    claims = [row for row in books.ours["claims"] if row["status"] == "OPEN"]
    checks: dict[str, tuple[object, object]] = {
        "statuses of our entries": (_statuses(books.ours["entries"]), {"ACTIVE": creations}),
        "statuses of our claims": (_statuses(books.ours["claims"]), {"OPEN": claimed} if claimed else {}),
        "entries by key": ({row["key_value"]: row["cid"] for row in ours}, books.entries),
        "identifiers that were ever added": (sorted(books.added), sorted(row["cid"] for row in ours)),
        "claims": (
            sorted((row["directory_id"], row["key_value"], "OPEN") for row in claims),
            sorted(books.claims),
        ),
        "verifier": (vsync_of([EMPTY_VSYNC, *books.added]), vsync_of([EMPTY_VSYNC, *books.entries.values()])),
    }
    for what, (found, wanted) in checks.items():
        if found != wanted:
            tally.violate(what, f"{str(found)[:300]} instead of {str(wanted)[:300]}")
    tally.lost += max(0, creations - len(books.entries)) + max(0, claimed - len(books.claims))
    tally.twice += max(0, len(books.added) - creations) + max(0, len(books.claims) - claimed)
    ids = {f"keys-{int(row['key_value'][-8:])}": row["id"] for row in ours}
    ids |= {f"claims-{int(row['key_value'][-8:])}": row["id"] for row in claims}
    for name, answers in told.ids.items():
        if answers != {ids.get(name)}:
            tally.violate(name, f"was answered with {answers}, and is {ids.get(name)}")


def _statuses(rows: list[dict[str, Any]]) -> dict[str, int]:
    return dict(Counter(row["status"] for row in rows))


async def verify_store(store: str, tally: Tally) -> None:
    """What the store says of itself; every run is replayed."""
    opened = store_for(store)
    await opened.open()
    try:
        report = await verify(opened, WORKFLOWS)
    finally:
        await opened.close()
    if report.violations:
        tally.unverified += 1
        tally.violate("verify", str(report.violations[:3]))
    else:
        tally.verified += 1
