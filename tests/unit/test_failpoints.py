"""Failpoints: inert unless armed, and strict about names."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from batuta import failpoints, testing
from batuta.failpoints import InjectedFault, arm, failpoint

SOURCE = Path(failpoints.__file__).parent


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    arm()


def test_the_sites_are_listed_with_the_state_of_the_world() -> None:
    listed = testing.failpoints()
    assert len(listed) >= 25
    assert all(re.fullmatch(r"[a-z]+\.[a-z_]+", name) and words for name, words in listed.items())


def test_every_site_is_in_the_code_and_every_one_in_the_code_is_listed() -> None:
    found = set()
    for path in SOURCE.rglob("*.py"):
        found |= set(re.findall(r'failpoint\("([^"]+)"\)', path.read_text()))
    assert found == set(testing.failpoints())


def test_a_site_fails_at_the_passage_that_was_asked_for_and_only_there() -> None:
    arm("turn.before:2:raise")
    failpoint("turn.before")
    failpoint("turn.after")
    with pytest.raises(InjectedFault, match=r"turn\.before"):
        failpoint("turn.before")
    failpoint("turn.before")


def test_several_sites_can_be_armed_at_once() -> None:
    arm("turn.before:1:raise,turn.after:1:sleep=0.001")
    failpoint("turn.after")
    with pytest.raises(InjectedFault):
        failpoint("turn.before")


@pytest.mark.parametrize(
    "text",
    ["no.such_site:1:raise", "turn.before:1", "turn.before:x:raise", "turn.before:0:raise", "turn.before:1:explode"],
)
def test_a_plan_that_cannot_be_followed_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        arm(text)


def test_passages_are_counted_into_a_file(tmp_path: Path) -> None:
    counts = tmp_path / "counts"
    arm(counts=str(counts))
    for name in ("turn.before", "turn.after", "turn.before"):
        failpoint(name)
    arm()
    failpoint("turn.before")
    assert counts.read_text().split() == ["turn.before", "turn.after", "turn.before"]
