"""Reconciliation over gRPC and HTTP against the simulator, with our tables on SQLite and PostgreSQL."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from batuta.clock import SECOND
from batuta.server import dashboard
from pixdict.connect.keys import QUEUE as KEYS
from pixdict.connect.keys import EntryChange, NewEntry, create_entry, delete_entry, keys_worker, update_entry
from pixdict.connect.keys.models import ClaimRow
from pixdict.connect.reconciliation import Options, reconciliation_page, reconciliation_worker
from pixdict.dict.keys import KeyType
from tests.long import LONG
from tests.pixdict.directory.kit import CPF, EMAIL, A, account, person
from tests.pixdict.reconciliation.kit import AT_ONCE, Stand, entry, stand
from tests.server.web import Web

AGREED = "dict_reconciliation_agreed_timestamp_seconds"


@pytest.fixture(params=["sqlite", "postgres"])
async def s(request: Any, tmp_path: Path) -> AsyncIterator[Stand]:
    sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/pixdict.db" if sqlite else request.getfixturevalue("empty_postgres_url")
    async with stand(tmp_path, url) as made:
        yield made


def outcomes(reports: Any) -> set[str]:
    return {one.outcome for one in reports.values()}


async def test_what_agrees_is_verified_and_no_events_are_read(s: Stand) -> None:
    for number in range(3):
        await s.both(f"e-{number}", entry(number))
    await s.both("mail", replace(entry(8), key=EMAIL, key_type="EMAIL"))
    await s.both("cpf", replace(entry(9), key=CPF, key_type="CPF"))
    reports = await s.reconcile()
    assert list(reports) == [str(one) for one in KeyType]
    assert outcomes(reports) == {"AGREES"}
    assert (reports["PHONE"].entries, reports["EMAIL"].entries, reports["EVP"].entries) == (3, 1, 0)
    assert s.bank.tokens("CIDS_EVENTS_LIST") == 100, "none was used"
    assert await s.changes() == []
    assert len(await s.audit.reports()) == 5


async def test_an_entry_that_is_missing_here_is_added(s: Stand) -> None:
    await s.both("e-0", entry(0))
    stored = s.there(entry(1))
    report = (await s.reconcile())["PHONE"]
    assert (report.outcome, report.repaired, report.rounds) == ("AGREES", 1, 1)
    row = await s.row(str(stored.request_id))
    assert (row.status, row.cid, row.entry, row.request_id) == (
        "ACTIVE", stored.cid, entry(1), str(stored.request_id),
    )  # fmt: skip
    assert await s.changes() == [("ADDED", row.id, "")]
    assert await s.agree()
    assert s.sample("dict_reconciliation_repairs_total", key_type="PHONE", action="ADDED") == 1


@pytest.mark.parametrize("status", ["PENDING", "FAILED", "DELETING", "DELETED", "TRANSFERRED"])
async def test_an_entry_that_is_not_active_here_becomes_active(s: Stand, status: str) -> None:
    stored = s.there(entry(1))
    await s.here("e-1", entry(1), stored.request_id, status=status, cid="")
    report = (await s.reconcile())["PHONE"]
    assert (report.outcome, report.repaired) == ("AGREES", 1)
    row = await s.row("e-1")
    assert (row.status, row.cid, row.problem) == ("ACTIVE", stored.cid, "")
    assert await s.changes() == [("RESTORED", "e-1", status)]


async def test_a_random_key_whose_answer_was_lost_gets_its_value(s: Stand) -> None:
    evp = replace(entry(1), key=str(uuid4()), key_type="EVP")
    stored = s.there(evp)
    await s.here("e-1", replace(evp, key=None), stored.request_id, status="PENDING", cid="")
    assert (await s.reconcile())["EVP"].outcome == "AGREES"
    assert (await s.row("e-1")).entry.key == evp.key
    assert await s.tables.active_entry(evp.key or "") is not None


async def test_an_entry_that_is_gone_there_is_deleted_or_was_transferred(s: Stand) -> None:
    for number in range(5):
        await s.here(f"e-{number}", entry(number))
    for number, status in ((1, "COMPLETED"), (2, "WAITING_RESOLUTION"), (3, "CANCELLED")):
        key = entry(number).key or ""
        await s.tables.insert_claim(ClaimRow(id=f"c-{number}", side="DONOR", status=status, key=key))
    key = entry(4).key or ""
    await s.tables.insert_claim(ClaimRow(id="c-4", side="CLAIMER", status="CONFIRMED", key=key))
    report = (await s.reconcile())["PHONE"]
    assert (report.outcome, report.repaired) == ("AGREES", 5)
    rows = [await s.row(f"e-{number}") for number in range(5)]
    assert [one.status for one in rows] == ["DELETED", "TRANSFERRED", "TRANSFERRED", "DELETED", "DELETED"]
    assert {one.problem for one in rows} == {"the directory has no such entry"}


async def test_an_entry_that_was_changed_there_is_changed_here(s: Stand) -> None:
    stored = await s.both("e-1", entry(1))
    moved = replace(entry(1), account=account(number="9"), owner=person(name="João da Silva"))
    changed = s.there(moved, stored.request_id)
    report = (await s.reconcile())["PHONE"]
    assert (report.outcome, report.repaired) == ("AGREES", 1)
    row = await s.row("e-1")
    assert (row.entry, row.cid, row.status) == (moved, changed.cid, "ACTIVE")
    assert await s.changes() == [("CHANGED", "e-1", "ACTIVE")]


async def test_an_entry_that_was_changed_here_alone_is_changed_back(s: Stand) -> None:
    """The identifier that is stored with it is right: ours are made anew from the entry."""
    stored = s.there(entry(1))
    await s.here("e-1", replace(entry(1), account=account(number="9")), stored.request_id, cid=stored.cid)
    report = (await s.reconcile())["PHONE"]
    assert (report.outcome, report.repaired) == ("AGREES", 1)
    assert (await s.row("e-1")).entry == entry(1)


async def test_a_key_that_was_registered_anew_replaces_ours(s: Stand) -> None:
    await s.here("e-1", entry(1))
    stored = s.there(entry(1))
    report = (await s.reconcile())["PHONE"]
    assert (report.outcome, report.repaired) == ("AGREES", 2)
    assert await s.changes() == [("ADDED", str(stored.request_id), ""), ("DELETED", "e-1", "ACTIVE")]
    found = await s.tables.active_entry(entry(1).key or "")
    assert found is not None
    assert found.id == str(stored.request_id)


async def test_both_sides_miss_something_at_once(s: Stand) -> None:
    await s.both("e-0", entry(0))
    await s.here("e-1", entry(1))
    s.there(entry(2))
    stored = await s.both("e-3", entry(3))
    s.there(replace(entry(3), account=account(number="77")), stored.request_id)
    reports = await s.reconcile()
    assert outcomes(reports) == {"AGREES"}
    assert reports["PHONE"].repaired == 3
    assert await s.agree()
    again = await s.reconcile()
    assert (outcomes(again), again["PHONE"].repaired, again["PHONE"].rounds) == ({"AGREES"}, 0, 0)


async def test_thousands_of_events_are_read_page_by_page_and_only_once(
    s: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    many, now = (12_000 if LONG else 3_000), s.directory.now() - 6 * 3_600 * SECOND
    with s.storage.transaction():
        made = [s.there(entry(number), now=now + number // 3 * SECOND) for number in range(many)]
        for number in range(0, many, 2):
            s.storage.remove_entry(made[number], now + (many + number // 14) * SECOND)
    for stored in made[1::2][: many // 4]:
        await s.here(str(stored.request_id), entry_of(stored), stored.request_id)
    pages = 0
    list_events = s.speaks.list_cid_events

    async def counted(*args: Any, **options: Any) -> Any:
        nonlocal pages
        pages += 1
        return await list_events(*args, **options)

    monkeypatch.setattr(s.speaks, "list_cid_events", counted)
    report = (await s.reconcile())["PHONE"]
    assert (report.outcome, report.repaired) == ("AGREES", many // 4)
    assert await s.agree()
    assert many * 1.5 / 200 <= pages <= many * 1.5 / 200 + 7, "those of the other types have a page each"
    first, pages = pages, 0
    s.there(entry(many))
    assert (await s.reconcile())["PHONE"].repaired == 1
    assert pages < first / 2, "from a minute before the newest that is known"


def entry_of(stored: Any) -> Any:
    shown = stored.entry
    return replace(entry(0), key=shown.key, account=shown.account, owner=shown.owner)


async def test_an_entry_that_changed_lately_is_left_alone_and_is_no_alert(s: Stand) -> None:
    stored = s.there(entry(1))
    await s.here("e-1", entry(1), stored.request_id, status="PENDING", cid="")
    report = (await s.reconcile(Options(settle=600.0, pause=0.0)))["PHONE"]
    assert (report.outcome, report.repaired, report.young, report.left_over) == ("BUSY", 0, 1, 0)
    assert (await s.row("e-1")).status == "PENDING"
    assert s.alerts == []


async def test_a_difference_that_no_event_tells_of_is_an_alert(s: Stand) -> None:
    """More events of one moment than a page has: the rest cannot be read."""
    now = s.directory.now() - 60 * SECOND
    for number in range(201):
        s.there(entry(number), now=now)
    report = (await s.reconcile())["PHONE"]
    assert (report.outcome, report.repaired) == ("DIFFERS", 200)
    assert "do not add up" in report.detail
    async with asyncio.timeout(30):
        while not s.alerts:
            await asyncio.sleep(0.01)
    [alert] = s.alerts
    assert (alert.type, alert.key, alert.payload["action"]) == (
        "reconciliation.alert", "PHONE", "ActionReconciliationAlert",
    )  # fmt: skip
    assert alert.payload["data"]["outcome"] == "DIFFERS"
    assert s.sample("dict_reconciliation_differs", key_type="PHONE") == 1
    assert s.sample("dict_reconciliation_differs", key_type="EVP") == 0
    assert s.sample("dict_reconciliation_agreed_timestamp_seconds", key_type="PHONE") is None


@pytest.mark.parametrize("seed", range(10 if LONG else 3))
async def test_random_differences_converge(s: Stand, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(60):
        await _differ(s, chance, number)
    unbraked = replace(AT_ONCE, retire_share=1.0)
    reports = await s.reconcile(unbraked)
    assert outcomes(reports) == {"AGREES"}
    assert await s.agree()
    for number in range(60, 80):
        await _differ(s, chance, number)
    assert outcomes(await s.reconcile(unbraked)) == {"AGREES"}
    assert await s.agree()


async def _differ(s: Stand, chance: random.Random, number: int) -> None:
    """One key in one of the states that two sides may be in."""
    made, id = entry(number), f"e-{number}"
    if chance.random() < 0.3:
        made = replace(made, key=f"{number}@mail.com", key_type="EMAIL")
    match chance.randrange(7):
        case 0:
            await s.both(id, made)
        case 1:
            s.there(made)
        case 2:
            await s.here(id, made, status=chance.choice(["ACTIVE", "PENDING", "FAILED"]))
        case 3:
            stored = s.there(made)
            await s.here(id, made, stored.request_id, status=chance.choice(["PENDING", "FAILED"]), cid="")
        case 4:
            stored = await s.both(id, made)
            s.there(replace(made, account=account(number=f"9{number}")), stored.request_id)
        case 5:
            s.storage.remove_entry(await s.both(id, made), s.directory.now())
        case 6:
            s.storage.remove_entry(await s.both(id, made), s.directory.now())
            s.there(made)


async def test_what_an_earlier_worker_found_is_known_to_the_next(s: Stand) -> None:
    await s.both("e-1", entry(1))
    await s.reconcile()
    agreed = s.sample("dict_reconciliation_agreed_timestamp_seconds", key_type="PHONE")
    last = await s.audit.last("PHONE", "AGREES")
    assert last is not None
    assert agreed == last.ended_at.timestamp()
    assert s.storage.vsync(A, "PHONE") == last.verifier
    registry = CollectorRegistry()
    async with reconciliation_worker(s.client, s.speaks, s.tables, s.database, registry, grace=0.5):
        assert registry.get_sample_value(AGREED, {"key_type": "PHONE"}) == agreed


async def test_requests_that_come_while_it_runs_are_not_undone(s: Stand) -> None:
    """Keys are created, changed and deleted through the Bridge while reconciliations follow each other."""
    async with keys_worker(s.client, s.speaks, s.tables, participant=A, grace=0.5):
        numbers = range(24)
        creations = [NewEntry(id=f"e-{number}", entry=entry(number)) for number in numbers]
        busy = asyncio.ensure_future(_reconcile_again_and_again(s))
        await asyncio.gather(*(_finish(s, create_entry, one) for one in creations))
        await asyncio.gather(
            *(_finish(s, update_entry, f"e-{number}", moved(number)) for number in numbers if number % 3 == 1),
            *(_finish(s, delete_entry, f"e-{number}") for number in numbers if number % 3 == 2),
        )
        assert await busy <= {"AGREES", "BUSY"}
    expected = {f"e-{number}": "DELETED" if number % 3 == 2 else "ACTIVE" for number in numbers}
    assert {id: (await s.row(id)).status for id in expected} == expected
    assert await s.changes() == []
    assert outcomes(await s.reconcile()) == {"AGREES"}


def moved(number: int) -> EntryChange:
    return EntryChange(account=account(number=f"77{number}"))


async def _finish(s: Stand, workflow: Any, *arguments: Any) -> None:
    handle = await s.client.start(workflow, *arguments, queue=KEYS)
    await asyncio.wait_for(handle.result(), 60)


async def _reconcile_again_and_again(s: Stand) -> set[str]:
    found: set[str] = set()
    for _ in range(6):
        found |= outcomes(await s.reconcile(Options(settle=600.0, pause=0.05)))
    return found


async def test_the_page_shows_reports_and_repairs_and_starts_a_run(s: Stand) -> None:
    app = Starlette()
    app.mount("/", dashboard(s.client, pages=[reconciliation_page(s.audit)]))
    empty = (await Web(app).get("/api/v1/pages/reconciliation")).json
    assert [one["rows"] for one in empty["tables"]] == [[], []]
    s.there(entry(1), now=s.directory.now() - 3_600 * SECOND)
    token = (await Web(app).get("/api/v1/session")).json["csrf_token"]
    done = await Web(app).with_headers(x_csrf_token=token).post("/api/v1/pages/reconciliation/reconcile-now", {})
    assert done.status == 200, done.json
    async with asyncio.timeout(60):
        while len(await s.audit.reports()) < len(KeyType):
            await asyncio.sleep(0.02)
    reports, repairs = (await Web(app).get("/api/v1/pages/reconciliation")).json["tables"]
    assert {row[2] for row in reports["rows"]} == {"AGREES"}
    assert [row[2] for row in repairs["rows"]] == ["ADDED"]


async def test_the_page_shows_a_run_that_would_end_many_rows_and_a_person_may_allow_it(s: Stand) -> None:
    app = Starlette()
    app.mount("/", dashboard(s.client, pages=[reconciliation_page(s.audit, AT_ONCE)]))
    for number in range(11):
        await s.here(f"e-{number}", entry(number))
    report = (await s.reconcile())["PHONE"]
    assert (report.outcome, report.left_over) == ("DIFFERS", 11)
    assert s.sample("dict_reconciliation_differs", key_type="PHONE") == 1
    table, _ = (await Web(app).get("/api/v1/pages/reconciliation")).json["tables"]
    [shown] = [row for row in table["rows"] if row[1] == "PHONE"]
    assert shown[2:] == ["DIFFERS", 11, 0, 11, report.detail]
    token = (await Web(app).get("/api/v1/session")).json["csrf_token"]
    web, path = Web(app).with_headers(x_csrf_token=token), "/api/v1/pages/reconciliation/reconcile-many-rows-may-end"
    assert [(await web.post(path, body)).status for body in ({}, {"retire_share": 0}, {"retire_share": 2})] == [400] * 3
    assert (await web.post(path, {"retire_share": 0.9})).status == 200
    assert (await web.post(path, {"retire_share": 1})).status == 200
    async with asyncio.timeout(60):
        while await s.tables.run("SELECT id FROM dict_entries WHERE status = 'ACTIVE'"):
            await asyncio.sleep(0.02)
