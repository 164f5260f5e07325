"""The requirement table tells the truth: what it calls done is covered by a test."""

import re
from collections import Counter

from tests.docs.pages import ROOT

TABLE = ROOT / "docs" / "requirements.md"
ROW = re.compile(r"^\| (?P<id>[A-E]-\d\d) \| (?P<text>.+) \| (?P<status>\w+) \|$", re.MULTILINE)
COVERS = re.compile(r"#\s*covers\s+(?P<ids>[A-E]-\d\d(?:\s*,\s*[A-E]-\d\d)*)")
COUNTS = {"A": 12, "B": 15, "C": 12, "D": 11, "E": 14}


def statuses() -> dict[str, str]:
    return {row["id"]: row["status"] for row in ROW.finditer(TABLE.read_text())}


def covered() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        for match in COVERS.finditer(path.read_text()):
            found |= {name.strip() for name in match["ids"].split(",")}
    return found


def test_the_table_lists_every_requirement_once() -> None:
    expected = [f"{part}-{n:02}" for part, count in COUNTS.items() for n in range(1, count + 1)]
    assert [row["id"] for row in ROW.finditer(TABLE.read_text())] == expected
    assert max(Counter(expected).values()) == 1


def test_a_requirement_is_planned_or_done() -> None:
    assert set(statuses().values()) <= {"planned", "done"}


def test_every_done_requirement_is_covered_by_a_test() -> None:
    done = {name for name, status in statuses().items() if status == "done"}
    assert not sorted(done - covered())


def test_tests_cover_only_requirements_that_exist() -> None:
    assert not sorted(covered() - set(statuses()))
