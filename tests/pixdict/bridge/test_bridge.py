"""The Bridge over real gRPC and real HTTP."""

import asyncio
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from msgspec.structs import replace

from pixdict.bridge import BridgeClient, Thresholds
from pixdict.bridge.errors import problem_of
from pixdict.dict import messages, xml
from pixdict.dict.problems import DirectoryRefused
from pixdict.errors import BridgeError, BridgeUnavailable, InvalidArgument, NotFound, RateLimited, Refused
from pixdict.proto import bridge_pb2 as pb
from pixdict.proto import bridge_pb2_grpc as rpc
from tests.pixdict.bridge.kit import (
    ACCOUNT,
    CLAIM,
    CLAIMED,
    DROP,
    E2E,
    ENTRY,
    ENVELOPE,
    EXTENDED,
    ISPB,
    KEY,
    NOW,
    OWNER,
    REQUEST,
    SILENCE,
    WANTED,
    Raw,
    policies,
    stand,
)

ENTRY_PATH = "/api/v2/entries/%2B5511987654321"
CREATED = messages.CreateEntryResponse(entry=EXTENDED, **ENVELOPE)


async def test_policies_come_with_their_category_and_the_thresholds_of_the_bridge():
    by_policy = {"KEYS_CHECK": Thresholds(50.0, 20.0)}
    async with stand(by_policy=by_policy) as (directory, _, client, _):
        directory.on("GET", "/api/v2/policies/", policies(CLAIMS_READ=-7))
        found = {one.policy_name: one for one in await client.list_policies()}
    assert len(found) == 29
    assert found["CLAIMS_READ"].available_tokens == -7
    assert (found["CLAIMS_READ"].category, found["CLAIMS_READ"].critical_threshold_pct) == ("A", 10.0)
    assert (found["KEYS_CHECK"].warning_threshold_pct, found["KEYS_CHECK"].critical_threshold_pct) == (50.0, 20.0)
    assert directory.asked[0].headers["pi-requestingparticipant"] == ISPB


async def test_entries_pass_through_unchanged():
    async with stand() as (directory, _, client, _):
        directory.on("POST", "/api/v2/entries/", CREATED)
        directory.on("GET", ENTRY_PATH, messages.GetEntryResponse(entry=EXTENDED, **ENVELOPE))
        directory.on("PUT", ENTRY_PATH, messages.UpdateEntryResponse(entry=EXTENDED, **ENVELOPE))
        directory.on("POST", ENTRY_PATH + "/delete", messages.DeleteEntryResponse(key=KEY, **ENVELOPE))
        checked = [
            messages.CheckedKey(key="11122233300", has_entry=False),
            messages.CheckedKey(key="a@b.c", has_entry=True),
        ]
        directory.on("POST", "/api-np/v2/keys/check", messages.CheckKeysResponse(keys=checked, **ENVELOPE))

        assert await client.create_entry(ENTRY, reason="USER_REQUESTED", request_id=REQUEST) == CREATED
        sent = xml.from_bytes(messages.CreateEntryRequest, directory.asked[-1].body, strict=True)
        assert (sent.entry, sent.reason, sent.request_id) == (ENTRY, "USER_REQUESTED", REQUEST)
        assert (await client.get_entry(KEY, payer_id="11122233300", end_to_end_id=E2E)).entry == EXTENDED
        assert directory.asked[-1].headers["pi-endtoendid"] == E2E
        updated = await client.update_entry(
            KEY, reason="USER_REQUESTED", request_id="u-1", account=ACCOUNT, owner=OWNER
        )
        assert updated.entry == EXTENDED
        assert (await client.delete_entry(KEY, reason="FRAUD", request_id="d-1")).key == KEY
        assert await client.check_keys(["11122233300", "a@b.c"]) == {"11122233300": False, "a@b.c": True}


async def test_claims_pass_through_unchanged():
    def of(kind, **more):
        return kind(claim=CLAIMED, **ENVELOPE, **more)

    path = f"/api/v2/claims/{CLAIM}"
    async with stand() as (directory, _, client, _):
        directory.on("POST", "/api/v2/claims/", of(messages.CreateClaimResponse))
        directory.on("GET", path, of(messages.GetClaimResponse))
        listed = messages.ListClaimsResponse(has_more_elements=True, claims=[CLAIMED], **ENVELOPE)
        directory.on("GET", "/api/v2/claims/", listed)
        directory.on("POST", path + "/acknowledge", of(messages.AcknowledgeClaimResponse))
        directory.on("POST", path + "/confirm", of(messages.ConfirmClaimResponse))
        directory.on("POST", path + "/cancel", of(messages.CancelClaimResponse))
        done = of(messages.CompleteClaimResponse, entry_creation_date=NOW, key_ownership_date=NOW)
        directory.on("POST", path + "/complete", done)

        assert await client.create_claim(WANTED, request_id="c-1") == CLAIMED
        assert await client.get_claim(CLAIM) == CLAIMED
        found = await client.list_claims(is_donor=True, status=["OPEN", "CONFIRMED"], modified_after=NOW, limit=10)
        assert found == listed
        assert directory.asked[-1].path == (
            f"/api/v2/claims/?Participant={ISPB}&IsDonor=true&ModifiedAfter=2026-11-18T12%3A00%3A00.000Z&Limit=10"
            "&Status=OPEN&Status=CONFIRMED"
        )
        assert await client.acknowledge_claim(CLAIM, request_id="c-2") == CLAIMED
        assert await client.confirm_claim(CLAIM, reason="USER_REQUESTED", request_id="c-3") == CLAIMED
        assert await client.cancel_claim(CLAIM, reason="FRAUD", request_id="c-4") == CLAIMED
        assert await client.complete_claim(CLAIM, request_id=REQUEST) == done


async def test_reconciliation_passes_through_unchanged():
    verified = messages.ExtendedSyncVerification(
        participant=ISPB, key_type="CPF", participant_sync_verifier="0" * 64, id=7, result="NOK"
    )
    events = messages.ListCidSetEventsResponse(
        has_more_elements=False,
        participant=ISPB,
        key_type="CPF",
        start_time=NOW,
        end_time=NOW + timedelta(hours=1),
        sync_verifier_start="0" * 64,
        sync_verifier_end="f" * 64,
        cid_set_events=[messages.CidSetEvent(type="ADDED", cid="a" * 64, timestamp=NOW)],
        **ENVELOPE,
    )
    by_cid = messages.GetEntryByCidResponse(cid="a" * 64, entry=EXTENDED, request_id=REQUEST, **ENVELOPE)
    async with stand() as (directory, _, client, _):
        directory.on(
            "POST",
            "/api/v2/sync-verifications/",
            messages.CreateSyncVerificationResponse(sync_verification=verified, **ENVELOPE),
        )
        directory.on("GET", "/api/v2/cids/events", events)
        directory.on("GET", "/api/v2/cids/entries/" + "a" * 64, by_cid)
        assert await client.create_sync_verification("CPF", "0" * 64, request_id="s-1") == verified
        assert await client.list_cid_events("CPF", start_time=NOW) == events
        assert await client.get_entry_by_cid("a" * 64) == by_cid


#
@pytest.mark.parametrize(
    ("refusal", "expected"),
    [
        (DirectoryRefused("BadRequest"), InvalidArgument),
        (DirectoryRefused("EntryLimitExceeded"), Refused),
        (DirectoryRefused("SomethingNew", status=400), InvalidArgument),
        (DirectoryRefused("Forbidden"), Refused),
        (DirectoryRefused("NotFound"), NotFound),
        (DirectoryRefused("ResourceConflict"), BridgeError),
        (DirectoryRefused("Gone"), Refused),
        (DirectoryRefused("RateLimited"), RateLimited),
        (DirectoryRefused("InternalServerError"), BridgeError),
        (DirectoryRefused("ServiceUnavailable"), BridgeUnavailable),
        (DROP, BridgeUnavailable),
        (Raw(502, b"<html>"), BridgeError),
    ],
    ids=str,
)
async def test_each_refusal_of_the_directory_is_one_error_of_activities(refusal, expected):
    async with stand() as (directory, _, client, _):
        directory.on("GET", "/api/v2/policies/CLAIMS_READ", refusal)
        with pytest.raises(expected) as caught:
            await client.get_policy("CLAIMS_READ")
    assert type(caught.value) is expected


async def test_a_problem_of_the_directory_reaches_the_caller_whole():
    refusal = DirectoryRefused("EntryLimitExceeded", "5 keys are there", correlation_id="b" * 32)
    async with stand() as (directory, bridge, _, _):
        directory.on("GET", "/api/v2/policies/CLAIMS_READ", refusal)
        async with grpc.aio.insecure_channel(bridge.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await rpc.RateLimitsStub(channel).GetPolicy(pb.GetPolicyRequest(policy_name="CLAIMS_READ"))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    problem = problem_of(caught.value)
    assert (problem.name, problem.http_status, problem.detail) == ("EntryLimitExceeded", 400, "5 keys are there")
    assert problem.correlation_id == "b" * 32


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<ListPolicies",
        b"{}",
        b'<!DOCTYPE a [<!ENTITY b "c">]><GetPolicyResponse>&b;</GetPolicyResponse>',
        b"<Other/>",
        b"<GetPolicyResponse><CorrelationId>x</CorrelationId></GetPolicyResponse>",
        xml.to_bytes(
            messages.GetPolicyResponse(
                category="A",
                policy=messages.Policy(name="A", available_tokens=1, capacity=1, refill_tokens=1, refill_period_sec=1),
                **ENVELOPE,
            )
        ).replace(b"<Capacity>1", b"<Capacity>many"),
    ],
)
async def test_an_answer_that_cannot_be_read_is_tried_again_and_then_an_error(body):
    async with stand() as (directory, _, client, _):
        directory.on("GET", "/api/v2/policies/CLAIMS_READ", Raw(200, body))
        with pytest.raises(BridgeError, match="INTERNAL: broken_answer"):
            await client.get_policy("CLAIMS_READ")
        assert directory.times("/api/v2/policies/CLAIMS_READ") == 3


async def test_a_deadline_ends_a_call_whose_directory_says_nothing():
    async with stand() as (directory, bridge, _, _):
        directory.on("GET", "/api/v2/policies/CLAIMS_READ", SILENCE)
        async with BridgeClient(bridge.address, timeout=0.2) as hurried:
            with pytest.raises(BridgeUnavailable):
                await hurried.get_policy("CLAIMS_READ")
        assert directory.times("/api/v2/policies/CLAIMS_READ") == 1


DATED = "d9428888-122b-11e1-b85c-61cd3cbb3210"
"""A UUID of version 1."""
FOREIGN = replace(ACCOUNT, participant="99999999")
BAD = {
    "a foreign ISPB": lambda one: one.create_entry(
        replace(ENTRY, account=FOREIGN), reason="USER_REQUESTED", request_id=REQUEST
    ),
    "a foreign ISPB of a claim": lambda one: one.create_claim(
        replace(WANTED, claimer_account=FOREIGN), request_id="c-1"
    ),
    "a foreign ISPB of a change": lambda one: one.update_entry(
        KEY, reason="USER_REQUESTED", request_id="u-1", account=FOREIGN
    ),
    "a key that is none": lambda one: one.get_entry("no key", payer_id="11122233300", end_to_end_id=E2E),
    "a payer that is none": lambda one: one.get_entry("a@b.c", payer_id="x", end_to_end_id=E2E),
    "no EndToEndId": lambda one: one.get_entry("a@b.c", payer_id="11122233300", end_to_end_id=""),
    "no request id": lambda one: one.delete_entry("a@b.c", reason="FRAUD", request_id=""),
    "a long request id": lambda one: one.delete_entry("a@b.c", reason="FRAUD", request_id="x" * 101),
    "a request id that is no UUID": lambda one: one.create_entry(ENTRY, reason="USER_REQUESTED", request_id="x"),
    "no keys": lambda one: one.check_keys([]),
    "too many keys": lambda one: one.check_keys(["11122233300"] * 201),
    "more than is read": lambda one: one.check_keys(["x" * 2_000_000]),
    "a claim id that is none": lambda one: one.get_claim("x"),
    "a limit of 201": lambda one: one.list_claims(limit=201),
    "a type of claim": lambda one: one.list_claims(type="GIFT"),
    "a type of key": lambda one: one.list_cid_events("FAX", start_time=NOW),
    "a request id that is not random": lambda one: one.create_entry(ENTRY, reason="USER_REQUESTED", request_id=DATED),
    "a completion that is not random": lambda one: one.complete_claim(CLAIM, request_id=DATED),
    "a reason of a creation": lambda one: one.create_entry(ENTRY, reason="FRAUD", request_id=REQUEST),
    "a reason of a change": lambda one: one.update_entry(KEY, reason="FRAUD", request_id="u-1", owner=OWNER),
    "a reason of a change of an EVP": lambda one: one.update_entry(
        str(REQUEST), reason="USER_REQUESTED", request_id="u-1", owner=OWNER
    ),
    "a change of nothing": lambda one: one.update_entry(KEY, reason="USER_REQUESTED", request_id="u-1"),
    "a reason of a deletion": lambda one: one.delete_entry(KEY, reason="BRANCH_TRANSFER", request_id="d-1"),
    "a reason of a confirmation": lambda one: one.confirm_claim(CLAIM, reason="FRAUD", request_id="c-1"),
    "a reason of a cancellation": lambda one: one.cancel_claim(CLAIM, reason="NO", request_id="c-1"),
    "a status of claims": lambda one: one.list_claims(status=["OPEN", "EXPIRED"]),
    "a verifier that is none": lambda one: one.create_sync_verification("PHONE", "0", request_id="s-1"),
    "a CID that is none": lambda one: one.get_entry_by_cid("../policies/"),
    "a policy with a slash": lambda one: one.get_policy("../policies/"),
    "a claim on an EVP": lambda one: one.create_claim(
        replace(WANTED, key="123e4567-e89b-12d3-a456-426655440000", key_type="EVP"), request_id="c-1"
    ),
}


@pytest.mark.parametrize("act", BAD.values(), ids=BAD)
async def test_bad_input_is_refused_before_the_directory_is_asked(act):
    async with stand() as (directory, _, client, _):
        with pytest.raises(InvalidArgument):
            await act(client)
        assert directory.asked == []


@pytest.mark.parametrize("seconds", [2**62, -(2**62), 253_402_300_800])
async def test_a_time_that_no_calendar_has_is_refused(seconds):
    """No client of ours can send it."""
    async with stand() as (directory, _, client, _):
        far = Timestamp(seconds=seconds)
        account = pb.Account(participant=ISPB, account_number="1", account_type="CACC", opening_date=far)
        calls = (
            rpc.ReconciliationStub(client.channel).ListCidEvents(
                pb.ListCidEventsRequest(key_type="PHONE", start_time=far)
            ),
            rpc.EntriesStub(client.channel).UpdateEntry(
                pb.UpdateEntryRequest(request_id="u-1", key=KEY, reason="USER_REQUESTED", account=account)
            ),
        )
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert directory.asked == []


async def test_a_time_of_the_first_century_is_spelled_with_four_digits():
    async with stand() as (directory, _, client, _):
        with pytest.raises(NotFound):
            await client.list_claims(modified_after=datetime(33, 4, 3, 15, tzinfo=UTC))
        assert "ModifiedAfter=0033-04-03T15%3A00%3A00.000Z" in directory.asked[-1].path


async def test_an_unknown_policy_is_not_found():
    async with stand() as (_, _, client, _):
        with pytest.raises(NotFound, match="NotFound"):
            await client.get_policy("NO_SUCH_POLICY")


async def test_health_and_reflection_tell_of_every_service():
    async with stand() as (_, bridge, _, _), grpc.aio.insecure_channel(bridge.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "pixdict.bridge.v1.RateLimits", "pixdict.bridge.v1.Claims"):
            found = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert found.status == health_pb2.HealthCheckResponse.SERVING
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        answers = [one async for one in stub.ServerReflectionInfo(iter([asked]))]
        names = {one.name for one in answers[0].list_services_response.service}
    assert {"pixdict.bridge.v1.Entries", "pixdict.bridge.v1.Reconciliation", "grpc.health.v1.Health"} <= names


async def test_a_bridge_that_is_away_is_unavailable():
    async with BridgeClient("127.0.0.1:1", timeout=1.0) as client:
        with pytest.raises(BridgeUnavailable):
            await client.list_policies()


async def test_calls_at_once_share_the_connections():
    async with stand(connections=4) as (directory, _, client, _):
        directory.on("GET", "/api/v2/claims/" + str(CLAIM), messages.GetClaimResponse(claim=CLAIMED, **ENVELOPE))
        found = await asyncio.gather(*(client.get_claim(CLAIM) for _ in range(50)))
    assert len(found) == 50
    assert directory.times("/api/v2/policies/") == 1
