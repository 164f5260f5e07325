"""Once, again, not now: what surrounds a call to the directory."""

import asyncio
import time
from datetime import UTC, datetime
from urllib.parse import parse_qs
from uuid import uuid4

import pytest
from msgspec.structs import replace

from batuta import connect
from batuta.cache import Entity, open_cache
from batuta.clock import ManualClock
from batuta.errors import StoreUnavailable
from pixdict.bridge import BridgeSettings, Thresholds
from pixdict.bridge.answers import KEY as KEPT
from pixdict.bridge.answers import KeptAnswer
from pixdict.bridge.calls import Calls
from pixdict.bridge.directory import DirectoryClient, DirectoryRequest, DirectoryUnreachable
from pixdict.dict import messages, xml
from pixdict.dict.operations import OPERATIONS
from pixdict.dict.problems import DirectoryRefused
from pixdict.errors import BridgeError, BridgeUnavailable, InvalidArgument, NotFound, RateLimited
from tests.pixdict.bridge.kit import (
    CLAIM,
    CLAIMED,
    DROP,
    E2E,
    ENTRY,
    ENVELOPE,
    EXTENDED,
    ISPB,
    KEY,
    OTHER,
    REQUEST,
    SILENCE,
    WANTED,
    directory,
    policies,
    stand,
)

ENTRIES = "/api/v2/entries/"
CREATED = messages.CreateEntryResponse(entry=EXTENDED, **ENVELOPE)
POLICY = "/api/v2/policies/CLAIMS_READ"


def create(client, request_id=REQUEST, entry=ENTRY):
    return client.create_entry(entry, reason="USER_REQUESTED", request_id=request_id)


# -- once


# covers C-05
async def test_a_request_id_is_carried_out_once_and_its_answer_is_given_again():
    async with stand() as (fake, _, client, batuta):
        fake.on("POST", ENTRIES, CREATED)
        assert await asyncio.gather(*(create(client) for _ in range(20))) == [CREATED] * 20
        assert fake.times(ENTRIES) == 1
        kept = await batuta.idempotency.list(prefix="bridge:idempotency:")
        assert [one.key for one in kept.keys] == [f"bridge:idempotency:{REQUEST}"]
        await create(client, OTHER)
        assert fake.times(ENTRIES) == 2


async def test_the_same_request_id_with_another_request_is_refused():
    async with stand() as (fake, _, client, _):
        fake.on("POST", ENTRIES, CREATED)
        await create(client)
        with pytest.raises(InvalidArgument, match="RequestIdAlreadyUsed"):
            await create(client, entry=replace(ENTRY, key="+5511000000000"))
        with pytest.raises(InvalidArgument, match="RequestIdAlreadyUsed"):
            await client.delete_entry(KEY, reason="FRAUD", request_id=REQUEST)
        assert fake.times(ENTRIES) == 1


async def test_an_error_is_not_kept():
    async with stand() as (fake, _, client, _):
        fake.on("POST", ENTRIES, DirectoryRefused("EntryInvalid"), CREATED)
        with pytest.raises(InvalidArgument, match="EntryInvalid"):
            await create(client)
        assert await create(client) == CREATED


async def test_a_write_is_not_sent_while_the_store_is_away_and_a_read_is(monkeypatch):
    async def away(*_):
        raise StoreUnavailable("cannot reach PostgreSQL")

    async with stand() as (fake, _, client, batuta):
        fake.on("POST", ENTRIES, CREATED)
        monkeypatch.setattr(batuta.namespace.requests, "begin_request", away)
        with pytest.raises(BridgeUnavailable, match="store_unavailable: cannot reach PostgreSQL"):
            await create(client)
        assert len(await client.list_policies()) == 29
        assert fake.times(ENTRIES) == 0


async def test_answers_outlive_the_bridge(tmp_path):
    store = f"sqlite:///{tmp_path}/bridge.db"
    async with directory() as fake:
        fake.on("POST", ENTRIES, CREATED)
        for _ in range(2):
            async with stand(store=store, fake=fake) as (_, _, client, _):
                assert await create(client) == CREATED
        assert fake.times(ENTRIES) == 1


async def test_what_a_bridge_had_begun_when_it_died_is_carried_out_by_the_next(tmp_path):
    async def forgotten(*_):
        return True

    store = f"sqlite:///{tmp_path}/bridge.db"
    async with directory() as fake:
        fake.on("POST", ENTRIES, SILENCE, CREATED)
        async with stand(store=store, fake=fake, lock=0.6) as (_, _, client, batuta):
            asking = asyncio.create_task(create(client))
            async with asyncio.timeout(20):
                while not fake.times(ENTRIES):
                    await asyncio.sleep(0.01)
            batuta.namespace.requests.drop_request = forgotten  # a process that is killed drops nothing
            asking.cancel()
        async with stand(store=store, fake=fake, lock=0.6) as (_, _, client, _):
            assert await create(client) == CREATED
        assert fake.times(ENTRIES) == 2


async def test_a_cache_answers_first_and_the_store_when_it_is_empty():
    async with await open_cache("memory://") as cache, stand(cache=cache) as (fake, bridge, client, _):
        fake.on("POST", ENTRIES, CREATED)
        await create(client)
        done = bridge.calls.answers.counts.replayed
        assert await create(client) == CREATED
        assert bridge.calls.answers.counts.replayed == done
        with pytest.raises(InvalidArgument, match="RequestIdAlreadyUsed"):
            await create(client, entry=replace(ENTRY, key="+5511000000000"))
        await Entity(cache, KEPT, KeptAnswer, lifetime=1).delete(request_id=str(REQUEST))
        assert await create(client) == CREATED
        assert bridge.calls.answers.counts.replayed == done + 1
        assert fake.times(ENTRIES) == 1


# -- again


class Waits:
    """Notes how long each wait is, and does not wait."""

    def __init__(self):
        self.seconds = []

    async def __call__(self, seconds):
        self.seconds.append(seconds)


# covers D-01
@pytest.mark.parametrize(
    ("answers", "waits"),
    [
        ([DROP, DirectoryRefused("InternalServerError"), policies()], [1.0, 2.0]),
        ([DirectoryRefused("ResourceConflict"), policies()], [1.0]),
        ([DirectoryRefused("ServiceUnavailable", retry_after=7), policies()], [7.0]),
    ],
)
async def test_a_failure_that_may_pass_is_tried_three_times_with_one_and_two_seconds_between(answers, waits):
    waited = Waits()
    async with directory() as fake, connect("memory://") as batuta:
        fake.on("GET", "/api/v2/policies/", *answers)
        settings = BridgeSettings(directory=fake.url, participant=ISPB)
        async with DirectoryClient(settings) as http:
            calls = Calls(http, batuta, settings, sleep=waited)
            await calls.policies(calls.time_left(None))
            assert waited.seconds == waits
            assert len(fake.asked) == len(waits) + 1
            fake.on("GET", "/api/v2/policies/", DROP)
            with pytest.raises(DirectoryUnreachable):
                await calls.policies(calls.time_left(None))
            assert waited.seconds == [*waits, 1.0, 2.0]


async def test_no_attempt_takes_longer_than_its_timeout():
    began = time.monotonic()
    async with stand(timeout=0.05, attempts=2) as (fake, _, client, _):
        fake.on("GET", POLICY, "silence")
        with pytest.raises(BridgeUnavailable, match="no answer within"):
            await client.get_policy("CLAIMS_READ")
        assert fake.times(POLICY) == 2
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("name", ["BadRequest", "Forbidden", "NotFound", "Gone", "RateLimited"])
async def test_a_refusal_is_not_tried_again(name):
    async with stand() as (fake, _, client, _):
        fake.on("GET", POLICY, DirectoryRefused(name))
        with pytest.raises(Exception, match=name):
            await client.get_policy("CLAIMS_READ")
        assert fake.times(POLICY) == 1


async def test_a_write_is_repeated_with_the_same_request_id():
    async with stand() as (fake, _, client, _):
        fake.on("POST", ENTRIES, DROP, DirectoryRefused("InternalServerError"), CREATED)
        assert await create(client) == CREATED
        sent = [xml.from_bytes(messages.CreateEntryRequest, one.body) for one in fake.asked if one.path == ENTRIES]
        assert [one.request_id for one in sent] == [REQUEST] * 3


async def test_a_claim_whose_answer_was_lost_is_found_and_not_made_twice():
    listed = messages.ListClaimsResponse(has_more_elements=False, claims=[CLAIMED], **ENVELOPE)
    async with stand() as (fake, _, client, _):
        fake.on("POST", "/api/v2/claims/", DROP)
        fake.on("GET", "/api/v2/claims/", listed)
        assert await client.create_claim(WANTED, request_id="c-1") == CLAIMED
        posts = [one for one in fake.asked if (one.method, one.path) == ("POST", "/api/v2/claims/")]
        assert len(posts) == 1


async def test_a_deletion_whose_answer_could_not_be_kept_is_done_when_it_is_repeated(monkeypatch):
    path = "/api/v2/entries/%2B5511987654321/delete"
    deleted = messages.DeleteEntryResponse(key=KEY, **ENVELOPE)
    async with stand(lock=1.0) as (fake, _, client, batuta):
        fake.on("POST", path, deleted, DirectoryRefused("NotFound"))
        with monkeypatch.context() as patch:

            async def away(*_):
                raise StoreUnavailable("cannot reach PostgreSQL")

            patch.setattr(batuta.namespace.requests, "finish_request", away)
            with pytest.raises(BridgeUnavailable, match="store_unavailable"):
                await client.delete_entry(KEY, reason="FRAUD", request_id="d-1")
        assert (await client.delete_entry(KEY, reason="FRAUD", request_id="d-1")).key == KEY
        assert fake.times(path) == 2


async def test_a_claim_whose_answer_was_lost_is_found_behind_two_hundred_others():
    others = [replace(CLAIMED, key=f"+55119{number:08}", id=uuid4()) for number in range(200)]
    first = messages.ListClaimsResponse(has_more_elements=True, claims=others, **ENVELOPE)
    second = messages.ListClaimsResponse(has_more_elements=False, claims=[CLAIMED], **ENVELOPE)
    async with stand() as (fake, _, client, _):
        fake.on("POST", "/api/v2/claims/", DROP, DirectoryRefused("ClaimAlreadyExistsForKey"))
        fake.on("GET", "/api/v2/claims/", first, second)
        assert await client.create_claim(WANTED, request_id="c-1") == CLAIMED
        lists = [parse_qs(one.path.partition("?")[2]) for one in fake.asked if one.path.startswith("/api/v2/claims/?")]
        assert [one["ModifiedAfter"] for one in lists[1:]] == [["2026-11-18T12:00:00.000Z"]], "from the last of them on"


async def test_a_claim_that_is_not_there_is_made_again():
    none = messages.ListClaimsResponse(has_more_elements=False, **ENVELOPE)
    async with stand() as (fake, _, client, _):
        fake.on("POST", "/api/v2/claims/", DROP, messages.CreateClaimResponse(claim=CLAIMED, **ENVELOPE))
        fake.on("GET", "/api/v2/claims/", none)
        assert await client.create_claim(WANTED, request_id="c-1") == CLAIMED


async def test_a_deletion_whose_answer_was_lost_finds_no_entry_and_is_done():
    async with stand() as (fake, _, client, _):
        fake.on("POST", "/api/v2/entries/%2B5511987654321/delete", DROP, DirectoryRefused("NotFound"))
        assert (await client.delete_entry(KEY, reason="FRAUD", request_id="d-1")).key == KEY


async def test_a_deletion_that_its_caller_gave_up_finds_no_entry_when_it_is_repeated_and_is_done():
    path = "/api/v2/entries/%2B5511987654321/delete"
    async with stand(attempts=1) as (fake, _, client, _):
        fake.on("POST", path, SILENCE, DirectoryRefused("NotFound"))
        asking = asyncio.create_task(client.delete_entry(KEY, reason="FRAUD", request_id="d-1"))
        async with asyncio.timeout(30):
            while not fake.times(path):
                await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(NotFound):
            await client.delete_entry(KEY, reason="FRAUD", request_id="d-2")
        assert (await client.delete_entry(KEY, reason="FRAUD", request_id="d-1")).key == KEY


# -- not now


async def test_the_breaker_opens_after_five_failures_and_the_directory_is_left_alone():
    async with stand(attempts=1) as (fake, _, client, batuta):
        await client.list_policies()
        fake.on("GET", POLICY, DROP)
        for _ in range(5):
            with pytest.raises(BridgeUnavailable, match="directory_unreachable"):
                await client.get_policy("CLAIMS_READ")
        await opened(batuta)
        asked = len(fake.asked)
        with pytest.raises(BridgeUnavailable, match="breaker_open"):
            await client.get_policy("CLAIMS_READ")
        with pytest.raises(BridgeUnavailable, match="breaker_open"):
            await client.list_policies()
        assert len(fake.asked) == asked
        await batuta.breakers.close("bacen", reason="it is back")
        fake.on("GET", "/api/v2/policies/", policies())
        await until_well(client.list_policies)


async def opened(batuta):
    async with asyncio.timeout(20):
        while (await batuta.breakers.get("bacen")).state != "open":
            await asyncio.sleep(0.01)


async def until_well(act):
    async with asyncio.timeout(20):
        while True:
            try:
                return await act()
            except BridgeUnavailable:
                await asyncio.sleep(0.01)


async def test_refusals_do_not_open_the_breaker():
    async with stand() as (fake, _, client, batuta):
        fake.on("GET", POLICY, DirectoryRefused("Forbidden"))
        for _ in range(10):
            with pytest.raises(InvalidArgument):
                await client.get_policy("CLAIMS_READ")
        assert (await batuta.breakers.get("bacen")).state == "closed"


async def test_a_request_that_would_get_429_is_not_sent():
    async with stand() as (fake, bridge, client, _):
        fake.on("GET", "/api/v2/policies/", policies(POLICIES_READ=2))
        fake.on("GET", POLICY, messages.GetPolicyResponse(category="A", policy=policies().policies[0], **ENVELOPE))
        for _ in range(2):
            await client.get_policy("CLAIMS_READ")
        with pytest.raises(RateLimited, match="rate_limited") as caught:
            await client.get_policy("CLAIMS_READ")
        assert fake.times(POLICY) == 2
        assert 0 < caught.value.seconds <= 60
        assert bridge.calls.balances.balance("POLICIES_READ") == 0


@pytest.mark.parametrize("size", [{"capacity": 0}, {"refill_tokens": 0}, {"capacity": 0, "refill_tokens": 0}])
async def test_buckets_without_a_size_as_in_the_official_sample_are_left_to_the_directory(size):
    async with stand() as (fake, bridge, client, _):
        sample = [replace(one, available_tokens=0, refill_period_sec=0, **size) for one in policies().policies]
        fake.on("GET", "/api/v2/policies/", replace(policies(), policies=sample), policies())
        fake.on("GET", f"/api/v2/claims/{CLAIM}", messages.GetClaimResponse(claim=CLAIMED, **ENVELOPE))
        assert await client.get_claim(CLAIM) == CLAIMED
        fake.on("GET", f"/api/v2/claims/{CLAIM}", DirectoryRefused("RateLimited"))
        with pytest.raises(RateLimited):
            await client.get_claim(CLAIM)
        await client.list_policies()
        assert bridge.calls.balances.balance("CLAIMS_READ") == 18_000


async def test_a_429_that_came_all_the_same_stops_further_requests_and_the_policies_are_read():
    async with stand() as (fake, bridge, client, _):
        fake.on("GET", POLICY, DirectoryRefused("RateLimited"))
        half = {"response_time": datetime(2026, 1, 2, 0, 0, 30, tzinfo=UTC)}
        fake.on("GET", "/api/v2/policies/", replace(policies(), **half), replace(policies(POLICIES_READ=0), **half))
        for _ in range(2):
            with pytest.raises(RateLimited) as caught:
                await client.get_policy("CLAIMS_READ")
            assert 0 < caught.value.seconds <= 30, "until the directory's minute is over"
        assert fake.times(POLICY) == 1
        async with asyncio.timeout(20):
            while fake.times("/api/v2/policies/") < 2:
                await asyncio.sleep(0.01)
        assert bridge.calls.balances.balance("POLICIES_READ") == 0


async def test_a_bridge_that_begins_with_no_tokens_to_read_the_policies_asks_for_them_now_and_then():
    clock = ManualClock()
    async with directory() as fake, connect("memory://") as batuta:
        fake.on("GET", "/api/v2/policies/", DirectoryRefused("RateLimited"), policies())
        fake.on("GET", f"/api/v2/claims/{CLAIM}", messages.GetClaimResponse(claim=CLAIMED, **ENVELOPE))
        settings = BridgeSettings(directory=fake.url, participant=ISPB)
        async with DirectoryClient(settings) as http:
            calls = Calls(http, batuta, settings, clock=clock)
            claim = DirectoryRequest(operation=OPERATIONS["getClaim"], path={"ClaimId": str(CLAIM)})
            for request in (claim, claim, DirectoryRequest(operation=OPERATIONS["listPolicies"])):
                with pytest.raises(DirectoryRefused, match="RateLimited"):
                    await calls.call(request, calls.time_left(None))
            assert [one.path for one in fake.asked] == ["/api/v2/policies/"]
            clock.advance(10)
            await calls.call(claim, calls.time_left(None))
            assert len(fake.asked) == 3


async def test_lookups_under_way_are_counted_as_if_none_were_found():
    """20 tokens of a payer: one lookup that may take all of them, and no second one beside it."""
    async with stand() as (fake, bridge, client, _):
        fake.on("GET", "/api/v2/entries/%2B5511987654321", DirectoryRefused("NotFound"))
        results = await asyncio.gather(
            *(client.get_entry(KEY, payer_id="11122233300", end_to_end_id=E2E) for _ in range(30)),
            return_exceptions=True,
        )
        limited = [one for one in results if isinstance(one, RateLimited)]
        assert len(fake.asked) - 1 == len(results) - len(limited) == 5
        assert bridge.calls.balances.balance("ENTRIES_READ_USER_ANTISCAN/11122233300") == 0


async def test_a_payment_that_was_sent_gives_the_tokens_of_its_lookup_back_once():
    async with stand() as (fake, bridge, client, _):
        fake.on("GET", "/api/v2/entries/%2B5511987654321", messages.GetEntryResponse(entry=EXTENDED, **ENVELOPE))
        buckets = ("ENTRIES_READ_USER_ANTISCAN/11222333000181", "ENTRIES_READ_PARTICIPANT_ANTISCAN")
        for number in range(3):
            await client.get_entry(KEY, payer_id="11222333000181", end_to_end_id=f"E{number}")
        assert [bridge.calls.balances.balance(one) for one in buckets] == [997, 49_997]
        assert await client.payment_sent("E1", "11222333000181")
        assert not await client.payment_sent("E1", "11222333000181")
        assert not await client.payment_sent("E1", "11122233300")
        assert not await client.payment_sent("E9", "11222333000181")
        assert [bridge.calls.balances.balance(one) for one in buckets] == [999, 49_998]
        for wrong in (("E1", "1"), ("", "11122233300"), ("E-1", "11122233300")):
            with pytest.raises(InvalidArgument):
                await client.payment_sent(*wrong)


@pytest.mark.parametrize(("warning", "critical"), [(10.0, 25.0), (101.0, 5.0), (float("nan"), 5.0)])
def test_thresholds_in_the_wrong_order_are_refused(warning, critical):
    with pytest.raises(InvalidArgument, match="thresholds: critical="):
        Thresholds(warning=warning, critical=critical)


def test_a_bridge_without_connections_is_refused():
    with pytest.raises(InvalidArgument, match="connections=0"):
        BridgeSettings(directory="http://127.0.0.1:1", participant=ISPB, connections=0)


@pytest.mark.parametrize("bridges", [0, -1, 6])
def test_too_many_or_no_bridges_are_refused(bridges):
    with pytest.raises(InvalidArgument, match=f"bridges={bridges}"):
        BridgeSettings(directory="http://127.0.0.1:1", participant=ISPB, bridges=bridges)


async def test_the_balances_are_read_before_the_first_call_and_an_outage_then_is_told():
    async with stand(attempts=1) as (fake, _, client, _):
        fake.on("GET", "/api/v2/policies/", DROP, policies())
        with pytest.raises(BridgeUnavailable):
            await client.get_claim(CLAIM)
        fake.on("GET", f"/api/v2/claims/{CLAIM}", messages.GetClaimResponse(claim=CLAIMED, **ENVELOPE))
        assert await client.get_claim(CLAIM) == CLAIMED


async def test_a_claim_that_is_read_is_charged_to_its_policy():
    async with stand() as (fake, bridge, client, _):
        fake.on("GET", f"/api/v2/claims/{CLAIM}", messages.GetClaimResponse(claim=CLAIMED, **ENVELOPE))
        await client.get_claim(CLAIM)
        assert bridge.calls.balances.balance("CLAIMS_READ") == 17_999
        fake.on("GET", f"/api/v2/claims/{CLAIM}", DirectoryRefused("InternalServerError"))
        with pytest.raises(BridgeError):
            await client.get_claim(CLAIM)
        assert bridge.calls.balances.balance("CLAIMS_READ") == 17_999
