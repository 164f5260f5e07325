"""What core answers from Redis: own entries and claims, keys of others, and nothing for longer than it may."""

import logging
from datetime import timedelta

import pytest

from batuta.cache import RedisCache
from pixdict.caches.lookups import hash_of
from pixdict.redaction import REDACTOR
from tests.cache.conftest import PATIENT
from tests.pixdict.core import kit
from tests.pixdict.core.kit import account as json_account
from tests.pixdict.core.kit import claim, eventually, key, person
from tests.pixdict.directory.kit import PHONE, B, account
from tests.pixdict.directory.kit import person as owner_of

PAYMENT = "payer_id=11122233300&end_to_end_id=E12345678202611181200abcdefghijk"
COMPANY = "12345678000195"


async def keys_of(s):
    """The names of all keys, and their values."""
    backend = await RedisCache.connect(s.redis, PATIENT)
    names = [name.decode() async for name in backend._client.scan_iter()]
    await backend.close()
    return sorted(names)


# covers C-02
async def test_an_entry_is_written_through_read_without_the_table_and_dropped_with_its_status(
    stand, sqlite_url, tmp_path
):
    async with stand(sqlite_url, tmp_path) as s:
        id = (await s.create()).body["entry_id"]
        names = await keys_of(s)
        assert f"dict:entry:id:{id}" in names
        assert [name for name in names if name.startswith("dict:entry:key:PHONE:")]
        first = await s.ask("GET", f"/api/v1/keys/{id}")
        await s.tables.run("UPDATE dict_entries SET status = 'FAILED' WHERE id = ?", id)  # behind its back
        for path in (id, PHONE):
            assert (await s.ask("GET", f"/api/v1/keys/{path}")).body == first.body
        await s.tables.run("UPDATE dict_entries SET status = 'ACTIVE' WHERE id = ?", id)
        await s.ask("PATCH", f"/api/v1/keys/{id}", {"account": json_account(number="9")})
        assert (await s.ask("GET", f"/api/v1/keys/{PHONE}")).body["account_number"] == "9"
        await s.ask("DELETE", f"/api/v1/keys/{id}")
        assert not [name for name in await keys_of(s) if name.startswith("dict:entry:")]
        assert (await s.ask("GET", f"/api/v1/keys/{id}")).body["status"] == "DELETED"


async def test_an_entry_that_is_under_way_is_not_kept(stand, sqlite_url, tmp_path):
    async with stand(sqlite_url, tmp_path, bridge={"failures": 50}) as s:
        s.directory.faults.add("status", operation="createEntry", times=3, status=503)
        made = await s.create()
        assert made.status == 502
        [row] = (await s.ask("GET", "/api/v1/keys")).body["keys"]
        assert (await s.ask("GET", f"/api/v1/keys/{row['id']}")).body["status"] == "PENDING"
        assert not [name for name in await keys_of(s) if name.startswith("dict:entry:")]


# covers C-03, C-04
async def test_a_claim_and_the_state_of_its_run_are_kept_until_it_ends(stand, sqlite_url, tmp_path):
    async with stand(sqlite_url, tmp_path) as s:
        s.b.create(at=account(B))
        id = (await s.claim(claim())).body["claim_id"]
        first = await s.ask("GET", f"/api/v1/claims/{id}")
        assert first.body["status"] == "OPEN"
        assert {f"dict:claim:id:{id}", f"dict:claim:status:{id}"} <= {*await keys_of(s)}

        async def known():
            return [name for name in await keys_of(s) if name.startswith("workflow:claim:")]

        assert {name.rpartition(":")[2] for name in await eventually(known)} <= {"status", "metadata"}
        await s.tables.run("UPDATE dict_claims SET status = 'FAILED' WHERE id = ?", id)
        assert (await s.ask("GET", f"/api/v1/claims/{id}")).body == first.body
        await s.tables.run("UPDATE dict_claims SET status = 'OPEN' WHERE id = ?", id)
        assert (await s.ask("POST", f"/api/v1/claims/{id}/cancel", {})).status == 200
        assert (await s.ask("GET", f"/api/v1/claims/{id}")).body["status"] == "CANCELLED"
        assert not [name for name in await keys_of(s) if name.startswith("dict:claim:")]


async def test_a_claim_of_ours_shows_its_entry_alone_and_in_the_list(stand, url, tmp_path):
    async with stand(url, tmp_path, period=timedelta(seconds=1)) as s:
        id = (await s.create()).body["entry_id"]
        s.b.claim("PORTABILITY")

        async def found():
            return (await s.ask("GET", "/api/v1/claims?side=DONOR")).body["claims"]

        [listed] = await eventually(found)
        shown = await s.ask("GET", f"/api/v1/claims/{listed['id']}")
        assert (listed["entry_id"], shown.body["entry_id"]) == (id, id)


async def test_what_is_too_long_for_the_cache_is_looked_up_without_it(stand, sqlite_url, tmp_path):
    async with stand(sqlite_url, tmp_path) as s:
        assert (await s.ask("GET", f"/api/v1/claims/{'x' * 600}")).status == 404
        assert [(await s.create(Idempotency_Key="%" * 200)).status for _ in range(2)] == [201, 201]
        assert s.asked() == [201]


# covers C-11
async def test_a_company_is_answered_from_the_cache_while_the_bridge_is_away_and_a_person_is_not(
    stand, sqlite_url, tmp_path
):
    async with stand(sqlite_url, tmp_path) as s:
        s.b.create(owner=owner_of(COMPANY, "Padaria Ltda"), at=account(B))
        s.b.create("joao@example.com", "EMAIL", at=account(B, number="8"))
        first = await s.ask("GET", f"/api/v1/lookups/{PHONE}?{PAYMENT}")
        assert first.status == 200, first
        assert "x-data-source" not in first.headers
        assert (first.body["account"]["participant"], first.body["owner"]["tax_id_number"]) == (B, COMPANY)
        assert (await s.ask("GET", f"/api/v1/lookups/joao@example.com?{PAYMENT}")).status == 200
        names = await keys_of(s)
        assert [name for name in names if "lookup" in name] == [f"dict:lookup:key:{hash_of(PHONE)}"]
        assert not [name for name in names if PHONE[1:] in name]
        s.directory.faults.add("status", operation="getEntry", times=9, status=503)
        cached = await s.ask("GET", f"/api/v1/lookups/{PHONE}?{PAYMENT}")
        assert (cached.status, cached.body) == (200, first.body)
        assert (cached.headers["x-data-source"], cached.headers["age"].isdigit()) == ("cache", True)
        away = await s.ask("GET", f"/api/v1/lookups/joao@example.com?{PAYMENT}")
        assert (away.status, away.body["error"]) == (502, "Bad Gateway")
        assert s.asked("getEntry") == [200, 200, 503]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        (f"nobody?{PAYMENT}", 400, "refused"),
        (f"{PHONE}?payer_id=1&end_to_end_id=E1", 400, "invalid_input"),
        (f"{PHONE}?payer_id=11122233300&end_to_end_id=E-1", 400, "invalid_input"),
        (f"{PHONE}?payer_id=11122233300", 400, "invalid_input"),
        (f"{PHONE}?{PAYMENT}&more=1", 400, "invalid_input"),
        (f"%2B5599?{PAYMENT}", 404, "not_found"),
    ],
)
async def test_a_look_up_that_is_wrong_is_refused(stand, sqlite_url, tmp_path, path, status, code):
    async with stand(sqlite_url, tmp_path) as s:
        said = await s.ask("GET", f"/api/v1/lookups/{path}")
        assert (said.status, said.body["code"]) == (status, code), said


# covers C-11
async def test_without_redis_everything_goes_on(sqlite_url, tmp_path):
    async with kit.stand(sqlite_url, tmp_path, redis="redis://127.0.0.1:1/0") as s:
        id = (await s.create(Idempotency_Key="k")).body["entry_id"]
        assert (await s.create(Idempotency_Key="k")).headers["idempotency-replayed"] == "true"
        assert (await s.ask("GET", f"/api/v1/keys/{PHONE}")).body["id"] == id
        assert (await s.ask("DELETE", f"/api/v1/keys/{id}")).status == 200


async def test_personal_data_is_not_in_the_logs(stand, sqlite_url, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    async with stand(sqlite_url, tmp_path, bridge={"failures": 50}) as s:
        s.b.create("+5511900000001", at=account(B))
        s.directory.faults.add("status", operation="createEntry", times=3, status=503)
        assert [(await s.create(one)).status for one in (key(), key("+5511900000001"))] == [502, 409]
        await s.ask("GET", f"/api/v1/lookups/%2B5511900000001?{PAYMENT}")
        await s.claim(claim(value="+5511900000001"))
        shown = [REDACTOR.text(line) for line in caplog.messages]
    assert len(shown) > 10
    for secret in (PHONE, PHONE[1:], "5511900000001", "0007654321", "João Silva", "11122233300"):
        assert not [line for line in shown if secret in line], secret


@pytest.mark.parametrize("field", ["key_value", "account_number", "name"])
def test_the_fields_of_keys_and_accounts_are_hidden(field):
    assert REDACTOR.value({field: "what it says"}) == {field: f"[{field}]"}
    assert REDACTOR.value({"owner": person()})["owner"]["name"] == "[name]"
