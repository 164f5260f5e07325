"""Signatures of documents."""

from datetime import UTC, datetime, timedelta

import pytest
from lxml import etree
from signxml.verifier import SignatureConfiguration, XMLVerifier

from pixdict.dict import signatures, xml
from pixdict.dict.messages import CheckKeysRequest
from pixdict.dict.signatures import DS, InvalidSignature, Signer

NOW = datetime(2026, 1, 2, tzinfo=UTC)
MESSAGE = CheckKeysRequest(keys=["a@b", "joão"])


@pytest.fixture(scope="module")
def signer() -> Signer:
    return signatures.self_signed("12345678", NOW)


def signed(signer: Signer) -> bytes:
    return xml.serialised(signatures.sign(xml.to_element(MESSAGE), signer))


def test_a_signed_document_is_verified_and_reads_as_before(signer: Signer) -> None:
    document = signed(signer)
    signatures.verify(xml.parse(document), signer.certificate, NOW)
    assert xml.from_bytes(CheckKeysRequest, document, strict=True) == MESSAGE


def test_the_signature_has_the_layout_of_the_directory(signer: Signer) -> None:
    root = xml.parse(signed(signer))
    assert root[0].tag == xml.SIGNATURE
    assert root[0].prefix == "ds"
    uris = [reference.get("URI") for reference in root.iter(f"{{{DS}}}Reference")]
    assert uris == ["#" + next(root.iter(f"{{{DS}}}KeyInfo")).get("Id", ""), ""]
    algorithms = {element.get("Algorithm") for element in root.iter() if element.get("Algorithm")}
    assert algorithms == {signatures.EXCLUSIVE, signatures.ENVELOPED, signatures.RSA_SHA256, signatures.SHA256}
    assert signatures.issuer_serial(root[0]) == ("CN=12345678", str(signer.certificate.serial_number))


def test_another_implementation_verifies_it(signer: Signer) -> None:
    expected = SignatureConfiguration(expect_references=2, verification_time=NOW)
    verified = XMLVerifier().verify(signed(signer), x509_cert=signer.certificate, expect_config=expected)
    assert isinstance(verified, list)
    assert etree.QName(verified[1].signed_xml).localname == "CheckKeysRequest"


def test_signing_again_replaces_the_signature(signer: Signer) -> None:
    root = signatures.sign(signatures.sign(xml.to_element(MESSAGE), signer), signer)
    assert len(signatures.find(root)) == 1
    signatures.verify(xml.parse(xml.serialised(root)), signer.certificate, NOW)


def test_a_changed_document_is_refused(signer: Signer) -> None:
    for old, new in ((b"a@b", b"a@c"), (b"<Keys>", b"<Keys><Key>x</Key>")):
        with pytest.raises(InvalidSignature, match="signature is wrong"):
            signatures.verify(xml.parse(signed(signer).replace(old, new)), signer.certificate, NOW)


def test_a_missing_an_empty_and_a_second_signature_are_refused(signer: Signer) -> None:
    with pytest.raises(InvalidSignature, match="missing"):
        signatures.verify(xml.to_element(MESSAGE), signer.certificate, NOW)
    for twice in (b"<Signature/>", b'<ds:Signature xmlns:ds="http://www.w3.org/2000/09/xmldsig#"/>'):
        document = signed(signer).replace(b"<Keys>", twice + b"<Keys>")
        with pytest.raises(InvalidSignature, match="expected one signature"):
            signatures.verify(xml.parse(document), signer.certificate, NOW)


def test_a_signature_of_somebody_else_is_refused(signer: Signer) -> None:
    other = signatures.self_signed("12345678", NOW)
    with pytest.raises(InvalidSignature, match="names another certificate"):
        signatures.verify(xml.parse(signed(other)), signer.certificate, NOW)
    lying = Signer(other.key, signer.certificate)
    with pytest.raises(InvalidSignature, match="signature is wrong"):
        signatures.verify(xml.parse(signed(lying)), signer.certificate, NOW)


def test_a_signature_that_leaves_a_part_out_is_refused(signer: Signer) -> None:
    document = signed(signer).replace(b'<ds:Reference URI="">', b'<ds:Reference URI="#elsewhere">')
    with pytest.raises(InvalidSignature, match="must cover the document"):
        signatures.verify(xml.parse(document), signer.certificate, NOW)


def test_a_certificate_out_of_its_time_is_refused(signer: Signer) -> None:
    with pytest.raises(InvalidSignature, match="valid"):
        signatures.verify(xml.parse(signed(signer)), signer.certificate, NOW + timedelta(days=10_000))


def test_a_signer_is_kept_as_pem(signer: Signer) -> None:
    again = Signer.of_pem(*signer.pem())
    signatures.verify(xml.parse(signed(again)), signer.certificate, NOW)
