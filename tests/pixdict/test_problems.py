"""Refusals: names, statuses, and whether sending again can help."""

import pytest

from pixdict.dict import xml
from pixdict.dict.problems import STATUS, DirectoryRefused, Problem, RetryClass, Violation, retry_class, title_of


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, RetryClass.NEVER),
        (403, RetryClass.NEVER),
        (404, RetryClass.NEVER),
        (410, RetryClass.NEVER),
        (409, RetryClass.AGAIN),
        (500, RetryClass.AGAIN),
        (503, RetryClass.AGAIN),
        (429, RetryClass.AFTER_REFILL),
    ],
)
def test_what_a_client_may_do_after_each_status(status: int, expected: RetryClass) -> None:
    assert retry_class(status) is expected
    assert {DirectoryRefused(name).retry for name, one in STATUS.items() if one == status} == {expected}


def test_a_refusal_survives_its_document() -> None:
    wrong = Violation(reason="is no key", value="x", property="entry.key")
    refused = DirectoryRefused("EntryInvalid", "fields are invalid", violations=[wrong])
    problem = xml.from_bytes(Problem, xml.to_bytes(refused.problem("a" * 32)))
    again = DirectoryRefused.of(problem, retry_after=7)
    assert (again.name, again.status, again.detail) == ("EntryInvalid", 400, "fields are invalid")
    assert (again.violations, again.correlation_id, again.retry_after) == ([wrong], "a" * 32, 7)
    assert str(again) == "EntryInvalid: fields are invalid"


def test_a_name_that_is_new_is_taken_with_its_status() -> None:
    problem = Problem(type="https://example.com/error/Novel/", title="Novel", status=409)
    assert (problem.name, DirectoryRefused.of(problem).retry) == ("Novel", RetryClass.AGAIN)
    assert str(DirectoryRefused("NotFound")) == "NotFound"
    assert title_of("EntryLockedByClaim") == "Entry locked by claim"
