"""Requests at once, repeated, and at bad times: each is carried out once, and what is refused changes nothing."""

import asyncio

import pytest

import batuta
from batuta.server.http import connections
from tests.pixdict.core import kit
from tests.pixdict.core.kit import account as json_account
from tests.pixdict.core.kit import claim, eventually, key, settings
from tests.pixdict.directory.kit import PHONE, B, account

OTHER = "+5511900000001"


async def test_of_two_requests_with_one_key_at_once_one_is_carried_out(stand, url, tmp_path):
    async with stand(url, tmp_path) as s:
        bodies = [key(value, idempotency_key="k") for value in (PHONE, OTHER) for _ in range(5)]
        said = await asyncio.gather(*(s.create(body) for body in bodies))
        made = [one for one in said if one.status == 201]
        conflicts = [one for one in said if one.status == 409]
        assert (len(made), len(conflicts)) == (5, 5), said
        assert len({one.body["entry_id"] for one in made}) == 1
        assert {one.body["error"] for one in conflicts} == {"Idempotency key conflict"}
        assert s.asked() == [201]


async def test_an_idempotency_key_is_free_again_when_its_answer_is_not_kept_any_more(stand, sqlite_url, tmp_path):
    async with stand(sqlite_url, tmp_path, settings=settings(keep=0.2)) as s:
        first = await s.create(key(), Idempotency_Key="k")

        async def free():
            said = await s.create(key(OTHER), Idempotency_Key="k")
            return said.status == 201 and said

        second = await eventually(free)
        assert second.body["entry_id"] != first.body["entry_id"]
        rows = await s.tables.entries()
        assert {(row.entry.key, row.status) for row in rows} == {(PHONE, "ACTIVE"), (OTHER, "ACTIVE")}


async def test_a_row_without_its_kept_answer_is_taken_for_the_same_request_alone(stand, sqlite_url, tmp_path):
    async def answers_are_lost():
        for one in await requests.list_requests("", 10):
            await requests.clear_request(one.key)

    async with stand(sqlite_url, tmp_path) as s:
        requests = s.client.namespace.requests
        first = await s.create(key(), Idempotency_Key="k")
        await answers_are_lost()
        other = await s.create(key(OTHER), Idempotency_Key="k")
        assert (other.status, other.body["error"]) == (409, "Idempotency key conflict")
        await answers_are_lost()
        again = await s.create(key(), Idempotency_Key="k")
        assert (again.status, again.body) == (201, first.body)
        assert s.asked() == [201]


async def test_one_key_of_two_callers_is_two_keys(stand, sqlite_url, tmp_path):
    async with stand(sqlite_url, tmp_path) as s:
        callers = [await s.client.api_keys.create(name, "operator") for name in ("one", "two")]
        bodies = [key(value, account=json_account(number=value[-2:])) for value in (PHONE, OTHER)]

        async def made(caller, body):
            async def answered():
                said = await s.create(body, Idempotency_Key="k", authorization=f"Bearer {caller.key}")
                return said.status == 201 and said  # for a moment the server does not know the keys

            return await eventually(answered)

        said = [await made(caller, body) for caller, body in zip(callers, bodies, strict=True)]
        assert len({one.body["entry_id"] for one in said}) == 2


async def test_claims_at_once_with_one_key_open_one_claim(stand, sqlite_url, tmp_path):
    async with stand(sqlite_url, tmp_path) as s:
        s.b.create(at=account(B))
        s.directory.faults.add("lost_answer", operation="createClaim")
        said = await asyncio.gather(*(s.claim(claim(), Idempotency_Key="k") for _ in range(6)))
        assert [one.status for one in said] == [201] * 6, said
        assert len({one.body["claim_id"] for one in said}) == 1
        assert s.asked("createClaim") == [201]
        calls = [one.operation for one in s.directory.service.seen if one.operation.endswith("Claims")]
        assert "listClaims" in calls, "before another attempt the directory is asked"


async def test_of_claims_at_once_for_one_key_without_idempotency_keys_one_is_opened(stand, url, tmp_path):
    async with stand(url, tmp_path) as s:
        s.b.create(at=account(B))
        said = await asyncio.gather(*(s.claim(claim()) for _ in range(4)))
        assert sorted(one.status for one in said) == [201, 409, 409, 409], said
        assert {one.body["code"] for one in said if one.status == 409} == {"claim_already_exists_for_key"}
        rows = (await s.ask("GET", "/api/v1/claims")).body["claims"]
        assert sorted(row["status"] for row in rows) == ["FAILED"] * 3 + ["OPEN"]
        [there] = s.b.ask("listClaims", Participant=B).message.claims
        assert there.status == "OPEN"


async def test_a_deletion_that_is_repeated_with_its_key_gets_the_same_answer(stand, sqlite_url, tmp_path):
    async with stand(sqlite_url, tmp_path) as s:
        id = (await s.create()).body["entry_id"]
        said = [await s.ask("DELETE", f"/api/v1/keys/{id}", Idempotency_Key="k") for _ in range(2)]
        assert [(one.status, one.body) for one in said] == [(200, {"entry_id": id, "status": "DELETED"})] * 2
        assert s.asked("deleteEntry") == [200]


async def test_changes_and_acts_whose_answers_were_not_kept_are_carried_out_once(url, tmp_path):
    """As when core is killed before it keeps them."""

    async def twice(method, path, body=None):
        said = []
        for _ in range(2):
            said.append(await s.ask(method, path, body, Idempotency_Key="k"))
            for one in await requests.list_requests("", 10):
                await requests.clear_request(one.key)
        assert [(one.status, one.body) for one in said] == [(200, said[0].body)] * 2, said
        return said[0].body["status"]

    async with kit.stand(url, tmp_path) as s:
        requests = s.client.namespace.requests
        id = (await s.create()).body["entry_id"]
        assert await twice("PATCH", f"/api/v1/keys/{id}", {"account": json_account(number="9")}) == "ACTIVE"
        assert await twice("PATCH", f"/api/v1/keys/{id}", {"account": json_account(number="8")}) == "ACTIVE"
        assert await twice("DELETE", f"/api/v1/keys/{id}") == "DELETED"
        assert (s.asked("updateEntry"), s.asked("deleteEntry")) == ([200, 200], [200])
        s.b.create(at=account(B))
        taken = (await s.claim(claim())).body["claim_id"]
        assert await twice("POST", f"/api/v1/claims/{taken}/cancel", {}) == "CANCELLED"
        assert s.asked("cancelClaim") == [200]


async def test_a_deletion_that_is_under_way_is_waited_for_by_its_repetition(sqlite_url, tmp_path):
    async with kit.stand(sqlite_url, tmp_path, settings=settings(wait=0.3)) as s:
        id = (await s.create()).body["entry_id"]

        async def is_active():
            row = await s.tables.entry(id)
            return row is not None and row.status == "ACTIVE"

        await eventually(is_active)  # on a busy machine that takes longer than the wait
        s.directory.faults.add("status", operation="deleteEntry", times=1, status=503)
        first = await s.ask("DELETE", f"/api/v1/keys/{id}", Idempotency_Key="k")
        for one in await s.client.namespace.requests.list_requests("", 10):
            await s.client.namespace.requests.clear_request(one.key)
        second = await s.ask("DELETE", f"/api/v1/keys/{id}", Idempotency_Key="k")
        assert {first.status, second.status} <= {200, 202}, (first, second)
        other = await s.ask("DELETE", f"/api/v1/keys/{id}", Idempotency_Key="other")
        assert other.status == 409, "another request"


async def test_a_change_is_made_again_with_a_key_whose_day_is_over(stand, sqlite_url, tmp_path):
    async with stand(sqlite_url, tmp_path, settings=settings(keep=0.1)) as s:
        id = (await s.create()).body["entry_id"]
        body = {"account": json_account(number="9")}

        async def again():
            said = await s.ask("PATCH", f"/api/v1/keys/{id}", body, Idempotency_Key="k")
            assert said.status == 200, said
            return s.asked("updateEntry") == [200, 200]

        await eventually(again)


async def test_two_changes_of_an_entry_at_once_do_not_mix(stand, sqlite_url, tmp_path):
    async with stand(sqlite_url, tmp_path) as s:
        id = (await s.create()).body["entry_id"]
        changes = [{"account": json_account(number=str(number))} for number in range(1, 5)]
        said = await asyncio.gather(*(s.ask("PATCH", f"/api/v1/keys/{id}", change) for change in changes))
        assert {one.status for one in said} <= {200, 409}
        assert {one.body["code"] for one in said if one.status == 409} <= {"entry_busy"}
        shown = (await s.ask("GET", f"/api/v1/keys/{id}")).body["account_number"]
        assert s.b.look_up(PHONE).message.entry.account.account_number == shown


@pytest.mark.parametrize("bridge", [{"open_for": 60.0, "failures": 1}])
async def test_while_the_breaker_is_open_no_write_changes_anything(stand, sqlite_url, tmp_path, bridge):
    async with stand(sqlite_url, tmp_path, bridge=bridge, settings=settings(wait=0.2)) as s:
        id = (await s.create()).body["entry_id"]
        s.directory.faults.add("status", operation="createEntry", times=None, status=503)
        assert (await s.create(key(OTHER))).status == 202

        async def is_open():
            return await s.breaker() == "open"

        await eventually(is_open)
        before, writes = (await s.ask("GET", "/api/v1/keys")).body, s.writes()
        said = [
            await s.create(key("+5511900000002")),
            await s.ask("PATCH", f"/api/v1/keys/{id}", {"account": json_account(number="9")}),
            await s.ask("DELETE", f"/api/v1/keys/{id}"),
            await s.claim(claim(value=OTHER)),
        ]
        assert [(one.status, one.body["error"]) for one in said] == [(503, "Circuit Open")] * 4
        assert all(0 < int(one.headers["retry-after"]) <= 60 for one in said)
        assert (await s.ask("GET", "/api/v1/keys")).body == before
        assert (await s.ask("GET", "/api/v1/claims")).body["claims"] == []
        assert s.writes() == writes


async def test_a_client_that_sends_its_headers_for_ever_is_cut_off(stand, sqlite_url, tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "SLOWEST_HEADERS", 0.2)
    async with stand(sqlite_url, tmp_path, worker=False) as s:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(s.url.rpartition(":")[2]))
        writer.write(b"GET /api/v1/keys HTTP/1.1\r\nHo")
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()


async def test_a_key_of_another_namespace_finds_no_keys_and_claims(stand, url, tmp_path):
    async with stand(url, tmp_path) as s:
        made = (await s.create(key())).body["entry_id"]
        async with batuta.connect(url, namespace="other") as other:
            theirs = (await other.api_keys.create("eve", "admin")).key
        for path in ("keys", f"keys/{PHONE}", "claims"):
            refused = await s.ask("GET", f"/api/v1/{path}", authorization=f"Bearer {theirs}")
            assert (refused.status, made in str(refused.body)) == (403, False), path
