"""Our documents and the official file."""

import pytest
from lxml import etree

from pixdict.dict import xml
from pixdict.dict.operations import BASE, OPERATIONS
from pixdict.directory.requests import route
from tests.pixdict.directory import openapi
from tests.pixdict.directory.openapi import Mismatch


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_have_the_method_path_and_status_of_the_file(name: str) -> None:
    operation, declared = OPERATIONS[name], openapi.operation(name)
    assert (operation.method, operation.path) == (declared["method"], declared["path"])
    assert str(operation.ok) in declared["responses"]
    required = {parameter["name"] for parameter in declared.get("parameters", ()) if parameter.get("required")}
    assert ("PI-RequestingParticipant" in required) is (operation.participant_header and name != "getEntryByCid")


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_official_example_is_read_and_written_again_as_it_was(name: str) -> None:
    operation = OPERATIONS[name]
    for key, documents in openapi.examples(name).items():
        kind = operation.request if key == "request" else operation.response
        if kind is None or not (key == "request" or key.startswith("2")):
            continue
        assert documents
        for document in documents:
            message = xml.from_bytes(kind, document, strict=True)
            assert _flat(xml.to_bytes(message)) == _flat(document)


def _flat(document: bytes) -> set[tuple[str, str, str]]:
    """Paths and texts of the leaves, without signatures and the spelling of times."""
    root = etree.fromstring(document)
    tree = root.getroottree()
    return {
        (tree.getpath(one), (one.text or "").strip().replace(".000Z", "Z"), str(sorted(one.attrib.items())))
        for one in root.iter()
        if len(one) == 0 and one.tag != "Signature"
    }


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_path_leads_to_its_operation(name: str) -> None:
    operation = OPERATIONS[name]
    path = operation.path_for(Key="a/b+c@d", ClaimId="1", Cid="2", TaxIdNumber="3", policy="4")
    found = route(operation.method, path)
    assert found is not None
    assert found.operation is operation
    assert found.value in ("", "a/b+c@d", "1", "2", "3", "4")


def test_other_paths_lead_nowhere_and_keys_are_checked_on_the_other_host_too() -> None:
    for method, path in (("GET", "/"), ("GET", "/api/v2/claims"), ("PATCH", "/api/v2/claims/"), ("GET", "/api/v3/x")):
        assert route(method, path) is None
    assert route("POST", "/api-np/v2/keys/check") is not None
    assert route("GET", "/api-np/v2/policies/") is None
    assert route("GET", f"{BASE}/policies/") is not None


POLICY = (
    "<GetPolicyResponse><CorrelationId>{id}</CorrelationId><ResponseTime>2026-01-02T00:00:00.000Z</ResponseTime>"
    "<Category>{category}</Category><Policy><AvailableTokens>{tokens}</AvailableTokens><Capacity>1</Capacity>"
    "<RefillTokens>1</RefillTokens><RefillPeriodSec>1</RefillPeriodSec>{more}</Policy></GetPolicyResponse>"
)
GOOD = {"id": "a" * 32, "category": "H", "tokens": "-15", "more": "<Name>X</Name>"}


def test_the_check_takes_a_right_document() -> None:
    openapi.check("getPolicy", 200, "application/xml", POLICY.format_map(GOOD).encode())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"category": "I"}, "is not one of"),
        ({"id": "x"}, "does not match"),
        ({"tokens": "many"}, "is not of type 'integer'"),
        ({"more": ""}, "'Name' is a required property"),
        ({"more": "<Name>X</Name><Extra/>"}, "unknown element Extra"),
        ({"more": "<Name>X</Name><Name>X</Name>"}, "has Name twice"),
    ],
)
def test_the_check_refuses_wrong_documents(change: dict[str, str], message: str) -> None:
    with pytest.raises(Mismatch, match=message):
        openapi.check("getPolicy", 200, "application/xml", POLICY.format_map(GOOD | change).encode())


def test_the_check_refuses_wrong_statuses_roots_and_media_types() -> None:
    good = POLICY.format_map(GOOD).encode()
    for name, status, kind in (
        ("getPolicy", 201, "application/xml"),
        ("listPolicies", 200, "application/xml"),
        ("getPolicy", 200, "text/xml"),
        ("getPolicy", 404, "application/problem+xml"),
    ):
        with pytest.raises(Mismatch):
            openapi.check(name, status, kind, good)
