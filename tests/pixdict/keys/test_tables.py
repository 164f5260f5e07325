"""The tables of keys and claims, on SQLite and PostgreSQL."""

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from pixdict.connect.database import open_database
from pixdict.connect.keys import KeyTables
from pixdict.connect.keys.models import ClaimRow, EntryRow
from pixdict.connect.keys.tables import _SCHEMA as SCHEMA
from pixdict.errors import ConstraintViolation
from tests.pixdict.directory.kit import PHONE, account
from tests.pixdict.keys.kit import new_entry

ENTRY = new_entry().entry
ROW = EntryRow(id="e-1", status="PENDING", request_id="r-1", entry=ENTRY)
CLAIM = ClaimRow(id="c-1", side="CLAIMER", status="PENDING", key=PHONE)


def without_time(row):
    assert row.created_at.tzinfo is not None
    return replace(row, created_at=None)


@pytest.fixture(params=["sqlite", "postgres"])
async def tables(request, tmp_path):
    sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/pixdict.db" if sqlite else request.getfixturevalue("empty_postgres_url")
    database = await open_database(url)
    yield KeyTables(database)
    await database.close()


async def test_an_entry_is_added_once_and_changed_as_often_as_it_is_told(tables):
    assert await tables.entry("e-1") is None
    for row in (ROW, replace(ROW, status="OTHER")):
        await tables.insert_entry(row)
    assert without_time(await tables.entry("e-1")) == ROW
    assert await tables.active_entry(PHONE) is None
    moved = replace(ENTRY, account=account(number="9"))
    for _ in range(2):
        await tables.store_entry("e-1", moved, "c" * 64)
    assert without_time(await tables.active_entry(PHONE)) == replace(ROW, status="ACTIVE", entry=moved, cid="c" * 64)
    await tables.set_entry_status("e-1", "FAILED", "why")
    found = await tables.entry("e-1")
    assert (found.status, found.problem) == ("FAILED", "why")


async def test_a_claim_is_found_by_our_id_and_by_that_of_the_directory(tables):
    for row in (CLAIM, replace(CLAIM, status="OTHER")):
        await tables.insert_claim(row)
    assert without_time(await tables.claim("c-1")) == CLAIM
    await tables.set_claim("c-1", "OPEN", "d-1")
    expected = replace(CLAIM, status="OPEN", directory_id="d-1")
    assert without_time(await tables.claim_of("d-1", "CLAIMER")) == expected
    assert await tables.claim_of("d-1", "DONOR") is None
    assert await tables.claim("c-2") is None


async def test_claims_that_several_requests_had_before_the_rule_are_left_with_one(tables):
    time = "TIMESTAMPTZ" if tables._database.partitions else "TEXT"
    await tables._database.script([one.format(time=time) for one in SCHEMA if "UNIQUE" not in one])
    day = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        ("first", "CLAIMER", "OPEN", "d-1"),
        ("second", "CLAIMER", "OPEN", "d-1"),
        ("waits", "CLAIMER", "OPEN", "d-2"),
        ("ended", "CLAIMER", "COMPLETED", "d-2"),
        ("not-opened", "CLAIMER", "FAILED", ""),
        ("nor-this", "CLAIMER", "PENDING", ""),
        ("donor-d-1", "DONOR", "OPEN", "d-1"),
    ]
    for number, (id, side, status, claim) in enumerate(rows):
        moment = day + timedelta(hours=number)
        await tables._database.run(
            "INSERT INTO dict_claims VALUES (?, ?, ?, 'k', ?, '', '', '', NULL, '', '', ?, ?)",
            *(id, side, status, claim, moment, moment),
        )
    found = {row.id: (row.status, row.directory_id, row.problem) for row in await tables.claims()}
    taken = "ClaimAlreadyExistsForKey: {} is the claim of another request"
    assert found == {id: (status, claim, "") for id, _, status, claim in rows} | {
        "second": ("FAILED", "", taken.format("d-1")),
        "waits": ("FAILED", "", taken.format("d-2")),
    }
    with pytest.raises(ConstraintViolation):
        await tables.set_claim("second", "OPEN", "d-1")


async def test_how_far_a_list_is_known_is_kept(tables):
    assert await tables.polled_until("claims") is None
    for day in (2, 3):
        until = datetime(2026, 1, day, 3, 4, 5, 678_000, tzinfo=UTC)
        await tables.set_polled_until("claims", until)
        assert await tables.polled_until("claims") == until
