"""The page on security names a test for everything that it says somebody can or cannot do, and these tests exist."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "operating" / "security.md").read_text()
TEST = re.compile(r"`((?:tests|src)/[\w/]+\.py)::(test_\w+)`")
WHO = [
    "Token holder",
    "Tenant",
    "Database reader",
    "Database writer",
    "Operator",
    "Holder of an API key",
    "Stranger at the server",
    "Author of an error message",
]


@pytest.mark.parametrize(("path", "name"), sorted(set(TEST.findall(PAGE))))
def test_every_test_that_the_page_names_exists(path: str, name: str) -> None:
    assert re.search(rf"^ *(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path} has no {name}"


@pytest.mark.parametrize("who", WHO)
def test_everybody_has_a_section_in_which_each_line_names_its_test(who: str) -> None:
    [section] = re.findall(rf"^## {who}$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (Can|Cannot) \| (.*) \|$", section, re.MULTILINE)
    assert {word for word, _ in rows} == {"Can", "Cannot"}
    assert [said for _, said in rows if not TEST.search(said)] == []
