"""Documents: there and back, and what is refused."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from pixdict.dict import xml
from pixdict.dict.entries import Account, Entry, Person
from pixdict.dict.messages import (
    CheckedKey,
    CheckKeysRequest,
    CheckKeysResponse,
    CreateEntryRequest,
    GetPolicyResponse,
    ListClaimsResponse,
    ListPoliciesResponse,
    Policy,
)
from pixdict.dict.problems import DirectoryRefused, Problem, Violation

NOW = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
REQUEST = CreateEntryRequest(
    entry=Entry(
        key="12ABC34501DE35",
        key_type="CNPJ",
        account=Account(participant="12345678", account_number="0007654321", account_type="CACC", opening_date=NOW),
        owner=Person(type="LEGAL_PERSON", tax_id_number="11222333000181", name="A & B <Ltda>", trade_name="null"),
    ),
    reason="USER_REQUESTED",
    request_id=UUID("a946d533-7f22-42a5-9a9b-e87cd55c0f4d"),
)
ENVELOPE: dict[str, Any] = {"response_time": NOW, "correlation_id": "a9f13566e19f5ca51329479a5bae60c5"}


@pytest.mark.parametrize(
    "message",
    [
        REQUEST,
        CheckKeysRequest(keys=["a@b", "+5511987654321"]),
        CheckKeysResponse(
            keys=[CheckedKey(key="a@b", has_entry=True), CheckedKey(key="+12", has_entry=False)], **ENVELOPE
        ),
        ListClaimsResponse(has_more_elements=False, **ENVELOPE),
        ListPoliciesResponse(
            category="H",
            policies=[Policy(available_tokens=-15, capacity=50, refill_tokens=2, refill_period_sec=60, name="X")],
            **ENVELOPE,
        ),
        DirectoryRefused("EntryInvalid", "why", violations=[Violation(reason="r", value="<&>")]).problem("c"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_is_the_same_after_writing_and_reading_it(message) -> None:
    assert xml.from_bytes(type(message), xml.to_bytes(message), strict=True) == message


def test_what_xml_has_no_character_for_is_replaced() -> None:
    written = xml.to_bytes(DirectoryRefused("BadRequest", "a\x00b\ud800c\ufffe\td").problem("c"))
    assert xml.from_bytes(Problem, written).detail == "a\ufffdb\ufffdc\ufffd\td"


def test_absent_fields_are_left_out_and_times_have_milliseconds() -> None:
    written = xml.to_bytes(REQUEST).decode()
    assert "Branch" not in written
    assert "<OpeningDate>2026-01-02T03:04:05.678Z</OpeningDate>" in written


def test_a_time_has_four_digits_of_its_year_and_whole_milliseconds() -> None:
    assert xml.spelled_time(datetime(999, 1, 2, 3, 4, 5, 678_999, UTC)) == "0999-01-02T03:04:05.678Z"


def test_a_problem_has_its_own_namespace() -> None:
    root = xml.parse(xml.to_bytes(DirectoryRefused("NotFound").problem()))
    assert root.tag == "{urn:ietf:rfc:7807}problem"
    assert [child.tag for child in root] == ["{urn:ietf:rfc:7807}" + name for name in ("type", "title", "status")]


def test_a_client_lives_with_new_elements_and_comments_and_a_directory_does_not() -> None:
    written = xml.to_bytes(CheckKeysRequest(keys=["a@b"]))
    grown = written.replace(b"<Keys>", b"<New/><!-- why --><Keys>").replace(b"a@b", b"a<!-- -->@b")
    assert xml.from_bytes(CheckKeysRequest, grown).keys == ["a@b"]
    with pytest.raises(xml.InvalidXml, match="unknown element New in CheckKeysRequest"):
        xml.from_bytes(CheckKeysRequest, grown, strict=True)
    with pytest.raises(xml.InvalidXml, match="unknown processing instruction in CheckKeysRequest"):
        xml.from_bytes(CheckKeysRequest, written.replace(b"<Keys>", b"<?php ?><Keys>"), strict=True)
    with pytest.raises(xml.InvalidXml, match="unknown element in CheckKeysRequest/Keys"):
        xml.from_bytes(CheckKeysRequest, written.replace(b"<Key>", b"<X/><Key>"), strict=True)


def test_blanks_around_a_text_are_part_of_it_and_around_a_number_or_time_are_not() -> None:
    asked = xml.to_bytes(CheckKeysRequest(keys=[" a@b\n"]))
    assert xml.from_bytes(CheckKeysRequest, asked).keys == [" a@b\n"]
    policy = Policy(name="A ", available_tokens=-1, capacity=2, refill_tokens=3, refill_period_sec=4)
    moment = datetime(2026, 11, 18, 12, tzinfo=UTC)
    answer = GetPolicyResponse(category="A", policy=policy, response_time=moment, correlation_id="a" * 32)
    spaced = xml.to_bytes(answer).replace(b">-1<", b"> -1\n<").replace(b">2026", b">\n2026")
    assert xml.from_bytes(GetPolicyResponse, spaced) == answer


LAUGHS = (
    b'<!DOCTYPE a [<!ENTITY a "ha">'
    + b"".join(b'<!ENTITY a%d "%s">' % (n + 1, b"&a%d;" % n * 10 if n else b"&a;" * 10) for n in range(9))
    + b"]><CheckKeysRequest><Keys><Key>&a9;</Key></Keys></CheckKeysRequest>"
)
ENTITY = b"<CheckKeysRequest><Keys><Key>&x;</Key></Keys></CheckKeysRequest>"
OUTSIDE = b'<!DOCTYPE a [<!ENTITY x SYSTEM "/etc/hostname">]>' + ENTITY


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"", "no well-formed XML"),
        (b"hello", "no well-formed XML"),
        (b"<CheckKeysRequest>", "no well-formed XML"),
        (b"\xff\xfe\x00", "no well-formed XML"),
        (LAUGHS, "document type is not allowed"),
        (OUTSIDE, "document type is not allowed"),
        (OUTSIDE.decode().encode("utf-16"), "document type is not allowed"),
        (ENTITY, "Entity 'x' not defined"),
        (b"<" + b"a><" * 3000 + b"/a>", "no well-formed XML"),
        (b"<Other/>", "expected the element CheckKeysRequest, got Other"),
        (b"<CheckKeysRequest/>", "missing required field `Keys`"),
        (b"<CheckKeysRequest><Keys/><Keys/></CheckKeysRequest>", "element Keys occurs twice"),
        (b"<CheckKeysRequest><Keys><Key><b/></Key></Keys></CheckKeysRequest>", "expected text in"),
        (b"<a>" + b"x" * xml.MAX_BYTES + b"</a>", "at most 1048576 are read"),
    ],
    ids=lambda value: value[:20] if isinstance(value, bytes) else None,
)
def test_documents_that_are_refused(document: bytes, message: str) -> None:
    with pytest.raises(xml.InvalidXml, match=message):
        xml.from_bytes(CheckKeysRequest, document)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((b"a946d533", b"xyz"), "RequestId"),
        ((b"2026-01-02T03:04:05.678Z", b"yesterday"), "OpeningDate"),
        ((b"2026-01-02T03:04:05.678Z", b"2026-01-02T03:04:05"), "OpeningDate"),
        ((b"<Reason>USER_REQUESTED</Reason>", b""), "Reason"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(change: tuple[bytes, bytes], message: str) -> None:
    with pytest.raises(xml.InvalidXml, match=message):
        xml.from_bytes(CreateEntryRequest, xml.to_bytes(REQUEST).replace(*change))


def test_a_number_that_is_none_is_refused() -> None:
    document = b'<problem xmlns="urn:ietf:rfc:7807"><type>t</type><title>t</title><status>4x</status></problem>'
    with pytest.raises(xml.InvalidXml, match="status"):
        xml.from_bytes(Problem, document)
