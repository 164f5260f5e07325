"""The pages avoid phrases that make a reader solve a sentence. Code blocks and names in backticks are not read."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import FENCE, name, pages

RIDDLES = re.compile(
    r"\b(whoever|nobody|is not any more|that there (?:is|are) not|as it was when)\b",
    re.IGNORECASE,
)
QUOTED = re.compile(r"`[^`\n]*`")


@pytest.mark.parametrize("page", pages(), ids=name)
def test_a_page_states_who_does_what(page: Path) -> None:
    text = QUOTED.sub("", FENCE.sub("", page.read_text()))
    assert not RIDDLES.findall(text)
