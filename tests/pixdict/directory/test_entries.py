"""Entries: create, look up, update, delete, check."""

from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from pixdict.dict import messages
from pixdict.dict.entries import Reason
from pixdict.directory.service import Service
from pixdict.directory.settings import DirectorySettings
from tests.pixdict.directory.kit import (
    CNPJ,
    CPF,
    EMAIL,
    PHONE,
    A,
    Answer,
    B,
    Bank,
    account,
    claim,
    create,
    person,
    service,
)
from tests.pixdict.test_keys import ACCEPTED, REFUSED


def update(key: str = PHONE, reason: str = "USER_REQUESTED", **fields: object) -> messages.UpdateEntryRequest:
    return messages.UpdateEntryRequest(key=key, reason=reason, **fields)  # type: ignore[arg-type]


def test_a_created_entry_is_found_by_others(a: Bank, b: Bank) -> None:
    created = a.create()
    assert created.status == 201
    found = b.look_up(PHONE)
    assert found.status == 200
    assert found.message.entry == created.message.entry
    assert found.message.entry.creation_date == found.message.entry.key_ownership_date == created.message.response_time


def test_the_directory_makes_random_keys(a: Bank, b: Bank) -> None:
    keys = {a.create(None, "EVP").message.entry.key for _ in range(3)}
    assert len(keys) == 3
    assert all(UUID(key).version == 4 and b.look_up(key).status == 200 for key in keys)


@pytest.mark.parametrize("key_type", ["CPF", "PHONE", "EMAIL"])
def test_keys_are_taken_and_refused_by_the_table_of_their_type(a: Bank, key_type: str) -> None:
    for number, key in enumerate(ACCEPTED[key_type].split()):
        owner = person(key) if key_type == "CPF" else None
        assert a.create(key, key_type, at=account(number=str(number)), owner=owner).status == 201
    before = a.service.storage.counts()
    for key in REFUSED[key_type]:
        refused = a.create(key, key_type)
        assert (refused.status, refused.problem, refused.wrong) == (400, "EntryInvalid", ["entry.key"])
    assert a.service.storage.counts() == before


def test_a_cnpj_with_letters_is_refused_for_its_owner_alone(a: Bank) -> None:
    # The tax id of an owner is digits only to this day: such a key can be nobody's yet.
    assert a.create(CNPJ, "CNPJ", owner=person(CNPJ, "Padaria")).status == 201
    assert (
        a.create("12abc34501de35", "CNPJ", owner=person(CNPJ, "Padaria")).problem == "EntryTaxIdNumberByDifferentOwner"
    )


@pytest.mark.parametrize(
    ("message", "wrong"),
    [
        (create("x", "IBAN"), ["entry.keyType"]),
        (create(None, "PHONE"), ["entry.key"]),
        (create(str(uuid4()), "EVP"), ["entry.key"]),
        (create(at=account(branch="00001")), ["entry.account.branch"]),
        (create(at=account(number="12-3")), ["entry.account.accountNumber"]),
        (create(at=account(account_type="GOLD")), ["entry.account.accountType"]),
        (create(at=account(opening_date=datetime(999, 1, 1, tzinfo=UTC))), ["entry.account.openingDate"]),
        (create(at=account("123")), ["entry.account.participant"]),
        (create(owner=person("123")), ["entry.owner.taxIdNumber"]),
        (create(owner=replace(person(), type="ROBOT")), ["entry.owner.type"]),
        (create(owner=person(name="R2D2")), ["entry.owner.name"]),
        (create(owner=person(name="x" * 151)), ["entry.owner.name"]),
        (create(owner=replace(person(), trade_name="Shop")), ["entry.owner.tradeName"]),
        (create(owner=replace(person(CNPJ), trade_name="***")), ["entry.owner.tradeName"]),
        (create(owner=replace(person(CNPJ), trade_name="x" * 101)), ["entry.owner.tradeName"]),
        (create(owner=person(CNPJ, "日本")), ["entry.owner.name"]),
        (
            create("x", owner=replace(person(name="2"), tax_id_number="1")),
            ["entry.key", "entry.owner.taxIdNumber", "entry.owner.name"],
        ),
    ],
)
def test_a_wrong_entry_names_each_wrong_field(a: Bank, message: messages.CreateEntryRequest, wrong: list[str]) -> None:
    refused = a.ask("createEntry", message)
    assert (refused.problem, refused.wrong) == ("EntryInvalid", wrong)
    assert a.service.storage.counts()["entries"] == 0


def test_check_digits_are_an_option() -> None:
    strict = Bank(service(DirectorySettings(check_digits=True)), A)
    assert strict.create(CPF, "CPF").problem == "EntryInvalid"
    assert strict.create("12345678909", "CPF", owner=person("12345678909")).status == 201


@pytest.mark.parametrize(
    ("key", "owner", "other", "problem"),
    [
        (CPF, "99988877766", A, "EntryTaxIdNumberByDifferentOwner"),
        (PHONE, CPF, A, "EntryAlreadyExists"),
        (PHONE, CPF, B, "EntryKeyInCustodyOfDifferentParticipant"),
        (PHONE, "99988877766", A, "EntryKeyOwnedByDifferentPerson"),
        (PHONE, "99988877766", B, "EntryKeyOwnedByDifferentPerson"),
    ],
)
def test_a_key_that_is_taken_is_refused(directory: Service, key: str, owner: str, other: str, problem: str) -> None:
    Bank(directory, A).create()
    key_type = "CPF" if key == CPF else "PHONE"
    refused = Bank(directory, other).create(key, key_type, owner=person(owner))
    assert (refused.status, refused.problem) == (400, problem)


@pytest.mark.parametrize(("owner", "most"), [(CPF, 5), (CNPJ, 20)])
def test_an_account_has_at_most_five_keys_or_twenty(a: Bank, owner: str, most: int) -> None:
    for _ in range(most):
        assert a.create(None, "EVP", owner=person(owner)).status == 201
    assert a.create(None, "EVP", owner=person(owner)).problem == "EntryLimitExceeded"
    assert a.create(None, "EVP", owner=person(owner), at=account(A, "2")).status == 201


@pytest.mark.parametrize("reason", Reason)
def test_reasons_of_each_operation(a: Bank, reason: str) -> None:
    allowed = {
        "create": {"USER_REQUESTED", "RECONCILIATION"},
        "update": {"USER_REQUESTED", "BRANCH_TRANSFER", "RECONCILIATION", "RFB_VALIDATION"},
        "update EVP": {"BRANCH_TRANSFER", "RECONCILIATION", "RFB_VALIDATION"},
        "delete": {"USER_REQUESTED", "ACCOUNT_CLOSURE", "RECONCILIATION", "FRAUD", "RFB_VALIDATION"},
    }
    a.create()
    random_key = a.create(None, "EVP").message.entry.key
    answers: dict[str, Answer] = {
        "create": a.create(EMAIL, "EMAIL", reason=reason),
        "update": a.ask("updateEntry", update(reason=reason, account=account()), value=PHONE),
        "update EVP": a.ask("updateEntry", update(random_key, reason, account=account()), value=random_key),
        "delete": a.delete(PHONE, reason),
    }
    for name, answer in answers.items():
        assert (answer.problem or "allowed") == ("allowed" if reason in allowed[name] else "InvalidReason"), name


def test_the_same_request_again_gets_the_same_answer(a: Bank) -> None:
    message = create()
    first, again = a.ask("createEntry", message), a.ask("createEntry", message)
    assert (first.status, again.status) == (201, 201)
    assert first.message.entry == again.message.entry
    assert a.service.storage.counts()["cid_events"] == 1


def test_the_same_request_for_a_random_key_again_gets_the_same_key(a: Bank) -> None:
    message = create(None, "EVP")
    keys = {a.ask("createEntry", message).message.entry.key for _ in range(3)}
    assert len(keys) == 1
    assert a.service.storage.counts()["entries"] == 1


def test_a_request_id_with_other_data_is_refused(a: Bank, b: Bank) -> None:
    message = create()
    a.ask("createEntry", message)
    other = create(EMAIL, "EMAIL", request_id=message.request_id)
    assert a.ask("createEntry", other).problem == "RequestIdAlreadyUsed"
    assert b.create(EMAIL, "EMAIL", request_id=message.request_id).status == 201, "ids are of one participant"


def test_a_repeat_after_an_update_gets_the_entry_as_it_is_now(a: Bank) -> None:
    message = create()
    a.ask("createEntry", message)
    a.ask("updateEntry", update(account=account(number="9")), value=PHONE)
    assert a.ask("createEntry", message).message.entry.account.account_number == "9"


def test_a_repeat_after_a_deletion_does_not_bring_the_entry_back(a: Bank) -> None:
    message = create()
    a.ask("createEntry", message)
    a.delete(PHONE)
    assert a.ask("createEntry", message).problem == "RequestIdAlreadyUsed"
    assert a.ask("createEntry", create()).status == 201


def test_a_request_id_must_be_random(a: Bank) -> None:
    assert a.create(request_id=UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")).problem == "BadRequest"


def test_a_lookup_of_ones_own_key_is_refused_unless_it_is_allowed(a: Bank) -> None:
    a.create()
    assert a.look_up(PHONE).problem == "EntryCannotBeQueriedForBookTransfer"
    lenient = Bank(service(DirectorySettings(refuse_own_lookups=False)), A)
    lenient.create()
    assert lenient.look_up(PHONE).status == 200


def test_a_lookup_of_nothing_and_of_no_key(b: Bank) -> None:
    assert (b.look_up(PHONE).status, b.look_up(PHONE).problem) == (404, "NotFound")
    assert b.look_up("hello").problem == "BadRequest"


@pytest.mark.parametrize("missing", ["PI-RequestingParticipant", "PI-PayerId", "PI-EndToEndId"])
def test_a_lookup_needs_its_three_headers(a: Bank, b: Bank, missing: str) -> None:
    a.create()
    headers = {"PI-RequestingParticipant": B, "PI-PayerId": CPF, "PI-EndToEndId": "E1"}
    del headers[missing]
    refused = b.ask("getEntry", value=PHONE, headers=headers)
    assert (refused.status, refused.problem) == (400, "BadRequest")
    assert missing in refused.message.detail


def test_lookups_of_companies_may_be_cached_for_three_minutes(a: Bank, b: Bank) -> None:
    a.create()
    a.create(EMAIL, "EMAIL", owner=person(CNPJ, "Padaria"))
    assert b.look_up(PHONE).headers["Cache-Control"] == "no-store"
    assert b.look_up(EMAIL).headers["Cache-Control"] == "private, max-age=180"


def test_statistics_count_accounts_and_payments(a: Bank, b: Bank) -> None:
    a.create()
    b.look_up(PHONE, payment="E1")
    b.service.payment_sent("E1", CPF)
    found = b.look_up(PHONE, IncludeStatistics="true").message
    assert found.owner_statistics.entries.registered_accounts == 1
    assert found.key_statistics.spi.settlements.d90 == 1
    alone = b.ask("getEntryStatistics", value=PHONE).message
    assert alone.owner_statistics.entries.registered_accounts == 1
    assert b.ask("getPersonStatistics", value=CPF).message.person_statistics.entries.registered_accounts == 1
    assert b.ask("getPersonStatistics", value="1").problem == "BadRequest"
    assert b.ask("getEntryStatistics", value=EMAIL).problem == "NotFound"
    assert b.look_up(PHONE, IncludeStatistics="maybe").problem == "BadRequest"


def test_an_update_changes_the_account_and_the_names(a: Bank, b: Bank) -> None:
    a.create()
    moved = a.ask("updateEntry", update(account=account(number="9"), owner=person(name="João S Silva")), value=PHONE)
    assert moved.status == 200
    entry = b.look_up(PHONE).message.entry
    assert entry == moved.message.entry
    assert (entry.account.account_number, entry.owner.name) == ("9", "João S Silva")


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (update(EMAIL, account=account()), "BadRequest"),
        (update(), "BadRequest"),
        (update(account=account(number="-")), "EntryInvalid"),
        (update(owner=person(name="1")), "EntryInvalid"),
        (update(owner=person("99988877766")), "EntryInvalid"),
        (update(account=account(B)), "Forbidden"),
    ],
)
def test_updates_that_are_refused_change_nothing(a: Bank, b: Bank, message: object, problem: str) -> None:
    entry = a.create().message.entry
    assert a.ask("updateEntry", message, value=PHONE).problem == problem  # type: ignore[arg-type]
    assert b.look_up(PHONE).message.entry == entry


def test_only_the_participant_that_holds_a_key_changes_it(a: Bank, b: Bank) -> None:
    a.create()
    assert b.ask("updateEntry", update(account=account(B)), value=PHONE).problem == "Forbidden"
    assert b.ask("updateEntry", update(account=account(A)), value=PHONE).problem == "Forbidden"
    assert b.delete(PHONE).problem == "Forbidden"
    assert b.delete(PHONE, participant=A).problem == "Forbidden"
    assert a.ask("updateEntry", update(EMAIL, account=account()), value=EMAIL).problem == "NotFound"


def test_a_deleted_key_is_free_again(a: Bank, b: Bank) -> None:
    a.create()
    assert a.delete(PHONE).message.key == PHONE
    assert b.look_up(PHONE).problem == "NotFound"
    assert a.delete(PHONE).problem == "NotFound"
    assert b.create(owner=person("99988877766")).status == 201
    message = messages.DeleteEntryRequest(key=EMAIL, participant=A, reason="FRAUD")
    assert a.ask("deleteEntry", message, value=PHONE).problem == "BadRequest"


def test_keys_are_checked_many_at_once(a: Bank) -> None:
    a.create()
    checked = a.ask("checkKeys", messages.CheckKeysRequest(keys=[PHONE, EMAIL])).message.keys
    assert [(one.key, one.has_entry) for one in checked] == [(PHONE, True), (EMAIL, False)]


@pytest.mark.parametrize("keys", [[], [EMAIL] * 201, [EMAIL, "hello"]], ids=["none", "201", "no key"])
def test_batches_of_keys_that_are_refused(a: Bank, keys: list[str]) -> None:
    refused = a.ask("checkKeys", messages.CheckKeysRequest(keys=keys))
    assert (refused.status, refused.problem) == (400, "BadRequest")


def test_keys_are_checked_for_the_first_participant_when_nothing_says_who_asks(a: Bank, b: Bank) -> None:
    assert a.ask("checkKeys", messages.CheckKeysRequest(keys=[EMAIL]), headers={}).status == 200
    assert a.ask("checkKeys", b"<broken", headers={}).problem == "BadRequest"
    assert (a.tokens("KEYS_CHECK"), b.tokens("KEYS_CHECK")) == (69, 70), "who sends what cannot be read is not known"


def test_a_change_of_an_owner_is_of_the_participant_that_holds_the_key(b: Bank) -> None:
    b.create(PHONE)
    message = messages.UpdateEntryRequest(key=PHONE, owner=person(CPF, "Ana"), reason="USER_REQUESTED")
    assert b.ask("updateEntry", message, value=PHONE, headers={}).status == 200
    assert b.tokens("ENTRIES_UPDATE") == 599
    unknown = replace(message, key="+5500000000")
    assert b.ask("updateEntry", unknown, value="+5500000000", headers={}).problem == "NotFound"


def test_strangers_and_those_who_act_for_others_are_refused(directory: Service, a: Bank) -> None:
    stranger = Bank(directory, "00000000")
    assert stranger.create().problem == "Forbidden"
    assert stranger.look_up(PHONE).problem == "Forbidden"
    assert a.create(at=account(B)).problem == "Forbidden"
    assert a.create(at=account("00000000")).problem == "ParticipantInvalid"
    assert a.ask("createEntry", create(at=account("00000000")), headers={}).problem == "Forbidden"
    assert a.ask("createClaim", claim(at=account(B))).problem == "Forbidden"
    assert directory.storage.counts()["entries"] == 0


def test_a_write_without_the_header_is_of_the_participant_it_speaks_of(a: Bank) -> None:
    assert a.ask("createEntry", create(), headers={}).status == 201
    assert a.tokens("ENTRIES_WRITE") == 35_999
