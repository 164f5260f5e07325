"""Exceptions to values and back."""

import pytest

from batuta import ActivityFailed, NonRetryable
from batuta.authoring.failures import to_exception, to_failure
from batuta.errors import ActivityTimeout, NotSerialisable, TooLarge


class Rejected(Exception):
    def __init__(self, code: int, *, hint: str = "") -> None:
        super().__init__(f"rejected with {code}")
        self.code, self.hint = code, hint


def there_and_back(error: BaseException) -> Exception:
    return to_exception(to_failure(error))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        KeyError("k"),
        Rejected(7, hint="ask again"),
        OSError(28, "No space left"),
        FileNotFoundError(2, "gone", "file.txt"),
        TooLarge("a note", 5, 4),
        ActivityTimeout("too long"),
        NotSerialisable("no"),
        StopAsyncIteration(),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_an_error_keeps_its_words(error: BaseException) -> None:
    assert str(there_and_back(error)) == str(error)


@pytest.mark.parametrize("error", [ValueError("x"), Rejected(7, hint="y"), TooLarge("a", 5, 4)], ids=repr)
def test_an_error_keeps_its_class_and_fields(error: Exception) -> None:
    again = there_and_back(error)
    assert type(again) is type(error)
    assert vars(again) == vars(error)
    assert again.args == error.args


def test_causes_are_kept_to_a_depth() -> None:
    error: Exception = ValueError("0")
    for number in range(1, 20):
        try:
            raise ValueError(str(number)) from error
        except ValueError as caught:
            error = caught
    again: BaseException | None = there_and_back(error)
    words = []
    while again is not None:
        words.append(str(again))
        again = again.__cause__
    assert words[:3] == ["19", "18", "17"]
    assert len(words) < 19


def test_non_retryable_and_its_heirs_are_marked() -> None:
    class Heir(NonRetryable):
        pass

    assert to_failure(ValueError()).retryable
    assert not to_failure(NonRetryable("x")).retryable
    assert not to_failure(Heir("x")).retryable


def test_the_bare_class_name_is_what_never_names() -> None:
    assert to_failure(Rejected(1)).kind == "Rejected"
    assert to_failure(ValueError()).kind == "ValueError"


def test_a_class_that_is_not_loaded_is_not_imported() -> None:
    failure = to_failure(ValueError("x"))
    failure.type = "a_module_that_nobody_imported:Boom"
    again = to_exception(failure)
    assert isinstance(again, ActivityFailed)
    assert again.type == "a_module_that_nobody_imported:Boom"


@pytest.mark.parametrize(
    "name", ["os:system", "builtins:exec", "builtins:BaseException", "builtins:SystemExit", "dict"]
)
def test_a_journal_cannot_name_anything_but_an_exception(name: str) -> None:
    failure = to_failure(ValueError("x"))
    failure.type = name
    assert isinstance(to_exception(failure), ActivityFailed)


def test_huge_details_are_left_out_and_the_words_are_kept() -> None:
    again = there_and_back(ValueError("x" * 100_000))
    assert str(again).startswith("xxx")
