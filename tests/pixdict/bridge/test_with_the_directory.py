"""The Bridge and the simulator together, over gRPC and HTTP."""

import random
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from batuta import connect
from batuta.clock import ManualClock
from batuta.errors import GateRefused
from pixdict.bridge import BridgeClient, BridgeSettings, serve
from pixdict.bridge.calls import Calls
from pixdict.bridge.directory import DirectoryClient, DirectoryRequest
from pixdict.dict.headers import END_TO_END_ID, PAYER_ID
from pixdict.dict.messages import CheckKeysRequest, CreateEntryRequest, DeleteEntryRequest
from pixdict.dict.operations import OPERATIONS
from pixdict.dict.policies import OFFICIAL, Limit, Scope
from pixdict.dict.problems import DirectoryRefused
from pixdict.dict.signatures import self_signed
from pixdict.directory import Directory, DirectorySettings, Participant
from pixdict.errors import BridgeError, BridgeUnavailable, NotFound, Refused
from tests.long import examples
from tests.pixdict.bridge.kit import E2E, ENTRY, ISPB, KEY, OTHER, REQUEST, WANTED

DONOR = "87654321"


@asynccontextmanager
async def both(**settings):
    """A directory, and a client for each of two participants."""
    async with Directory.serve(DirectorySettings()) as directory, connect("memory://") as batuta:
        given = [
            BridgeSettings(directory=directory.url, participant=one, first_wait=0.01, **settings)
            for one in (ISPB, DONOR)
        ]
        async with (
            serve(given[0], batuta, grace=0.0) as ours,
            serve(given[1], batuta, grace=0.0) as theirs,
            BridgeClient(ours.address) as we,
            BridgeClient(theirs.address) as they,
        ):
            yield directory, we, they


async def test_a_key_is_made_found_changed_claimed_and_gone():
    async with both() as (_, we, they):
        made = await we.create_entry(ENTRY, reason="USER_REQUESTED", request_id=REQUEST)
        assert await we.create_entry(ENTRY, reason="USER_REQUESTED", request_id=REQUEST) == made
        assert await they.check_keys([KEY, "11122233300"]) == {KEY: True, "11122233300": False}
        found = await they.get_entry(KEY, payer_id="11122233300", end_to_end_id=E2E)
        assert found.entry.owner == ENTRY.owner
        events = await we.list_cid_events("PHONE", start_time=datetime(2020, 1, 1, tzinfo=UTC))
        [added] = events.cid_set_events
        assert (await we.get_entry_by_cid(added.cid)).request_id == REQUEST
        assert (await we.create_sync_verification("PHONE", added.cid, request_id="s-1")).result == "OK"

        account = replace(WANTED.claimer_account, participant=DONOR)
        claim = await they.create_claim(replace(WANTED, claimer_account=account), request_id="c-1")
        assert [one.id for one in (await we.list_claims(is_donor=True, status=["OPEN"])).claims] == [claim.id]
        assert (await we.acknowledge_claim(claim.id, request_id="c-2")).status == "WAITING_RESOLUTION"
        assert (await we.confirm_claim(claim.id, reason="USER_REQUESTED", request_id="c-3")).status == "CONFIRMED"
        done = await they.complete_claim(claim.id, request_id=OTHER)
        assert done.claim.status == "COMPLETED"
        with pytest.raises(Refused):
            await they.cancel_claim(claim.id, reason="FRAUD", request_id="c-4")
        await they.delete_entry(KEY, reason="FRAUD", request_id="d-1")
        with pytest.raises(NotFound):
            await we.get_entry(KEY, payer_id="11122233300", end_to_end_id=E2E)


@pytest.mark.parametrize("operation", ["createEntry", "createClaim", "deleteEntry"])
async def test_an_answer_that_was_lost_changes_nothing_for_the_caller(operation):
    async with both() as (directory, we, they):
        if operation != "createEntry":
            await we.create_entry(ENTRY, reason="USER_REQUESTED", request_id=REQUEST)
        directory.faults.add("lost_answer", operation=operation)
        if operation == "createEntry":
            await we.create_entry(ENTRY, reason="USER_REQUESTED", request_id=REQUEST)
        elif operation == "deleteEntry":
            await we.delete_entry(KEY, reason="FRAUD", request_id="d-1")
        else:
            account = replace(WANTED.claimer_account, participant=DONOR)
            made = await they.create_claim(replace(WANTED, claimer_account=account), request_id="c-1")
            assert (await they.get_claim(made.id)).status == "OPEN"
            assert (await they.create_claim(replace(WANTED, claimer_account=account), request_id="c-1")).id == made.id
        counts = directory.storage.counts()
        assert counts["entries"] == (0 if operation == "deleteEntry" else 1)
        assert counts["claims"] == (1 if operation == "createClaim" else 0)


@pytest.mark.parametrize("operation", ["createClaim", "deleteEntry"])
async def test_a_caller_that_repeats_a_request_of_unknown_outcome_learns_what_became_of_it(operation):
    """A Bridge that makes one attempt leaves the next one to its caller. Another request is none of it."""
    async with both(attempts=1) as (directory, we, they):
        await we.create_entry(ENTRY, reason="USER_REQUESTED", request_id=REQUEST)
        wanted = replace(WANTED, claimer_account=replace(WANTED.claimer_account, participant=DONOR))

        async def ask(request_id):
            if operation == "createClaim":
                return (await they.create_claim(wanted, request_id=request_id)).status
            return (await we.delete_entry(KEY, reason="FRAUD", request_id=request_id)).key

        directory.faults.add("lost_answer", operation=operation)
        with pytest.raises(BridgeUnavailable):
            await ask("r-1")
        with pytest.raises((Refused, NotFound)):
            await ask("r-2")
        assert await ask("r-1") == ("OPEN" if operation == "createClaim" else KEY)
        assert directory.storage.counts()["claims"] == (operation == "createClaim")


async def test_signatures_are_made_and_verified_on_both_sides():
    signer, stranger = (self_signed(ISPB, datetime.now(UTC)) for _ in range(2))
    participants = {ISPB: Participant(certificate=signer.certificate)}
    settings = DirectorySettings(participants=participants, signature="verify")
    async with Directory.serve(settings) as directory, connect("memory://") as batuta:
        told: dict[str, Any] = {
            "directory": directory.url,
            "participant": ISPB,
            "first_wait": 0.01,
            "trusted": directory.certificate,
        }
        async with serve(BridgeSettings(signer=signer, **told), batuta, grace=0.0) as bridge:
            async with BridgeClient(bridge.address) as client:
                await client.create_entry(ENTRY, reason="USER_REQUESTED", request_id=REQUEST)
                directory.faults.add("wrong_signature", operation="listPolicies", times=3)
                with pytest.raises(BridgeError, match="signature"):
                    await client.list_policies()
        async with serve(BridgeSettings(signer=stranger, **told), batuta, grace=0.0) as bridge:
            async with BridgeClient(bridge.address) as client:
                with pytest.raises(Exception, match="RequestSignatureInvalid"):
                    await client.delete_entry(KEY, reason="FRAUD", request_id="d-1")
        assert directory.storage.counts()["entries"] == 1


SMALL: dict[str, Any] = {
    "CLAIMS_READ": Limit(20, 60),
    "KEYS_CHECK": Limit(7, 9),
    "ENTRIES_WRITE": Limit(30, 50),
    "POLICIES_READ": Limit(10, 12),
    "ENTRIES_READ_PARTICIPANT_ANTISCAN": {"A": Limit(40, 120)},
}


@pytest.mark.parametrize("refill", ["stepped", "continuous"])
async def test_the_balances_that_the_bridge_counts_are_those_of_the_directory(refill):
    """Random requests, payments and time: no request gets 429, and the balances agree after each one of them."""
    chance, clock, limited = random.Random(7), ManualClock(), 0
    too_many, unpaid = 0, []
    settings = DirectorySettings(policies=SMALL, refill=refill, refuse_own_lookups=False)
    async with Directory.serve(settings, clock=clock) as directory, connect("memory://") as batuta:
        given = BridgeSettings(directory=directory.url, participant=ISPB, refill=directory.settings.refill)
        async with DirectoryClient(given) as http:
            calls = Calls(http, batuta, given, clock=clock)
            for number in range(examples(1_000)):
                if chance.random() < 0.2:
                    clock.advance(round(chance.uniform(0, 45)))
                request = some_request(chance, number)
                try:
                    await calls.call(request, calls.time_left(None))
                    if request.operation.name == "getEntry":
                        unpaid.append((request.headers[END_TO_END_ID], request.headers[PAYER_ID]))
                except GateRefused:
                    limited += 1
                except DirectoryRefused as error:
                    too_many += error.status == 429
                if unpaid and chance.random() < 0.2:
                    sent = unpaid.pop(chance.randrange(len(unpaid)))
                    directory.service.payment_sent(*sent)
                    assert calls.balances.paid(*sent)
                    assert not calls.balances.paid(*sent)
                if number % 50 == 0:
                    compare(calls, directory)
            compare(calls, directory)
    assert too_many == 0
    assert limited > 50


@pytest.mark.parametrize("refill", ["stepped", "continuous"])
async def test_bridges_that_share_a_participant_together_use_no_more_than_the_directory_has(refill):
    """Three of them, one of which is now and then a new one that knows no payer yet. None learns of the others."""
    chance, clock = random.Random(11), ManualClock()
    done, limited, statuses = 0, 0, set()
    settings = DirectorySettings(policies=SMALL, refill=refill, refuse_own_lookups=False)
    async with Directory.serve(settings, clock=clock) as directory, connect("memory://") as batuta:
        given = BridgeSettings(
            directory=directory.url, participant=ISPB, refill=directory.settings.refill, bridges=3, first_wait=0.0
        )
        async with DirectoryClient(given) as http:
            calls = [Calls(http, batuta, given, clock=clock) for _ in range(3)]
            for number in range(examples(600)):
                if chance.random() < 0.2:
                    clock.advance(round(chance.uniform(0, 45)))
                if chance.random() < 0.01:
                    calls[2] = Calls(http, batuta, given, clock=clock)
                one = chance.choice(calls[:2] if number % 3 else calls)
                request = some_request(chance, number, payer=str(10**10 + number) if one is calls[2] else "")
                try:
                    await one.call(request, one.time_left(None))
                    done += 1
                except GateRefused:
                    limited += 1
                except DirectoryRefused as error:
                    statuses.add(error.status)
    assert 429 not in statuses
    assert limited > 50
    assert done > 100


PAYERS = ("11122233300", "11222333000181", "33344455566")


def some_request(chance, number, payer=""):
    name = chance.choice(["getClaim", "checkKeys", "getEntry", "getEntry", "createEntry", "deleteEntry", "getPolicy"])
    key = f"+55119876543{chance.randrange(30):02}"
    if name == "getClaim":
        return DirectoryRequest(operation=OPERATIONS[name], path={"ClaimId": str(OTHER)})
    if name == "getPolicy":
        return DirectoryRequest(operation=OPERATIONS[name], path={"policy": chance.choice(["CLAIMS_READ", "NONE"])})
    if name == "getEntry":
        headers = {PAYER_ID: payer or chance.choice(PAYERS), END_TO_END_ID: f"E{number}"}
        return DirectoryRequest(operation=OPERATIONS[name], path={"Key": key}, headers=headers)
    if name == "createEntry":
        made = CreateEntryRequest(
            entry=replace(ENTRY, key=key), reason="USER_REQUESTED", request_id=UUID(int=number, version=4)
        )
        return DirectoryRequest(operation=OPERATIONS[name], message=made)
    if name == "deleteEntry":
        gone = DeleteEntryRequest(key=key, participant=ISPB, reason="USER_REQUESTED")
        return DirectoryRequest(operation=OPERATIONS[name], path={"Key": key}, message=gone)
    return DirectoryRequest(operation=OPERATIONS[name], message=CheckKeysRequest(keys=[key]))


def compare(calls, directory):
    shared = [name for name, rule in OFFICIAL.items() if rule.scope is Scope.PSP]
    truth = {name: directory.service.balance(name, ISPB) for name in shared}
    truth |= {f"ENTRIES_READ_USER_ANTISCAN/{one}": balance_of(directory, one) for one in PAYERS}
    counted = {name: calls.balances.balance(name) for name in truth}
    assert {name: counted[name] for name in truth if counted[name] is not None} == {
        name: tokens for name, tokens in truth.items() if counted[name] is not None
    }
    assert set(shared) <= {name for name, tokens in counted.items() if tokens is not None}


def balance_of(directory, payer):
    return directory.service.balance("ENTRIES_READ_USER_ANTISCAN", ISPB, payer)
