"""Exceptions to values and back."""

import asyncio
import traceback
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta import ActivityFailed, NonRetryable
from batuta.authoring.failures import conversion
from batuta.authoring.failures.conversion import to_exception, to_failure
from batuta.errors import ActivityTimeout, NotSerialisable, TooLarge
from batuta.journal.failures import Failure, is_named


class Rejected(Exception):
    def __init__(self, code: int, *, hint: str = "") -> None:
        super().__init__(f"rejected with {code}")
        self.code, self.hint = code, hint


class Refusals(ExceptionGroup[Exception]):
    pass


def there_and_back(error: BaseException) -> Exception:
    """Through JSON, as the journal holds it."""
    return to_exception(msgspec.json.decode(msgspec.json.encode(to_failure(error)), type=Failure))


def shape(error: BaseException) -> Any:
    """All that must survive."""
    inner = [shape(one) for one in error.exceptions] if isinstance(error, BaseExceptionGroup) else []
    words = error.message if isinstance(error, BaseExceptionGroup) else error.args
    return type(error), words, vars(error), inner, error.__cause__ and shape(error.__cause__)


def caused_by(error: Exception, cause: Exception | None) -> Exception:
    error.__cause__ = cause
    return error


single_errors = st.one_of(
    st.builds(ValueError, st.text(max_size=5)),
    st.builds(KeyError, st.integers()),
    st.builds(Rejected, st.integers(), hint=st.text(max_size=3)),
)
errors = st.recursive(
    single_errors,
    lambda inner: st.builds(
        caused_by,
        st.one_of(
            single_errors,
            st.builds(ExceptionGroup, st.text(max_size=5), st.lists(inner, min_size=1, max_size=3)),
            st.builds(Refusals, st.text(max_size=5), st.lists(inner, min_size=1, max_size=2)),
        ),
        st.none() | inner,
    ),
    max_leaves=8,
)


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


def deep(depth: int) -> None:
    if depth:
        deep(depth - 1)
    raise Rejected(depth)


def noted() -> None:
    error = ValueError("x")
    error.add_note("look there")
    raise error


def grouped() -> None:
    try:
        deep(1)
    except Rejected as error:
        raise ExceptionGroup("several", [error]) from error


RAISING: list[Callable[[], Any]] = [
    lambda: deep(2),
    lambda: deep(3),
    lambda: deep(4),
    lambda: deep(20),
    lambda: deep(400),
    noted,
    grouped,
    lambda: int("12", base=(1 + 1) * 20),
    lambda: eval("1 +"),
    lambda: eval(compile("nowhere", "no such file", "eval")),  # without a source
    lambda: [].appendix,  # type: ignore[attr-defined]  # as a user may misspell it
]


@pytest.mark.parametrize("raising", RAISING)
def test_the_traceback_is_what_python_says_also_of_what_failed_in_the_same_place_before(
    raising: Callable[[], Any],
) -> None:
    for _ in range(2):
        with pytest.raises(Exception) as caught:
            raising()
        python = "".join(traceback.format_exception(caught.value, chain=False))
        assert to_failure(caught.value).traceback == python[-4_000:]


def test_functions_that_are_alike_are_told_apart_in_tracebacks() -> None:
    for file in ("one.py", "two.py"):
        with pytest.raises(ZeroDivisionError) as caught:
            eval(compile("1 / 0", file, "eval"))
        assert f'File "{file}", line 1' in to_failure(caught.value).traceback


def test_the_text_of_frames_is_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "_MOST_FRAMES", 10)
    for number in range(50):
        with pytest.raises(ZeroDivisionError) as caught:
            eval(compile("1 / 0", f"{number}.py", "eval"))
        to_failure(caught.value)
    assert len(conversion._frames) <= 10


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


def test_an_error_is_known_by_the_names_of_its_class_and_of_those_that_it_derives_from() -> None:
    assert to_failure(Rejected(1)).kind == "Rejected"
    failure = to_failure(FileNotFoundError())
    assert (failure.kind, failure.bases) == ("FileNotFoundError", ["OSError"])


@pytest.mark.parametrize(
    ("type_name", "name", "same"),
    [
        ("ValueError", "ValueError", True),
        ("ValueError", "builtins.ValueError", True),
        ("ValueError", "builtins:ValueError", True),
        ("shop.errors:Declined", "Declined", True),
        ("shop.errors:Declined", "errors.Declined", True),
        ("shop.errors:Declined", "shop.errors.Declined", True),
        ("shop.errors:Declined", "shop.errors:Declined", True),
        ("stripe._error:CardError", "stripe.CardError", True),
        ("shop.errors:Card.Declined", "Card.Declined", True),
        ("shop.errors:Card.Declined", "shop.Declined", True),
        ("shop.errors:Declined", "shop.errors", False),
        ("shop.errors:Declined", "bank.Declined", False),
        ("shop.errors:Declined", "shop.errors.more.Declined", False),
        ("shop.late.errors:Declined", "shop.errors:Declined", False),
        ("shop.errors:NotDeclined", "Declined", False),
    ],
)
def test_a_name_may_leave_out_what_comes_before_or_between(type_name: str, name: str, same: bool) -> None:
    assert is_named(type_name, name) is same


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


def depth(error: BaseException) -> int:
    inner = list(error.exceptions) if isinstance(error, BaseExceptionGroup) else []
    inner += [error.__cause__] if error.__cause__ is not None else []
    return 1 + max(map(depth, inner), default=-1)


@given(error=errors.filter(lambda error: depth(error) <= 5))
def test_groups_keep_their_members_and_causes_however_they_are_nested(error: Exception) -> None:
    assert shape(there_and_back(error)) == shape(error)


def test_members_whose_class_is_not_known_are_what_they_would_be_alone() -> None:
    class Local(Exception):
        pass

    again = there_and_back(BaseExceptionGroup("three", [Local("a"), SystemExit(3), asyncio.CancelledError()]))
    assert type(again) is ExceptionGroup
    assert again.message == "three"
    assert [type(one) for one in again.exceptions] == [ActivityFailed] * 3
    assert [one.type.rpartition(".")[2] for one in again.exceptions if isinstance(one, ActivityFailed)] == [
        "Local",
        "SystemExit",
        "exceptions:CancelledError",
    ]


def test_a_group_whose_class_is_not_known_is_a_plain_group() -> None:
    class Mishaps(ExceptionGroup[Exception]):
        pass

    again = there_and_back(Mishaps("two", [ValueError("a"), KeyError("b")]))
    assert shape(again) == shape(ExceptionGroup("two", [ValueError("a"), KeyError("b")]))


def test_a_group_in_an_old_journal_is_one_error_with_its_words() -> None:
    old = b'{"type":"ExceptionGroup","message":"two (2 sub-exceptions)","details":{"args":["two (2 sub-exceptions)"]}}'
    again = to_exception(msgspec.json.decode(old, type=Failure))
    assert isinstance(again, ActivityFailed)
    assert (again.type, str(again)) == ("ExceptionGroup", "two (2 sub-exceptions)")


def test_a_group_of_thousands_of_errors_keeps_the_first_and_counts_the_rest() -> None:
    again = there_and_back(ExceptionGroup("many", [ValueError(str(number)) for number in range(5_000)]))
    assert isinstance(again, ExceptionGroup)
    assert [str(one) for one in again.exceptions[:3]] == ["0", "1", "2"]
    assert str(again.exceptions[-1]) == f"{5_001 - len(again.exceptions)} more errors of the group were left out"
    assert len(again.exceptions) < 200


def test_a_group_is_not_tried_again_when_one_of_its_members_must_not_be() -> None:
    assert to_failure(ExceptionGroup("x", [ValueError()])).retryable
    nested = ExceptionGroup("x", [ValueError(), ExceptionGroup("y", [NonRetryable("no")])])
    assert not to_failure(nested).retryable
    for name in ("ExceptionGroup", "ValueError", "NonRetryable", "batuta.errors.BatutaError", "Exception"):
        assert to_failure(nested).matches(name)
    assert not to_failure(nested).matches("KeyError")


def test_an_activity_that_takes_too_long_is_a_timeout_for_all_who_know_only_that() -> None:
    again = there_and_back(ActivityTimeout("activity 'charge' did not end within 3 s"))
    assert isinstance(again, TimeoutError)
    assert type(again) is ActivityTimeout
    assert str(again) == "activity 'charge' did not end within 3 s"
