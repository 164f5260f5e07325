"""Signatures of writes, in each mode."""

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from pixdict.dict import messages, signatures, xml
from pixdict.dict.signatures import Signer
from pixdict.directory.settings import DirectorySettings, Participant
from tests.pixdict.directory.kit import EMAIL, PHONE, A, B, Bank, create, service

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture(scope="module")
def signer() -> Signer:
    return signatures.self_signed(A, NOW)


@pytest.fixture
def strict(signer: Signer) -> Bank:
    participants = {A: Participant(certificate=signer.certificate), B: Participant()}
    settings = DirectorySettings(participants=participants, signature="verify", signer=signer)
    return Bank(service(settings), A, signer)


def test_right_signatures_are_taken_and_answers_are_signed(strict: Bank, signer: Signer) -> None:
    answer = strict.create()
    assert answer.status == 201
    signatures.verify(xml.parse(answer.body), signer.certificate, NOW)


def test_a_missing_signature_is_refused_and_costs_a_token(strict: Bank) -> None:
    unsigned = Bank(strict.service, A)
    assert (unsigned.create().status, unsigned.create().problem) == (400, "RequestSignatureInvalid")
    assert strict.tokens("ENTRIES_WRITE") == 35_998
    assert strict.service.storage.counts()["entries"] == 0


def test_a_signature_of_somebody_else_is_refused(strict: Bank) -> None:
    other = Bank(strict.service, A, signatures.self_signed(A, NOW))
    assert other.create().problem == "RequestSignatureInvalid"
    nobody = Bank(strict.service, B, strict.signer)
    assert nobody.create().problem == "RequestSignatureInvalid"


def test_a_changed_request_is_refused(strict: Bank, signer: Signer) -> None:
    body = xml.serialised(signatures.sign(xml.to_element(create()), signer))
    changed = body.replace(PHONE.encode(), b"+5561988887778")
    assert strict.ask("createEntry", changed).problem == "RequestSignatureInvalid"
    assert strict.ask("createEntry", body).status == 201


def test_reads_need_no_signature(strict: Bank) -> None:
    reader = Bank(strict.service, A)
    assert reader.ask("listPolicies").status == 200
    assert reader.ask("checkKeys", messages.CheckKeysRequest(keys=[EMAIL])).status == 200


def test_a_signature_that_must_only_be_there_may_be_empty() -> None:
    lenient = service(DirectorySettings(signature="present"))
    body = xml.to_bytes(create()).replace(b"<Entry>", b"<Signature></Signature><Entry>")
    assert Bank(lenient, A).ask("createEntry", body).status == 201
    assert Bank(lenient, A).create().problem == "RequestSignatureInvalid"


@pytest.mark.parametrize(("category", "direct"), [("I", None), ("AB", None), ("", None), ("A", "1")])
def test_participants_that_make_no_sense_are_refused(category: str, direct: str | None) -> None:
    with pytest.raises(ValueError):
        Participant(category=category, direct=direct)
    with pytest.raises(ValueError, match="not an ISPB"):
        DirectorySettings(participants={"1": Participant()})
    assert replace(Participant(), category="H").category == "H"
