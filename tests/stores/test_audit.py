"""What somebody changes in the audit log with SQL is found, in both databases."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from batuta import Batuta
from batuta.engine.native import NativeBackend
from batuta.journal.acts import Recorded, chained
from batuta.journal.store import Store
from tests.stores.postgres.raw import connection


@pytest.fixture
async def client(store: Store) -> Batuta:
    """With a log of five rows."""
    client = Batuta(NativeBackend(store, actor="ada"), store.open, store.close)
    for number in range(5):
        await client.pause_queue(f"q{number}", "why")
    return client


async def by_hand(url: str, *statements: str) -> None:
    """As somebody who may write to the database, and knows how to get rid of a trigger."""
    if url.startswith("sqlite"):
        file = sqlite3.connect(Path(url.removeprefix("sqlite:///")))
        with file:
            file.execute("DROP TRIGGER IF EXISTS audit_stays")
            file.execute("DROP TRIGGER IF EXISTS audit_is_kept")
            for statement in statements:
                file.execute(statement)
        file.close()
        return
    async with connection(url) as raw:
        await raw.execute("SET search_path = batuta")
        await raw.execute("ALTER TABLE audit DISABLE TRIGGER audit_stays")
        for statement in statements:
            await raw.execute(statement)


async def problem(client: Batuta, expected: str | None = None) -> str:
    return (await client.verify_audit(expected)).problem


async def test_a_sound_log_is_sound(client: Batuta) -> None:
    report = await client.verify_audit()
    assert (report.rows, report.problem) == (5, "")
    await client.resume_queue("q1")
    assert await problem(client, report.head) == ""


@pytest.mark.parametrize("column", ["at", "actor", "verb", "target", "run_id", "reason", "detail", "before", "after"])
async def test_a_value_that_was_changed_is_found(client: Batuta, url: str, column: str) -> None:
    value = "at + 1" if column == "at" else f"{column} || 'x'"
    await by_hand(url, f"UPDATE audit SET {column} = {value} WHERE number = 3")
    assert await problem(client) == "row 3 is not as it was written"


async def test_a_row_that_was_removed_is_found(client: Batuta, url: str) -> None:
    await by_hand(url, "DELETE FROM audit WHERE number = 2")
    assert await problem(client) == "row 2 is missing"


async def test_rows_that_were_removed_at_the_end_are_found(client: Batuta, url: str) -> None:
    await by_hand(url, "DELETE FROM audit WHERE number > 3")
    assert await problem(client) == "row 4 is missing, and all after it: there were 5"


async def test_a_last_row_that_was_written_anew_is_found(client: Batuta, store: Store, url: str) -> None:
    rows = await store.audit()
    rows[-1].actor = "bob"
    _chain_anew(store.namespace, rows)
    await by_hand(url, f"UPDATE audit SET actor = 'bob', hash = '{rows[-1].hash}' WHERE number = 5")
    assert await problem(client) == "row 5 is another one than where the log ends: its last rows were written anew"


async def test_a_row_that_was_put_in_is_found(client: Batuta, url: str) -> None:
    columns = "namespace, at, actor, verb, target, run_id, reason, detail, before, after, hash"
    await by_hand(
        url,
        f"INSERT INTO audit (number, {columns}) SELECT 6, {columns} FROM audit WHERE number = 5",
    )
    assert await problem(client) == "row 6 is not as it was written"


async def test_rows_that_changed_places_are_found(client: Batuta, url: str) -> None:
    swap = [f"UPDATE audit SET number = {new} WHERE number = {old}" for old, new in ((2, 99), (3, 2), (99, 3))]
    await by_hand(url, *swap)
    assert await problem(client) == "row 2 is not as it was written"


async def test_a_log_that_was_emptied_is_found(client: Batuta, url: str) -> None:
    await by_hand(url, "DELETE FROM audit")
    assert await problem(client) == "row 1 is missing, and all after it: there were 5"


async def test_a_log_that_was_written_anew_is_found_by_who_kept_its_end(client: Batuta, store: Store, url: str) -> None:
    head = (await client.verify_audit()).head
    rows = await store.audit()
    rows[1].actor = "bob"
    _chain_anew(store.namespace, rows)
    await by_hand(
        url,
        *(f"UPDATE audit SET actor = '{row.actor}', hash = '{row.hash}' WHERE number = {row.number}" for row in rows),
        f"UPDATE audit_heads SET hash = '{rows[-1].hash}'",
    )
    assert await problem(client) == ""
    assert await problem(client, head) == (
        "row 5 is another one than when its hash was taken down: the log was written anew"
    )


def _chain_anew(namespace: str, rows: list[Recorded]) -> None:
    previous = ""
    for row in rows:
        row.hash = previous = chained(namespace, previous, row)


async def test_the_database_itself_refuses_changes(client: Batuta, url: str) -> None:
    for statement in ("UPDATE audit SET actor = 'bob'", "DELETE FROM audit"):
        with pytest.raises(Exception, match="only added to"):
            await _plainly(url, statement)
    assert await problem(client) == ""


async def _plainly(url: str, statement: str) -> None:
    if url.startswith("sqlite"):
        file = sqlite3.connect(Path(url.removeprefix("sqlite:///")))
        try:
            file.execute(statement)
        finally:
            file.close()
        return
    async with connection(url) as raw:
        await raw.execute("SET search_path = batuta")
        await raw.execute(statement)
