"""Rate limits: every rule and example of how tokens are counted."""

from typing import Any
from uuid import uuid4

import pytest

from pixdict.dict.buckets import Bucket, Refill, changed, periods_to_wait, refilled
from pixdict.dict.policies import OFFICIAL, Limit, Scope, policies
from pixdict.directory.service import Service
from pixdict.directory.settings import DirectorySettings, Participant
from tests.pixdict.directory.kit import CNPJ, CPF, DAY, EMAIL, PHONE, START, A, B, Bank, C, account, service

USER, USER_V2 = "ENTRIES_READ_USER_ANTISCAN", "ENTRIES_READ_USER_ANTISCAN_V2"
EVERYONE = "ENTRIES_READ_PARTICIPANT_ANTISCAN"

TABLE = """
    ENTRIES_WRITE 1200 36000 60|ENTRIES_UPDATE 600 600 60|CLAIMS_READ 600 18000 60|CLAIMS_WRITE 1200 36000 60
    CLAIMS_LIST_WITH_ROLE 40 200 60|CLAIMS_LIST_WITHOUT_ROLE 10 50 60|SYNC_VERIFICATIONS_WRITE 10 50 60
    CIDS_FILES_WRITE 40 200 86400|CIDS_FILES_READ 10 50 60|CIDS_EVENTS_LIST 20 100 60|CIDS_ENTRIES_READ 1200 36000 60
    INFRACTION_REPORTS_READ 600 18000 60|INFRACTION_REPORTS_WRITE 1200 36000 60
    INFRACTION_REPORTS_LIST_WITH_ROLE 40 200 60|INFRACTION_REPORTS_LIST_WITHOUT_ROLE 10 50 60
    KEYS_CHECK 70 70 60|REFUNDS_READ 1200 36000 60
    REFUNDS_WRITE 2400 72000 60|REFUND_LIST_WITH_ROLE 40 200 60|REFUND_LIST_WITHOUT_ROLE 10 50 60
    FRAUD_MARKERS_READ 600 18000 60|FRAUD_MARKERS_WRITE 1200 36000 60|FRAUD_MARKERS_LIST 600 18000 60
    PERSONS_STATISTICS_READ 12000 36000 60|POLICIES_READ 60 200 60|POLICIES_LIST 6 20 60|EVENT_LIST 40 200 60
"""
CATEGORIES = {
    "A": (25_000, 50_000),
    "B": (20_000, 40_000),
    "C": (15_000, 30_000),
    "D": (8_000, 16_000),
    "E": (2_500, 5_000),
    "F": (250, 500),
    "G": (25, 250),
    "H": (2, 50),
}


def test_the_table_has_the_official_numbers() -> None:
    rows = [row.split() for line in TABLE.split("\n") for row in line.split("|") if row.strip()]
    assert len(rows) == 27
    for name, refill, capacity, period in rows:
        assert OFFICIAL[name].limits == {"": Limit(int(refill), int(capacity), int(period))}
    shared = [rule for rule in OFFICIAL.values() if rule.scope is Scope.PSP]
    assert (len(shared), len(OFFICIAL)) == (29, 31)


@pytest.mark.parametrize(("category", "limit"), CATEGORIES.items())
def test_a_category_changes_two_policies_and_no_other(category: str, limit: tuple[int, int]) -> None:
    bank = Bank(service(DirectorySettings(participants={A: Participant(category=category)})), A)
    listed = bank.ask("listPolicies").message
    assert listed.category == category
    states = {state.name: (state.refill_tokens, state.capacity, state.available_tokens) for state in listed.policies}
    assert len(states) == 29
    assert states[EVERYONE] == states["ENTRIES_STATISTICS_READ"] == (*limit, limit[1])
    assert states["ENTRIES_WRITE"] == (1_200, 36_000, 36_000)


def test_limits_can_differ_and_policies_can_be_added() -> None:
    table = policies({"ENTRIES_WRITE": Limit(800, 1_200), "NEW": Limit(1, 2), USER: {"PF": Limit(1, 1)}})
    assert table["ENTRIES_WRITE"].limit("A") == Limit(800, 1_200)
    assert table["NEW"].scope is Scope.PSP
    assert table[USER].limit("PF") == Limit(1, 1)
    bank = Bank(service(DirectorySettings(policies={"ENTRIES_WRITE": Limit(800, 1_200)})), A)
    assert bank.ask("getPolicy", value="ENTRIES_WRITE").message.policy.capacity == 1_200


def test_buckets_of_users_are_listed_only_where_it_is_set(a: Bank) -> None:
    assert USER not in [state.name for state in a.ask("listPolicies").message.policies]
    with_users = Bank(service(DirectorySettings(list_user_policies=True)), A).ask("listPolicies").message.policies
    assert len(with_users) == 31


def test_an_unknown_policy_is_not_found(a: Bank) -> None:
    for name in ("ENTRIES_CREATE", USER):
        assert (a.ask("getPolicy", value=name).status, a.ask("getPolicy", value=name).problem) == (404, "NotFound")


def test_the_state_is_told_before_the_request_is_charged(a: Bank) -> None:
    for available in (20, 19, 18):
        states = {state.name: state.available_tokens for state in a.ask("listPolicies").message.policies}
        assert states["POLICIES_LIST"] == available


# Lookups


@pytest.mark.parametrize(
    ("key", "key_type", "touched", "spared"),
    [
        (PHONE, "PHONE", USER, USER_V2),
        (EMAIL, "EMAIL", USER, USER_V2),
        (CPF, "CPF", USER_V2, USER),
        (None, "EVP", USER_V2, USER),
    ],
)
def test_a_lookup_that_finds_costs_one_and_one(
    a: Bank, b: Bank, key: str | None, key_type: str, touched: str, spared: str
) -> None:
    made = a.create(key, key_type).message.entry.key
    assert b.look_up(made).status == 200
    assert (b.tokens(touched, CPF), b.tokens(spared, CPF), b.tokens(EVERYONE)) == (99, 100, 49_999)


def test_a_lookup_that_finds_nothing_costs_twenty_and_three(b: Bank) -> None:
    assert b.look_up(PHONE).status == 404
    assert (b.tokens(USER, CPF), b.tokens(EVERYONE)) == (80, 49_997)


def test_other_answers_to_lookups_cost_nothing(a: Bank, b: Bank) -> None:
    a.create()
    assert a.look_up(PHONE).status == 400
    assert b.look_up("hello").status == 400
    b.service.set_balance(USER, B, 0, CPF)
    assert b.look_up(PHONE).status == 429
    assert (a.tokens(USER, CPF), a.tokens(EVERYONE)) == (100, 50_000)
    assert (b.tokens(USER, CPF), b.tokens(EVERYONE)) == (0, 50_000)


def test_persons_and_companies_have_different_buckets(b: Bank) -> None:
    assert (b.tokens(USER, CPF), b.tokens(USER, CNPJ)) == (100, 1_000)
    b.service.set_balance(USER, B, 0, CPF)
    b.service.set_balance(USER, B, 0, CNPJ)
    b.service.advance(60)
    assert (b.tokens(USER, CPF), b.tokens(USER, CNPJ)) == (2, 20)


def test_the_example_of_the_manual_five_tokens_a_miss_and_eight_minutes(a: Bank, b: Bank) -> None:
    a.create()
    b.service.set_balance(USER, B, 5, CPF)
    assert b.look_up(EMAIL).status == 404
    assert b.tokens(USER, CPF) == -15
    assert b.look_up(PHONE).status == 429
    b.service.advance(7 * 60)
    assert (b.tokens(USER, CPF), b.look_up(PHONE).status) == (-1, 429)
    b.service.advance(60)
    assert (b.tokens(USER, CPF), b.look_up(PHONE).status) == (1, 200)
    assert b.tokens(USER, CPF) == 0


@pytest.mark.parametrize(("user", "everyone", "status"), [(1, 1, 200), (0, 1, 429), (1, 0, 429), (-5, 9, 429)])
def test_a_lookup_needs_a_token_in_each_of_its_two_buckets(
    a: Bank, b: Bank, user: int, everyone: int, status: int
) -> None:
    a.create()
    b.service.set_balance(USER, B, user, CPF)
    b.service.set_balance(EVERYONE, B, everyone)
    answer = b.look_up(PHONE)
    assert (answer.status, answer.problem) == (status, "RateLimited" if status == 429 else "")


def test_users_have_their_own_buckets_in_each_participant(a: Bank, b: Bank) -> None:
    b.look_up(PHONE, CPF)
    assert (b.tokens(USER, CPF), b.tokens(USER, "99988877766"), a.tokens(USER, CPF)) == (80, 100, 100)


@pytest.mark.parametrize(("payer", "credit"), [(CPF, 1), (CNPJ, 2)])
def test_a_payment_gives_tokens_back_once(a: Bank, b: Bank, payer: str, credit: int) -> None:
    a.create()
    for number in range(3):
        b.look_up(PHONE, payer, payment=f"E{number}")
    before = b.tokens(USER, payer)
    assert b.service.payment_sent("E1", payer) == 1
    assert (b.tokens(USER, payer), b.tokens(EVERYONE)) == (before + credit, 50_000 - 2)
    assert b.service.payment_sent("E1", payer) == 0
    assert b.service.payment_sent("E2", "99988877766") == 0, "another payer"
    assert b.service.payment_sent("E9", payer) == 0, "no such lookup"
    assert b.tokens(USER, payer) == before + credit


def test_two_lookups_of_one_payment_are_credited_once(a: Bank, b: Bank) -> None:
    a.create()
    b.look_up(PHONE, payment="E1")
    b.look_up(PHONE, payment="E1")
    assert b.service.payment_sent("E1", CPF) == 1
    assert b.tokens(USER, CPF) == 99


def test_initiator_and_account_holder_are_both_credited() -> None:
    made = service(DirectorySettings(participants={ispb: Participant() for ispb in (A, B, C)}))
    Bank(made, A).create()
    for ispb in (B, C):
        Bank(made, ispb).look_up(PHONE, payment="E1")
    assert made.payment_sent("E1", CPF) == 2
    assert {Bank(made, ispb).tokens(USER, CPF) for ispb in (B, C)} == {100}


def test_a_credit_never_leads_above_the_capacity(a: Bank, b: Bank) -> None:
    a.create()
    b.look_up(PHONE, CNPJ, payment="E1")
    b.service.payment_sent("E1", CNPJ)
    assert (b.tokens(USER, CNPJ), b.tokens(EVERYONE)) == (1_000, 50_000)


def test_a_lookup_that_found_nothing_has_no_credit(b: Bank) -> None:
    b.look_up(PHONE, payment="E1")
    assert b.service.payment_sent("E1", CPF) == 0


def test_statistics_in_a_lookup_cost_nothing_more(a: Bank, b: Bank) -> None:
    a.create()
    b.look_up(PHONE, IncludeStatistics="true")
    assert (b.tokens(USER, CPF), b.tokens("ENTRIES_STATISTICS_READ")) == (99, 50_000)


# All other requests


def test_any_answer_but_500_and_429_costs_one(a: Bank) -> None:
    assert a.create().status == 201
    assert a.create().status == 400
    assert a.delete(EMAIL).status == 404
    assert a.ask("createEntry", b"<broken").status == 400
    assert a.create(at=account(B)).status == 403
    assert a.tokens("ENTRIES_WRITE") == 36_000 - 5


def test_an_empty_bucket_refuses_before_anything_is_done(a: Bank) -> None:
    a.service.set_balance("ENTRIES_WRITE", A, 0)
    assert (a.create().status, a.create().problem) == (429, "RateLimited")
    assert a.tokens("ENTRIES_WRITE") == 0
    assert a.service.storage.counts()["entries"] == 0
    a.service.advance(60)
    assert a.tokens("ENTRIES_WRITE") == 1_200


def test_participants_have_their_own_buckets(a: Bank, b: Bank) -> None:
    a.create()
    assert (a.tokens("ENTRIES_WRITE"), b.tokens("ENTRIES_WRITE")) == (35_999, 36_000)


@pytest.mark.parametrize(
    ("flags", "policy"),
    [
        ({}, "CLAIMS_LIST_WITHOUT_ROLE"),
        ({"IsDonor": "true"}, "CLAIMS_LIST_WITH_ROLE"),
        ({"IsClaimer": "true"}, "CLAIMS_LIST_WITH_ROLE"),
        ({"IsDonor": "true", "IsClaimer": "false"}, "CLAIMS_LIST_WITH_ROLE"),
        ({"IsDonor": "true", "IsClaimer": "true"}, "CLAIMS_LIST_WITHOUT_ROLE"),
        ({"IsDonor": "false", "IsClaimer": "false"}, "CLAIMS_LIST_WITHOUT_ROLE"),
    ],
)
def test_lists_of_claims_are_charged_by_their_role(a: Bank, flags: dict[str, Any], policy: str) -> None:
    assert a.ask("listClaims", Participant=A, **flags).status == 200
    assert a.tokens(policy) == OFFICIAL[policy].limit("").capacity - 1


def test_each_operation_charges_its_policy(a: Bank) -> None:
    for operation, policy in (
        ("checkKeys", "KEYS_CHECK"),
        ("getClaim", "CLAIMS_READ"),
        ("createSyncVerification", "SYNC_VERIFICATIONS_WRITE"),
        ("getEntryByCid", "CIDS_ENTRIES_READ"),
        ("getPolicy", "POLICIES_READ"),
        ("updateEntry", "ENTRIES_UPDATE"),
        ("acknowledgeClaim", "CLAIMS_WRITE"),
        ("getPersonStatistics", "PERSONS_STATISTICS_READ"),
    ):
        before = a.tokens(policy)
        a.ask(operation, b"<x/>", value="0")
        assert a.tokens(policy) == before - 1, operation
    a.ask("listCidSetEvents", Participant=A, KeyType="CPF")
    assert a.tokens("CIDS_EVENTS_LIST") == 99


# Arithmetic


@pytest.mark.parametrize(
    ("refill", "seconds", "tokens"),
    [
        (Refill.STEPPED, 59.999, 10),
        (Refill.STEPPED, 60, 12),
        (Refill.STEPPED, 119, 12),
        (Refill.STEPPED, 3_600, 100),
        (Refill.CONTINUOUS, 29.999, 10),
        (Refill.CONTINUOUS, 30, 11),
        (Refill.CONTINUOUS, 90, 13),
        (Refill.CONTINUOUS, 3_600, 100),
    ],
)
def test_tokens_come_at_the_end_of_a_period_or_one_by_one(refill: Refill, seconds: float, tokens: int) -> None:
    made = service(DirectorySettings(refill=refill))
    bank = Bank(made, A)
    made.set_balance(USER, A, 10, CPF)
    made.advance(seconds)
    assert bank.tokens(USER, CPF) == tokens


def test_time_ends_before_dates_can_no_longer_be_written() -> None:
    made = service()
    bank = Bank(made, A)
    while made.now() < 199 * 365 * 86_400 * 1_000_000:
        made.advance(365 * 86_400)
    with pytest.raises(ValueError, match="2170"):
        made.advance(400 * 86_400)
    assert bank.tokens(USER, CPF) > 0


def test_asking_often_does_not_change_what_comes_back() -> None:
    limit = Limit(7, 1_000)
    for refill in Refill:
        bucket = Bucket(0, START)
        for second in range(1, 601):
            bucket = refilled(bucket, START + second * 1_000_000, limit, refill)
        assert bucket.tokens == 70


def test_files_of_identifiers_refill_once_a_day(a: Bank) -> None:
    a.service.set_balance("CIDS_FILES_WRITE", A, 0)
    a.service.advance(DAY - 1)
    assert a.tokens("CIDS_FILES_WRITE") == 0
    a.service.advance(1)
    assert a.tokens("CIDS_FILES_WRITE") == 40


@pytest.mark.parametrize(("tokens", "refill", "periods"), [(1, 2, 0), (0, 2, 1), (-1, 2, 1), (-15, 2, 8), (-19, 20, 1)])
def test_how_many_periods_a_client_waits(tokens: int, refill: int, periods: int) -> None:
    assert periods_to_wait(tokens, Limit(refill, 100)) == periods


def test_a_balance_above_the_capacity_stays_until_it_is_used() -> None:
    bucket = refilled(Bucket(50, START), START + 10**9, Limit(2, 10))
    assert bucket.tokens == 50
    assert changed(bucket, 5, Limit(2, 10)).tokens == 50
    assert changed(bucket, -45, Limit(2, 10)).tokens == 5
    assert refilled(Bucket(3, START), START - 1, Limit(2, 10)).tokens == 3, "time that goes back changes nothing"


@pytest.mark.parametrize(
    ("policy", "participant", "payer", "message"),
    [
        ("NOPE", A, "", "unknown policy 'NOPE'"),
        ("KEYS_CHECK", C, "", "unknown participant"),
        (USER, A, "1", "payer '1' must have 11 or 14 digits"),
    ],
)
def test_balances_of_unknown_buckets_are_refused(
    directory: Service, policy: str, participant: str, payer: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        directory.set_balance(policy, participant, 1, payer)
    with pytest.raises(ValueError, match="tokens="):
        directory.set_balance("KEYS_CHECK", A, 10**10)


def test_a_request_without_a_participant_costs_no_tokens(a: Bank) -> None:
    assert a.ask("createEntry", b"<broken", headers={}).problem == "BadRequest"
    assert a.ask("getClaim", value=str(uuid4()), headers={}).problem == "BadRequest"
    assert (a.tokens("ENTRIES_WRITE"), a.tokens("CLAIMS_READ")) == (36_000, 18_000)
