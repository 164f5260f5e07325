"""The pages "Keys" and "Claims" of the dashboard: our rows, each with the timeline of the run that carries it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batuta import Batuta
from batuta.server import Page, Table
from pixdict.connect.keys.models import ClaimRow, EntryRow
from pixdict.connect.keys.tables import KeyTables

SHOWN = 100


def keys_page(tables: KeyTables) -> Page:
    """For `dashboard(client, pages=[keys_page(tables)])`."""

    async def read(_: Batuta) -> Sequence[Table]:
        rows = await tables.entries(limit=SHOWN)
        columns = ["Key", "Type", "Status", "Since", "Run", "Request", "Ended", "CID", "Problem"]
        return [_table("Keys", columns, [_entry_cells(row) for row in rows], "POST /api/v1/keys makes one.")]

    return Page("Keys", "/keys", read)


def claims_page(tables: KeyTables) -> Page:
    """For `dashboard(client, pages=[claims_page(tables)])`."""

    async def read(_: Batuta) -> Sequence[Table]:
        rows = await tables.claims(limit=SHOWN)
        columns = ["Key", "Kind", "Our side", "Status", "Since", "Until", "Run", "Claimer", "Donor", "Problem"]
        note = "POST /api/v1/claims opens one; those of other institutions are found once a minute."
        return [_table("Claims", columns, [_claim_cells(row) for row in rows], note)]

    return Page("Claims", "/claims", read)


def _table(title: str, columns: list[str], rows: list[list[Any]], empty: str) -> Table:
    note = f"newest first, at most {SHOWN}; the run of a row leads to its timeline" if rows else empty
    return Table(title=title, columns=columns, rows=rows, note=note)


def _entry_cells(row: EntryRow) -> list[Any]:
    """The last request for an entry is a run of that name. Rows that reconciliation added have none."""
    run = {"run": row.request} if row.request else None
    request = row.request.partition("-")[0] or None
    ended = None if not row.request else "under way" if row.outcome is None else str(row.outcome.how)
    entry = row.entry
    return [
        entry.key or None,
        entry.key_type,
        row.status,
        row.created_at,
        run,
        request,
        ended,
        row.cid[:12] or None,
        row.problem or None,
    ]


def _claim_cells(row: ClaimRow) -> list[Any]:
    claim = row.claim
    return [
        row.key,
        None if claim is None else claim.type,
        row.side,
        row.status,
        row.created_at,
        row.expires_at,
        {"run": row.run},
        None if claim is None else claim.claimer_account.participant,
        row.donor or None,
        row.problem or None,
    ]
