"""What is planted is never seen, and what is innocent stays readable."""

from collections import Counter
from random import Random

import pytest

from batuta.redaction import PATTERNS, Redactor
from tests.redaction.corpus import Planted, brcode, innocent, planted, planted_secrets, unlucky

PIECE = 6
"""Characters of a value that must not be seen in one piece."""

everything = Redactor(PATTERNS)
usual = Redactor()


def leak(redactor: Redactor, one: Planted) -> str | None:
    """The text as it is shown, if a piece of the value is seen in it."""
    shown = redactor.text(one.text)
    pieces = {one.value[at : at + PIECE] for at in range(max(len(one.value) - PIECE, 0) + 1)}
    return f"{one.kind} in {one.carrier}: {one.text!r} -> {shown!r}" if any(p in shown for p in pieces) else None


def test_every_planted_value_is_hidden() -> None:
    leaks = [text for one in planted() if (text := leak(everything, one))]
    assert not leaks, f"{len(leaks)} leaks: " + "\n".join(leaks[:20])


def test_without_evp_the_others_are_still_hidden() -> None:
    assert not [text for one in planted(2_000, seed=7) if one.kind != "evp" and (text := leak(usual, one))]


def test_every_planted_secret_is_hidden() -> None:
    leaks = [text for one in planted_secrets() if (text := leak(usual, one))]
    assert not leaks, f"{len(leaks)} leaks: " + "\n".join(leaks[:20])


def test_a_pix_code_is_hidden_as_a_whole() -> None:
    chance = Random(1)
    for _ in range(100):
        code = brcode(chance)
        assert usual.text(f"pay {code} now") == "pay [brcode] now"


def test_nothing_innocent_is_hidden() -> None:
    touched = {kind: [text for text in texts if everything.text(text) != text] for kind, texts in innocent().items()}
    counts = {kind: f"{len(touched[kind])} of {len(texts)}" for kind, texts in innocent().items()}
    print("\nhidden of what is innocent:", counts)
    assert not any(touched.values()), {kind: texts[:3] for kind, texts in touched.items() if texts}


def test_few_numbers_are_taken_for_others() -> None:
    """A check of two digits lets one number of a hundred pass; that of a card one of ten, of those that begin so."""
    hidden = Counter({kind: sum(usual.text(text) != text for text in texts) for kind, texts in unlucky().items()})
    print("\nhidden of 10,000 chance numbers:", dict(hidden))
    assert hidden["11 digits"] <= 150
    assert hidden["14 digits"] <= 250
    assert hidden["16 digits"] <= 500
    assert hidden["14 capitals"] <= 150


@pytest.mark.parametrize(
    "text",
    ["529.982.247-26", "52998224726", "111.111.111-11", "00000000000000", "11.222.333/0001-82", "4111111111111112"],
)
def test_a_number_whose_check_digits_do_not_fit_is_left(text: str) -> None:
    assert usual.text(f"number {text}") == f"number {text}"
