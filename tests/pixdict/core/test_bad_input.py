"""Bad input over HTTP: the right problem, and nothing has changed."""

import asyncio
from datetime import timedelta
from itertools import count

import pytest

from batuta.errors import LimitReached
from pixdict.core import LIMITS, CoreSettings
from pixdict.dict.keys import KeyType
from tests.pixdict.core.kit import account, claim, eventually, key, person, settings, stand
from tests.pixdict.directory.kit import CPF, PHONE, A, B
from tests.pixdict.directory.kit import account as account_at
from tests.pixdict.test_keys import ACCEPTED, REFUSED


@pytest.fixture
async def s(sqlite_url, tmp_path):
    async with stand(sqlite_url, tmp_path) as made:
        yield made


async def nothing_changed(s):
    """No row, no request, no call."""
    assert (await s.ask("GET", "/api/v1/keys")).body == {"keys": [], "cursor": None}
    assert (await s.ask("GET", "/api/v1/claims")).body == {"claims": [], "cursor": None}
    assert {one.operation for one in s.directory.service.seen} <= {"listPolicies", "listClaims"}
    assert s.directory.storage.counts()["entries"] == 0


def owner_of(kind, value):
    if kind == "CPF":
        return person(value)
    return person(value, "Loja Ltda") if kind == "CNPJ" and value.isdecimal() else person()


@pytest.mark.parametrize("kind", ["PHONE", "EMAIL", "CPF", "CNPJ"])
async def test_keys_of_each_type_are_accepted(s, kind):
    values = ACCEPTED[kind].split()
    assert len(values) >= 10
    numbers = count(1)
    bodies = [
        key(value, kind, owner=owner_of(kind, value), account=account(number=str(next(numbers)))) for value in values
    ]
    said = await asyncio.gather(*(s.create(body) for body in bodies))
    for value, one in zip(values, said, strict=True):
        if one.status != 201:  # it went to the directory, which knows more than the pattern
            assert one.body["code"] in ("entry_tax_id_number_by_different_owner", "entry_already_exists"), (value, one)
            assert kind == "CNPJ"
    assert sum(one.status == 201 for one in said) >= (10 if kind != "CNPJ" else 7)


async def test_ten_random_keys_are_made_and_found_by_their_value(s):
    said = await asyncio.gather(*(s.create(key(None, "EVP", account=account(number=str(n)))) for n in range(1, 11)))
    assert [one.status for one in said] == [201] * 10
    for one in said:
        made = (await s.ask("GET", f"/api/v1/keys/{one.body['entry_id']}")).body
        assert (await s.ask("GET", f"/api/v1/keys/{made['key_value']}")).body == made


@pytest.mark.parametrize("kind", list(KeyType))
async def test_what_is_no_key_of_its_type_is_refused(s, kind):
    values = REFUSED[kind]
    assert len(values) >= 10
    for value in values:
        said = await s.create(key(value, kind))
        assert said.status == 400, (value, said)
        assert (said.body["code"], len(said.body["trace_id"])) == ("invalid_input", 32)
        assert said.body["violations"][0]["property"] == "entry.key"
    await nothing_changed(s)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (key(account=account(B)), 403, "participant_invalid"),
        (key(account=account("1234")), 400, "invalid_input"),
        (key(account=account(account_type="GOLD")), 400, "invalid_input"),
        (key(account=account(branch="12345")), 400, "invalid_input"),
        (key(account=account(opening_date="2010-01-10T03:00:00")), 400, "invalid_input"),
        (key(account=account(opening_date="0001-01-01T00:00:00+14:00")), 400, "invalid_input"),
        (key(account=account(opening_date="0999-12-31T23:59:59Z")), 400, "invalid_input"),
        (key(account=account(opening_date="9999-12-31T23:59:59-12:00")), 400, "invalid_input"),
        (key(owner=person("123")), 400, "invalid_input"),
        (key(owner=person(name="")), 400, "invalid_input"),
        (key(reason="BECAUSE"), 400, "invalid_input"),
        (key(key_type="IBAN"), 400, "invalid_input"),
        (key(more=1), 400, "invalid_input"),
        (key("550e8400-e29b-41d4-a716-446655440000", "EVP"), 400, "invalid_input"),
        (key(None), 400, "invalid_input"),
        (key(idempotency_key="é"), 400, "invalid_input"),
        (key(idempotency_key="x" * 201), 400, "invalid_input"),
        ([], 400, "invalid_input"),
        (b"{", 400, "invalid_input"),
        (b'{"key_type": "EVP", "key_type": "CPF"}', 400, "invalid_input"),
        (b"\xff", 400, "invalid_input"),
        (b"[" * 30_000, 400, "invalid_input"),
        (key(value="+" + "1" * 70_000), 413, "too_large"),
    ],
)
async def test_a_body_that_is_wrong_is_refused(s, body, status, code):
    said = await s.create(body)
    assert (said.status, said.body["code"]) == (status, code), said
    assert said.headers["content-type"] == "application/problem+json"
    assert said.body["trace_id"] == said.headers["x-trace-id"]
    await nothing_changed(s)


async def test_a_body_of_another_kind_is_refused(s):
    said = await s.ask("POST", "/api/v1/keys", b"<xml/>", content_type="application/xml")
    assert (said.status, said.body["code"]) == (415, "unsupported_media_type")
    twice = await s.create(key(idempotency_key="a"), Idempotency_Key="b")
    assert (twice.status, twice.body["code"]) == (400, "invalid_input")
    await nothing_changed(s)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (claim("PORTABILITY", "550e8400-e29b-41d4-a716-446655440000", "EVP"), 400),
        (claim("OWNERSHIP", "550e8400-e29b-41d4-a716-446655440000", "EVP"), 400),
        (claim("OWNERSHIP", CPF, "CPF"), 400),
        (claim("THEFT"), 400),
        (claim(value="nobody"), 400),
        (claim(account=account(B)), 403),
        (claim(account=account(opening_date="0001-01-01T00:00:00+14:00")), 400),
        (b"{", 400),
    ],
)
async def test_a_claim_that_is_wrong_is_refused(s, body, status):
    said = await s.claim(body)
    assert said.status == status, said
    await nothing_changed(s)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/v1/keys/00000000-0000-4000-8000-000000000000", 404),
        ("GET", "/api/v1/keys/%2B5500", 404),
        ("GET", "/api/v1/keys/nothing%0A", 404),
        ("PATCH", "/api/v1/keys/00000000-0000-4000-8000-000000000000", 404),
        ("DELETE", "/api/v1/keys/00000000-0000-4000-8000-000000000000", 404),
        ("DELETE", "/api/v1/keys/00000000-0000-4000-8000-000000000000?reason=BOREDOM", 400),
        ("GET", "/api/v1/keys?limit=0", 400),
        ("GET", "/api/v1/keys?limit=x", 400),
        ("GET", "/api/v1/keys?cursor=yesterday", 400),
        ("GET", "/api/v1/keys?cursor=0001-01-01T00:00:00%2B14:00%7Cx", 400),
        ("GET", "/api/v1/claims?cursor=9999-12-31T23:59:59-12:00%7Cx", 400),
        ("GET", "/api/v1/keys?status=GOOD", 400),
        ("GET", "/api/v1/claims?side=MINE", 400),
        ("GET", "/api/v1/claims/nothing", 404),
        ("POST", "/api/v1/claims/nothing/cancel", 404),
        ("POST", "/api/v1/claims/nothing/steal", 404),
        ("PUT", "/api/v1/keys", 405),
    ],
)
async def test_what_is_not_there_is_not_found(s, method, path, status):
    body = {"account": account()} if method == "PATCH" else {} if method == "POST" else None
    said = await s.ask(method, path, body)
    assert said.status == status, said
    await nothing_changed(s)


async def test_an_update_without_anything_to_change_is_refused(s):
    id = (await s.create()).body["entry_id"]
    for body in ({}, {"account": account(B)}, {"account": account(), "reason": "FRAUD"}, {"owner": person("1")}):
        said = await s.ask("PATCH", f"/api/v1/keys/{id}", body)
        assert said.status in (400, 403), said
    assert s.asked("updateEntry") == []


async def test_a_refusal_of_the_directory_is_told_and_the_entry_has_failed(s):
    s.b.create(owner=None, at=account_at(B))
    said = await s.create()
    assert (said.status, said.body["code"]) == (409, "entry_key_in_custody_of_different_participant"), said
    assert said.body["directory_problem"] == "EntryKeyInCustodyOfDifferentParticipant"
    [row] = (await s.ask("GET", "/api/v1/keys")).body["keys"]
    assert (row["status"], row["problem"].partition(":")[0]) == ("FAILED", said.body["directory_problem"])
    lost = await s.claim(claim("PORTABILITY", "+5599", "PHONE"))
    assert (lost.status, lost.body["code"]) == (404, "claim_key_not_found")


async def test_a_refusal_is_kept_for_its_key(s):
    s.b.create(owner=None, at=account_at(B))
    first, second = [await s.create(Idempotency_Key="k") for _ in range(2)]
    assert (first.status, second.status) == (409, 409)
    assert first.body == second.body
    assert second.headers["content-type"] == "application/problem+json"
    assert s.asked() == [201, 400], "by B, and once by us"


async def test_a_claim_that_has_ended_is_not_cancelled_again(s):
    s.b.create(at=account_at(B))
    made = await s.claim(claim())
    assert made.status == 201, made
    id = made.body["claim_id"]
    assert made.body == {"claim_id": id, "status": "OPEN"}
    read = await s.ask("GET", f"/api/v1/claims/{id}")
    assert (read.body["workflow_id"], read.body["owner_ispb"], read.body["claimer_ispb"]) == (f"claim-{id}", B, A)
    early = await s.ask("POST", f"/api/v1/claims/{id}/confirm", {})
    assert (early.status, early.body["code"]) == (409, "claim_operation_invalid")
    proof = await s.ask("POST", f"/api/v1/claims/{id}/prove-possession", {})
    assert proof.status == 409
    odd = await s.ask("POST", f"/api/v1/claims/{id}/cancel", {"reason": "BOREDOM"})
    assert odd.status == 400
    done = await s.ask("POST", f"/api/v1/claims/{id}/cancel", {})
    assert (done.status, done.body) == (200, {"claim_id": id, "status": "CANCELLED"})
    again = await s.ask("POST", f"/api/v1/claims/{id}/cancel", {})
    assert (again.status, again.body["code"]) == (409, "claim_operation_invalid")
    assert s.asked("cancelClaim") == [200]


async def test_a_cancellation_after_completion_is_refused(sqlite_url, tmp_path):
    async with stand(sqlite_url, tmp_path, period=timedelta(seconds=1)) as s:
        s.b.create(at=account_at(B))
        id = (await s.claim(claim())).body["claim_id"]
        external = (await s.ask("GET", f"/api/v1/claims/{id}")).body["external_id"]
        s.b.act("acknowledge", external)
        s.b.act("confirm", external, "USER_REQUESTED")

        async def completed():
            return (await s.ask("GET", f"/api/v1/claims/{id}")).body["status"] == "COMPLETED"

        await eventually(completed)
        late = await s.ask("POST", f"/api/v1/claims/{id}/cancel", {})
        assert (late.status, late.body["code"]) == (409, "claim_operation_invalid")
        assert s.asked("cancelClaim") == []
        assert s.b.look_up(PHONE).message.entry.account.participant == A


async def test_credentials_and_scopes_are_those_of_the_server(s):
    viewer, operator = [await s.client.api_keys.create(scope, scope) for scope in ("viewer", "operator")]
    await s.client.api_keys.create("first", "admin")

    async def refused():
        return (await s.create(key("nothing"))).status == 401

    await eventually(refused)  # for a moment the server takes it that there is no key
    assert (await s.create(authorization=f"Bearer {viewer.key}")).status == 403
    made = await s.create(authorization=f"Bearer {operator.key}")
    assert made.status == 201
    read = await s.ask("GET", "/api/v1/keys", authorization=f"Bearer {viewer.key}")
    assert len(read.body["keys"]) == 1
    described = (await s.ask("GET", "/openapi.json")).body["paths"]
    assert {"/api/v1/keys", "/api/v1/keys/{key}", "/api/v1/claims"} <= set(described)
    writes = [
        one
        for path, found in described.items()
        if path.startswith(("/api/v1/keys", "/api/v1/claims"))
        for method, one in found.items()
        if method != "get"
    ]
    assert len(writes) == 7
    for one in writes:
        assert "Idempotency-Key" in [parameter["name"] for parameter in one["parameters"]]
        assert "202" in one["responses"]


# covers C-06
async def test_requests_over_a_limit_are_refused_and_say_when_to_come_back(sqlite_url, tmp_path):
    limited = settings(limits={"CreateEntry": ["2/min"], "CreateClaim": ["1/min"], "GetEntry": ["3/min"]})
    async with stand(sqlite_url, tmp_path, settings=limited) as s:
        numbers = [f"+551190000000{digit}" for digit in range(4)]
        said = [await s.create(key(number)) for number in numbers]
        assert [one.status for one in said] == [201, 201, 429, 429]
        assert said[-1].body["code"] == "limit_reached"
        assert 0 < int(said[-1].headers["retry-after"]) <= 66
        reads = [await s.ask("GET", f"/api/v1/keys/{numbers[0]}") for _ in range(4)]
        assert [one.status for one in reads] == [200, 200, 200, 429]
        s.b.create("+5591", at=account_at(B))
        claims = [await s.claim(claim(value="+5591")) for _ in range(2)]
        assert [one.status for one in claims] == [201, 429]
        assert len((await s.ask("GET", "/api/v1/keys")).body["keys"]) == 2


async def test_the_limits_are_those_of_document_c(sqlite_url, tmp_path):
    assert CoreSettings(participant=A).limits == LIMITS
    async with stand(sqlite_url, tmp_path, settings=settings(limits=LIMITS, wait=0.0), worker=False) as s:
        for _ in range(47):
            await s.core.admit("CreateClaim")
        with pytest.raises(LimitReached, match="CreateClaim"):
            await asyncio.gather(*(s.core.admit("CreateClaim") for _ in range(4)))
