"""Texts that are made from others."""

from itertools import combinations, product

from batuta.names import LONGEST_ID, joined, shortened

PARTS = ["a", "b", "a:b", "a%3Ab", "a%", ":", "::", "%", ""]


def test_different_parts_make_different_texts() -> None:
    for one, other in combinations(product(PARTS, repeat=3), 2):
        assert joined(*one) != joined(*other)


def test_usual_parts_are_readable() -> None:
    assert joined("mail", "bulk:42") == "mail:bulk:42"


def test_long_texts_that_differ_at_their_end_stay_different() -> None:
    one, other = ("x" * LONGEST_ID + end for end in "ab")
    assert shortened(one, LONGEST_ID) != shortened(other, LONGEST_ID)
    assert len(shortened(one, LONGEST_ID)) == LONGEST_ID
    assert shortened("short", LONGEST_ID) == "short"
