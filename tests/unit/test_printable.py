"""Words for numbers."""

import pytest

from batuta.printable import number_of


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (number_of(0, "file"), "0 files"),
        (number_of(1, "file"), "1 file"),
        (number_of(2_000, "file"), "2,000 files"),
        (number_of(1, "run is", "runs are"), "1 run is"),
        (number_of(2, "run is", "runs are"), "2 runs are"),
    ],
)
def test_a_number_has_the_right_form_of_its_noun(said: str, wanted: str) -> None:
    assert said == wanted
