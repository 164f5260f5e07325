"""XML signatures of messages: RSA-SHA256, enveloped, over the whole document and over the KeyInfo that names the
certificate by its issuer and serial number.

Signing is done here, since the reference to the KeyInfo needs it in place before anything is digested; checking
signatures is left to signxml.
"""

from __future__ import annotations

import hashlib
import secrets
from base64 import b64encode
from collections.abc import Sequence
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID
from lxml import etree
from signxml.algorithms import DigestAlgorithm, SignatureMethod
from signxml.exceptions import SignXMLException
from signxml.verifier import SignatureConfiguration, XMLVerifier

from pixdict.dict import xml

DS = "http://www.w3.org/2000/09/xmldsig#"
EXCLUSIVE = "http://www.w3.org/2001/10/xml-exc-c14n#"
ENVELOPED = f"{DS}enveloped-signature"
RSA_SHA256 = "http://www.w3.org/2001/04/xmldsig-more#rsa-sha256"
SHA256 = "http://www.w3.org/2001/04/xmlenc#sha256"

_REQUIRED = SignatureConfiguration(
    location="./",
    expect_references=2,
    signature_methods=frozenset({SignatureMethod.RSA_SHA256}),
    digest_algorithms=frozenset({DigestAlgorithm.SHA256}),
)


class InvalidSignature(ValueError):
    """A document whose signature is missing or wrong. The message says which."""


class Signer(NamedTuple):
    """Who signs: a private key and its certificate."""

    key: rsa.RSAPrivateKey
    certificate: x509.Certificate

    def pem(self) -> tuple[bytes, bytes]:
        """The key and the certificate, as files hold them."""
        key = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return key, self.certificate.public_bytes(serialization.Encoding.PEM)

    @classmethod
    def of_pem(cls, key: bytes, certificate: bytes) -> Signer:
        """The other way round. Raises ValueError."""
        loaded = serialization.load_pem_private_key(key, password=None)
        if not isinstance(loaded, rsa.RSAPrivateKey):
            raise ValueError("the private key is no RSA key")
        return cls(loaded, x509.load_pem_x509_certificate(certificate))


def self_signed(name: str, now: datetime, *, days: int = 3650, hosts: Sequence[str] = ()) -> Signer:
    """A new key and a certificate for tests and simulators. `name` is its subject, as a rule an ISPB; `hosts` are the
    addresses and names of a server with TLS."""
    key = rsa.generate_private_key(65537, 2048)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=days))
        .not_valid_after(now + timedelta(days=days))
    )
    if hosts:
        names = [_general_name(host) for host in hosts]
        built = built.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return Signer(key, built.sign(key, hashes.SHA256()))


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def sign(root: xml.Element, signer: Signer) -> xml.Element:
    """Put a signature into a document, as the first child of its root. An earlier one is replaced."""
    for old in find(root):
        root.remove(old)
    signature = etree.Element(f"{{{DS}}}Signature", nsmap={"ds": DS})
    document = _digest(root)  # without the signature, as the transform `enveloped` will see it
    root.insert(0, signature)
    info = _child(signature, "SignedInfo")
    value = _child(signature, "SignatureValue")
    key_info = _key_info(signature, signer.certificate)
    _child(info, "CanonicalizationMethod", Algorithm=EXCLUSIVE)
    _child(info, "SignatureMethod", Algorithm=RSA_SHA256)
    _reference(info, f"#{key_info.get('Id')}", _digest(key_info), EXCLUSIVE)
    _reference(info, "", document, ENVELOPED, EXCLUSIVE)
    signed = signer.key.sign(_canonical(info), padding.PKCS1v15(), hashes.SHA256())
    value.text = b64encode(signed).decode()
    return root


def find(root: xml.Element) -> list[xml.Element]:
    """The signatures of a document: children of its root, also an empty one without a namespace, as in the samples."""
    return [*root.findall(xml.SIGNATURE), *root.findall("Signature")]


def verify(root: xml.Element, certificate: x509.Certificate, now: datetime | None = None) -> None:
    """Check the signature of a document against the certificate of who should have signed it.

    Raises InvalidSignature.
    """
    found = find(root)
    if not found:
        raise InvalidSignature("the signature is missing")
    if len(found) > 1 or len(list(root.iter(xml.SIGNATURE))) != 1:
        raise InvalidSignature("expected one signature below the root")
    _check_layout(found[0], certificate)
    try:
        XMLVerifier().verify(
            etree.tostring(root), x509_cert=certificate, expect_config=_config_at(now), validate_schema=False
        )
    except (SignXMLException, ValueError, etree.LxmlError) as error:
        raise InvalidSignature(f"the signature is wrong: {error}") from None


def issuer_serial(signature: xml.Element) -> tuple[str, str]:
    """Issuer and serial number of the certificate that a signature names; empty where it names none."""
    path = f"{{{DS}}}KeyInfo/{{{DS}}}X509Data/{{{DS}}}X509IssuerSerial/{{{DS}}}"
    return signature.findtext(f"{path}X509IssuerName") or "", signature.findtext(f"{path}X509SerialNumber") or ""


def named_by(certificate: x509.Certificate) -> tuple[str, str]:
    """What a signature with this certificate says in its KeyInfo."""
    return certificate.issuer.rfc4514_string(), str(certificate.serial_number)


def _config_at(now: datetime | None) -> SignatureConfiguration:
    if now is None:
        return _REQUIRED
    return SignatureConfiguration(
        location=_REQUIRED.location,
        expect_references=_REQUIRED.expect_references,
        signature_methods=_REQUIRED.signature_methods,
        digest_algorithms=_REQUIRED.digest_algorithms,
        verification_time=now,
    )


def _check_layout(signature: xml.Element, certificate: x509.Certificate) -> None:
    """Which parts are signed and how: a valid signature over less than the whole document proves nothing."""
    if issuer_serial(signature) != named_by(certificate):
        raise InvalidSignature("the signature names another certificate")
    key_info = signature.find(f"{{{DS}}}KeyInfo")
    name = "" if key_info is None else key_info.get("Id", "")
    references = {
        reference.get("URI"): [transform.get("Algorithm") for transform in reference.iter(f"{{{DS}}}Transform")]
        for reference in signature.findall(f"{{{DS}}}SignedInfo/{{{DS}}}Reference")
    }
    if not name or references != {f"#{name}": [EXCLUSIVE], "": [ENVELOPED, EXCLUSIVE]}:
        raise InvalidSignature("the signature must cover the document and the KeyInfo, and nothing else")


def _child(parent: xml.Element, name: str, **attributes: str) -> xml.Element:
    return etree.SubElement(parent, f"{{{DS}}}{name}", attributes)


def _key_info(signature: xml.Element, certificate: x509.Certificate) -> xml.Element:
    info = _child(signature, "KeyInfo", Id=f"key-info-{secrets.token_hex(8)}")
    serial = _child(_child(info, "X509Data"), "X509IssuerSerial")
    issuer_name, number = named_by(certificate)
    _child(serial, "X509IssuerName").text = issuer_name
    _child(serial, "X509SerialNumber").text = number
    return info


def _reference(info: xml.Element, uri: str, digest: str, *algorithms: str) -> None:
    reference = _child(info, "Reference", URI=uri)
    transforms = _child(reference, "Transforms")
    for algorithm in algorithms:
        _child(transforms, "Transform", Algorithm=algorithm)
    _child(reference, "DigestMethod", Algorithm=SHA256)
    _child(reference, "DigestValue").text = digest


def _canonical(element: xml.Element) -> bytes:
    return etree.tostring(element, method="c14n", exclusive=True)


def _digest(element: xml.Element) -> str:
    return b64encode(hashlib.sha256(_canonical(element)).digest()).decode()
