"""Pages, sources and names of tests avoid phrases that make a reader solve a sentence.

Code blocks and words in quotes or backticks are not read.
"""

import re
from pathlib import Path

import pytest

from tests.docs.pages import FENCE, ROOT, name, pages

RIDDLES = re.compile(
    r"\b(whoever|nobody|is not any more|that there (?:is|are) not|as it was when)\b",
    re.IGNORECASE,
)
QUOTED = re.compile(r"`[^`\n]*`")
ALONE = re.compile(r"\"\w+\"")
"""A string of one word, such as a name."""
SOURCES = [*ROOT.glob("src/**/*.py"), *ROOT.glob("examples/**/*.py")]
TESTS = sorted(ROOT.glob("tests/**/test_*.py"))
TEST_NAME = re.compile(r"def (test_\w+)")


@pytest.mark.parametrize("page", pages(), ids=name)
def test_a_page_states_who_does_what(page: Path) -> None:
    text = QUOTED.sub("", FENCE.sub("", page.read_text()))
    assert not RIDDLES.findall(text)


def test_sources_state_who_does_what() -> None:
    found = [
        (path.name, RIDDLES.findall(ALONE.sub("", path.read_text()))) for path in SOURCES if "_pb2" not in path.name
    ]
    assert [one for one in found if one[1]] == []


def test_names_of_tests_state_who_does_what() -> None:
    names = [found for path in TESTS for found in TEST_NAME.findall(path.read_text())]
    assert [one for one in names if RIDDLES.search(one.replace("_", " "))] == []
