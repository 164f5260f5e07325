"""Claims: what they ask, what they do to entries, and repeats."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from pixdict.dict import messages
from pixdict.directory.service import Service
from pixdict.directory.settings import DirectorySettings, Participant
from tests.pixdict.directory.kit import CNPJ, CPF, DAY, EMAIL, PHONE, A, B, Bank, C, account, claim, person, service

OTHER = "99988877766"


@pytest.fixture
def phone(a: Bank) -> Any:
    """An entry of a phone at participant A."""
    return a.create().message.entry


def opened(b: Bank, kind: str = "OWNERSHIP") -> messages.CreateClaimResponse:
    answer = b.claim(kind)
    assert answer.status == 201, answer.problem
    made: messages.CreateClaimResponse = answer.message
    return made


def confirmed(a: Bank, b: Bank, kind: str = "OWNERSHIP") -> UUID:
    claim_id = opened(b, kind).claim.id
    assert a.act("acknowledge", claim_id).status == 200
    assert a.act("confirm", claim_id, "USER_REQUESTED").status == 200
    return claim_id


def test_a_new_claim_tells_its_periods(phone: Any, b: Bank) -> None:
    made = opened(b)
    assert (made.claim.status, made.claim.donor_participant) == ("OPEN", A)
    assert made.claim.last_modified == made.response_time
    assert made.claim.resolution_period_end == made.response_time + timedelta(days=7)
    assert made.claim.completion_period_end == made.response_time + timedelta(days=14)
    assert b.ask("getClaim", value=str(made.claim.id)).message.claim == made.claim


def test_a_portability_has_no_completion_period(phone: Any, b: Bank) -> None:
    assert opened(b, "PORTABILITY").claim.completion_period_end is None


@pytest.mark.parametrize(
    ("kind", "key", "key_type", "claimer", "problem"),
    [
        ("OWNERSHIP", PHONE, "PHONE", OTHER, ""),
        ("PORTABILITY", PHONE, "PHONE", CPF, ""),
        ("OWNERSHIP", EMAIL, "EMAIL", OTHER, "ClaimInvalid"),
        ("OWNERSHIP", CPF, "CPF", OTHER, "ClaimInvalid"),
        ("OWNERSHIP", CNPJ, "CNPJ", OTHER, "ClaimInvalid"),
        ("OWNERSHIP", None, "EVP", OTHER, "ClaimInvalid"),
        ("PORTABILITY", EMAIL, "EMAIL", CPF, ""),
        ("PORTABILITY", CPF, "CPF", CPF, ""),
        ("PORTABILITY", CNPJ, "CNPJ", CNPJ, ""),
        ("PORTABILITY", None, "EVP", CPF, "ClaimInvalid"),
        ("THEFT", PHONE, "PHONE", OTHER, "ClaimInvalid"),
        ("OWNERSHIP", PHONE, "PHONE", CPF, "ClaimTypeInconsistent"),
        ("PORTABILITY", PHONE, "PHONE", OTHER, "ClaimTypeInconsistent"),
    ],
)
def test_which_keys_can_be_claimed_how(
    a: Bank, b: Bank, kind: str, key: str | None, key_type: str, claimer: str, problem: str
) -> None:
    owner = person(CNPJ, "Padaria") if key_type == "CNPJ" else person()
    made = a.create(key, key_type, owner=owner).message.entry.key
    answer = b.claim(kind, made, key_type, claimer=person(claimer, "Maria"))
    assert (answer.problem, answer.status) == (problem, 400 if problem else 201)
    assert b.service.storage.counts()["claims"] == (0 if problem else 1)


def test_a_claim_names_each_wrong_field(phone: Any, b: Bank) -> None:
    refused = b.claim(key="1", at=account(B, "-"), claimer=person(name="1"))
    assert refused.wrong == ["claim.key", "claim.claimerAccount.accountNumber", "claim.claimer.name"]


def test_a_claim_needs_a_key_that_is_registered(b: Bank) -> None:
    refused = b.claim()
    assert (refused.status, refused.problem) == (404, "ClaimKeyNotFound")


def test_a_key_has_one_claim_at_a_time(a: Bank, b: Bank, phone: Any) -> None:
    claim_id = opened(b).claim.id
    assert b.claim().problem == "ClaimAlreadyExistsForKey"
    b.act("cancel", claim_id, "USER_REQUESTED")
    claim_id = confirmed(a, b)
    assert b.claim().problem == "ClaimAlreadyExistsForKey", "the entry is gone, the claim is not"


def test_a_key_that_one_has_already_cannot_be_claimed(a: Bank, phone: Any) -> None:
    assert a.claim("PORTABILITY").problem == "ClaimResultingEntryAlreadyExists"


def test_a_claimer_with_a_full_account_is_refused(a: Bank, b: Bank, phone: Any) -> None:
    for _ in range(5):
        b.create(None, "EVP")
    assert b.claim("PORTABILITY").problem == "EntryLimitExceeded"


def test_a_claim_of_ownership_from_start_to_end(a: Bank, b: Bank, phone: Any) -> None:
    claim_id = opened(b).claim.id
    found = b.look_up(PHONE)
    assert found.message.entry.open_claim_creation_date is not None, "the entry is still there"
    assert a.act("acknowledge", claim_id).message.claim.status == "WAITING_RESOLUTION"
    assert a.ask("updateEntry", _update(), value=PHONE).status == 200, "its account may still change"
    assert a.delete(PHONE).problem == "EntryLockedByClaim"
    after = a.act("confirm", claim_id, "USER_REQUESTED").message
    assert (after.claim.status, after.claim.confirm_reason) == ("CONFIRMED", "USER_REQUESTED")
    assert after.claim.completion_period_end == after.response_time, "brought forward"
    assert b.look_up(PHONE).problem == "NotFound", "gone between confirmation and completion"
    assert a.create().problem == b.create().problem == "EntryLockedByClaim"
    done = b.act("complete", claim_id)
    assert done.message.claim.status == "COMPLETED"
    assert done.message.key_ownership_date == done.message.entry_creation_date == done.message.response_time
    entry = a.look_up(PHONE).message.entry
    assert (entry.account.participant, entry.owner.tax_id_number) == (B, OTHER)
    assert entry.open_claim_creation_date is None


def _update() -> messages.UpdateEntryRequest:
    return messages.UpdateEntryRequest(key=PHONE, account=account(number="9"), reason="USER_REQUESTED")


def test_portability_keeps_the_date_since_when_the_owner_has_the_key(a: Bank, b: Bank, phone: Any) -> None:
    a.service.advance(DAY)
    claim_id = confirmed(a, b, "PORTABILITY")
    done = b.act("complete", claim_id).message
    assert done.key_ownership_date == phone.key_ownership_date < done.entry_creation_date
    assert a.look_up(PHONE).message.entry.key_ownership_date == phone.key_ownership_date


def test_a_silent_owner_loses_the_key_after_seven_days_and_the_claimer_has_it_after_fourteen(
    a: Bank, b: Bank, phone: Any
) -> None:
    claim_id = opened(b).claim.id
    a.act("acknowledge", claim_id)
    assert a.act("confirm", claim_id, "DEFAULT_OPERATION").problem == "ClaimResolutionPeriodNotEnded"
    a.service.advance(7 * DAY)
    assert a.act("confirm", claim_id, "DEFAULT_OPERATION").status == 200
    assert b.act("complete", claim_id).problem == "ClaimCompletionPeriodNotEnded"
    a.service.advance(7 * DAY)
    assert b.act("complete", claim_id).status == 200


def test_a_silent_owner_keeps_the_key_when_it_is_a_portability(a: Bank, b: Bank, phone: Any) -> None:
    claim_id = opened(b, "PORTABILITY").claim.id
    a.act("acknowledge", claim_id)
    assert a.act("cancel", claim_id, "DEFAULT_OPERATION").problem == "ClaimResolutionPeriodNotEnded"
    a.service.advance(7 * DAY)
    ended = a.act("cancel", claim_id, "DEFAULT_OPERATION").message.claim
    assert (ended.status, ended.cancel_reason, ended.cancelled_by) == ("CANCELLED", "DEFAULT_OPERATION", "DONOR")
    assert b.look_up(PHONE).message.entry.open_claim_creation_date is None


def test_a_claimer_who_never_proves_possession_gives_up_after_thirty_days(a: Bank, b: Bank, phone: Any) -> None:
    claim_id = confirmed(a, b)
    assert b.act("cancel", claim_id, "DEFAULT_OPERATION").problem == "ClaimCompletionPeriodNotEnded"
    a.service.advance(30 * DAY)
    assert b.act("cancel", claim_id, "DEFAULT_OPERATION").message.claim.cancelled_by == "CLAIMER"


def test_cancelling_after_the_confirmation_does_not_restore_the_entry(a: Bank, b: Bank, phone: Any) -> None:
    claim_id = confirmed(a, b)
    assert b.act("cancel", claim_id, "USER_REQUESTED").status == 200
    assert b.look_up(PHONE).problem == "NotFound"
    assert a.create().status == 201, "the key is free"


def test_repeats_get_the_same_answer_and_change_nothing(a: Bank, b: Bank, phone: Any) -> None:
    claim_id, request_id = opened(b).claim.id, uuid4()
    for bank, action, reason in ((a, "acknowledge", None), (a, "confirm", "USER_REQUESTED"), (b, "complete", None)):
        first = bank.act(action, claim_id, reason, request_id)
        a.service.advance(1)
        again = bank.act(action, claim_id, reason, request_id)
        assert first.message == replace(
            again.message,
            response_time=first.message.response_time,
            correlation_id=first.message.correlation_id,
        )
    assert b.act("complete", claim_id, request_id=uuid4()).problem == "ClaimOperationInvalid"
    assert a.act("acknowledge", claim_id).problem == "ClaimOperationInvalid"


def test_a_repeated_cancellation_must_be_the_same(a: Bank, b: Bank, phone: Any) -> None:
    claim_id = opened(b).claim.id
    first = b.act("cancel", claim_id, "FRAUD")
    assert b.act("cancel", claim_id, "FRAUD").message.claim == first.message.claim
    assert b.act("cancel", claim_id, "USER_REQUESTED").problem == "ClaimOperationInvalid"
    assert a.act("cancel", claim_id, "FRAUD").problem == "ClaimOperationInvalid"


def test_a_repeated_confirmation_must_be_the_same(a: Bank, b: Bank, phone: Any) -> None:
    claim_id = confirmed(a, b, "PORTABILITY")
    assert a.act("confirm", claim_id, "ACCOUNT_CLOSURE").problem == "ClaimOperationInvalid"


def test_a_request_id_of_another_entry_does_not_complete_a_claim(a: Bank, b: Bank, phone: Any) -> None:
    used = uuid4()
    b.create(EMAIL, "EMAIL", request_id=used)
    claim_id = confirmed(a, b)
    assert b.act("complete", claim_id, request_id=used).problem == "RequestIdAlreadyUsed"
    assert b.act("complete", claim_id, request_id=UUID(int=0)).problem == "BadRequest"
    assert b.ask("getClaim", value=str(claim_id)).message.claim.status == "CONFIRMED"


def test_one_participant_may_be_on_both_sides_of_a_claim_of_ownership(a: Bank, phone: Any) -> None:
    claim_id = a.claim(claimer=person(OTHER, "Maria")).message.claim.id
    for action, reason in (("acknowledge", None), ("confirm", "USER_REQUESTED"), ("complete", None)):
        assert a.act(action, claim_id, reason).status == 200


def test_strangers_see_and_do_nothing(phone: Any, a: Bank) -> None:
    made = service(DirectorySettings(participants={ispb: Participant() for ispb in (A, B, C)}))
    Bank(made, A).create()
    claim_id = opened(Bank(made, B)).claim.id
    stranger = Bank(made, C)
    assert stranger.ask("getClaim", value=str(claim_id)).problem == "Forbidden"
    for action, reason in (("acknowledge", None), ("confirm", "FRAUD"), ("cancel", "FRAUD"), ("complete", None)):
        assert stranger.act(action, claim_id, reason).problem == "Forbidden"
    assert stranger.ask("listClaims", Participant=B).problem == "Forbidden"


def test_claims_that_are_not_there(a: Bank) -> None:
    nothing = uuid4()
    assert a.act("acknowledge", nothing).problem == "NotFound"
    assert a.ask("getClaim", value=str(nothing)).problem == "NotFound"
    assert a.ask("getClaim", value="x").problem == "BadRequest"
    message = messages.AcknowledgeClaimRequest(claim_id=nothing, participant=A)
    assert a.ask("acknowledgeClaim", message, value=str(uuid4())).problem == "BadRequest"


def many(directory: Service, number: int) -> list[UUID]:
    """Claims of B for phones of A, a second apart."""
    a, b = Bank(directory, A), Bank(directory, B)
    made = []
    for n in range(number):
        key = f"+55619{n:08}"
        assert a.create(key, at=account(A, str(n))).status == 201
        made.append(b.claim(key=key, at=account(B, str(n))).message.claim.id)
        directory.advance(1)
    return made


def test_lists_are_in_order_of_change_and_tell_whether_there_is_more(directory: Service, a: Bank, b: Bank) -> None:
    made = many(directory, 25)
    listed = b.ask("listClaims", Participant=B).message
    assert ([one.id for one in listed.claims], listed.has_more_elements) == (made[:20], True)
    rest = b.ask("listClaims", Participant=B, ModifiedAfter=_iso(listed.claims[-1].last_modified)).message
    assert ([one.id for one in rest.claims], rest.has_more_elements) == (made[19:], False), "both ends are in"
    a.act("acknowledge", made[0])
    everything = b.ask("listClaims", Participant=B, Limit=200).message
    assert [one.id for one in everything.claims] == [*made[1:], made[0]]
    window = b.ask("listClaims", Participant=B, ModifiedBefore=_iso(everything.claims[1].last_modified)).message
    assert [one.id for one in window.claims] == made[1:3]


def _iso(moment: Any) -> str:
    return str(moment.isoformat())


def test_lists_are_filtered_by_role_status_and_type(directory: Service, a: Bank, b: Bank) -> None:
    first, second = many(directory, 2)
    a.act("acknowledge", first)

    def ids(bank: Bank, **parameters: Any) -> list[UUID]:
        return [one.id for one in bank.ask("listClaims", Participant=bank.ispb, **parameters).message.claims]

    both = [second, first]
    assert ids(a, IsDonor="true") == ids(b, IsClaimer="true") == ids(a) == both
    assert ids(a, IsClaimer="true") == ids(b, IsDonor="true") == []
    assert ids(a, IsDonor="true", IsClaimer="true") == ids(a, IsDonor="false", IsClaimer="false") == both
    assert ids(a, Status="OPEN") == [second]
    assert ids(a, Status=["OPEN", "WAITING_RESOLUTION"]) == ids(a, Status="OPEN,WAITING_RESOLUTION") == both
    assert ids(a, Status="CANCELLED") == ids(a, Type="PORTABILITY") == []
    assert ids(a, Type="OWNERSHIP") == both


@pytest.mark.parametrize(
    "parameters",
    [
        {"Limit": 201},
        {"Limit": 0},
        {"Limit": "many"},
        {"Status": "SLEEPING"},
        {"Type": "THEFT"},
        {"IsDonor": "yes"},
        {"ModifiedAfter": "yesterday"},
        {"ModifiedAfter": "2026-01-02T00:00:00"},
        {"Limit": ["1", "2"]},
        {"Participant": "1"},
    ],
)
def test_wrong_parameters_of_lists_are_refused(b: Bank, parameters: dict[str, Any]) -> None:
    refused = b.ask("listClaims", **({"Participant": B} | parameters))
    assert refused.status in (400, 403)
    assert refused.problem == "BadRequest"


def test_a_direct_participant_acts_for_its_indirect_ones() -> None:
    participants = {A: Participant(), B: Participant(), C: Participant(direct=B)}
    made = service(DirectorySettings(participants=participants))
    a, b = Bank(made, A), Bank(made, B)
    a.create()
    assert b.ask("createClaim", claim(at=account(C))).status == 201
    assert b.ask("listClaims", Participant=C).message.claims[0].claimer_account.participant == C
    assert b.ask("listClaims", Participant=B).message.claims == []
    assert len(b.ask("listClaims", Participant=B, IncludeIndirectParticipants="true").message.claims) == 1
