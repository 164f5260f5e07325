"""The values that an error carries keep their types."""

import sys
from collections import namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, IntFlag, StrEnum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, computed_field

from batuta import ActivityFailed
from batuta.authoring.failures import error_details as details_of
from batuta.authoring.failures.conversion import to_exception, to_failure
from batuta.authoring.failures.known_errors import KnownErrors
from batuta.errors import ErrorNotLoaded
from batuta.journal.failures import Failure


class Code(Enum):
    LIMIT = "limit"
    STOLEN = "stolen"


class Level(IntEnum):
    LOW = 1


class Word(StrEnum):
    NO = "no"


class Bits(IntFlag):
    A = 1
    B = 2


class Odd(Enum):
    PAIR = (1, 2)


@dataclass
class Money:
    amount: Decimal
    currency: str = "EUR"


class Limit(msgspec.Struct):
    most: Money
    since: datetime


class Offer(BaseModel):
    price: Decimal
    until: date


class Point(NamedTuple):
    x: int
    when: date


Loose = namedtuple("Loose", "a b")  # noqa: PYI024 - without types, as some are


class Declined(Exception):
    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args)
        self.__dict__.update(fields)


VALUES: list[Any] = [
    Decimal("4.20"),
    Decimal("-0"),
    datetime(2024, 5, 1, 12, 30, tzinfo=UTC),
    datetime(2024, 5, 1, 12, 30),  # noqa: DTZ001 - as partners send them
    date(2024, 5, 1),
    time(12, 30),
    timedelta(days=2, microseconds=5),
    UUID(int=5),
    b"\x00\xff",
    Code.LIMIT,
    Level.LOW,
    Word.NO,
    Odd.PAIR,
    Money(Decimal("1.10")),
    Limit(Money(Decimal(5), "USD"), datetime(2024, 5, 1, tzinfo=UTC)),
    Offer(price=Decimal("1.0"), until=date(2024, 1, 1)),
    Point(1, date(2024, 1, 1)),
    Loose(1, "b"),
    (1, (Decimal(1), "x")),
    {1, 2},
    frozenset({Code.LIMIT}),
    {"nested": [{"at": date(2024, 1, 1), "code": Code.STOLEN}]},
    {1: "one", 2: "two"},
    {Code.LIMIT: Decimal(1), (1, 2): None},
    {"types": {"args": "Decimal"}, "": 1, "a/b": Decimal(2)},
    [],
    {},
    (),
    None,
    True,
    1.5,
    "4.20",
]


def recorded(error: BaseException) -> Failure:
    """As it stands in the journal."""
    failure = to_failure(error)
    KnownErrors.now().decide(failure)
    return msgspec.json.decode(msgspec.json.encode(failure), type=Failure)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_arguments_and_attributes_come_back_with_their_types(value: Any) -> None:
    again = to_exception(recorded(Declined("no", value, held=value, listed=[value, value])), strict=True)
    assert type(again) is Declined
    assert again.args == ("no", value)
    assert vars(again) == {"held": value, "listed": [value, value]}
    for one in (again.args[1], again.__dict__["held"], again.__dict__["listed"][1]):
        assert type(one) is type(value)
        assert repr(one) == repr(value)


plain = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=5)
typed = plain | st.decimals(allow_nan=False, allow_infinity=False) | st.dates() | st.uuids() | st.binary(max_size=5)
keys = st.text(max_size=3) | st.integers(0, 9) | st.sampled_from(list(Code))
trees = st.recursive(
    typed | st.sampled_from(list(Code)),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)


@given(value=trees)
def test_nested_error_details_survive_a_round_trip(value: Any) -> None:
    again = to_exception(recorded(Declined(value, held=value)), strict=True)
    assert repr((again.args, vars(again))) == repr(((value,), {"held": value}))


def test_the_values_in_the_journal_read_as_they_did_before_types_were_kept() -> None:
    details = msgspec.json.decode(recorded(Declined(Decimal("4.20"), code=Code.LIMIT, n=1)).details)  # type: ignore[arg-type]  # there are some
    assert (details["args"], details["fields"]) == (["4.20"], {"code": "limit", "n": 1})
    assert details["types"] == {"args": {"0": "Decimal"}, "fields": {"code": f"{__name__}:Code"}}
    assert "types" not in msgspec.json.decode(recorded(Declined("x", n=1)).details)  # type: ignore[arg-type]  # as above


def test_an_error_of_an_old_journal_has_the_values_that_it_had() -> None:
    details = msgspec.Raw(b'{"args":["4.20"],"fields":{"code":"limit"}}')
    again = to_exception(Failure(f"{__name__}:Declined", "4.20", details))
    assert (type(again), again.args, vars(again)) == (Declined, ("4.20",), {"code": "limit"})


class Computed(BaseModel):
    """As in the wild: it can be made, and not be told."""

    @computed_field  # type: ignore[prop-decorator]  # as its documentation has it
    @property
    def total(self) -> int:
        raise KeyError("total")


def circle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize("value", [Computed(), circle(), object(), float("nan"), "\ud800"], ids=range(5))
def test_what_has_no_json_form_is_left_out_and_the_rest_is_kept(value: Any) -> None:
    again = to_exception(recorded(Declined("no", held=value, code=Code.LIMIT)))
    assert vars(again) == {"code": Code.LIMIT}
    again = to_exception(recorded(Declined(value, code=Code.LIMIT)))
    assert vars(again) == {"code": Code.LIMIT}


def test_a_value_that_does_not_come_back_the_same_is_what_json_has_for_it() -> None:
    class Local(Enum):
        A = "a"

    again = to_exception(recorded(Declined("no", local=Local.A, bits=Bits.A | Bits.B)), strict=True)
    assert (again.__dict__["local"], int(again.__dict__["bits"])) == ("a", 3)


def test_a_value_of_a_class_that_its_worker_did_not_know_is_what_json_has_for_it() -> None:
    failure = to_failure(Declined(Code.LIMIT, held=[Money(Decimal(1)), Decimal(2)]))
    KnownErrors(name for name in sys.modules if name != __name__).decide(failure)
    again = to_exception(failure, strict=True)
    assert isinstance(again, ActivityFailed)
    assert again.details == ["limit"]
    failure = to_failure(ValueError(Code.LIMIT, Decimal(2)))
    KnownErrors(()).decide(failure)
    assert to_exception(failure, strict=True).args == ("limit", Decimal(2))


def test_where_the_class_of_a_value_is_gone_a_replay_stops_and_a_client_gets_the_json(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failure = recorded(Declined(held=Code.LIMIT))
    monkeypatch.delattr(sys.modules[__name__], "Code")
    with pytest.raises(ErrorNotLoaded, match=f"{__name__}:Declined that holds a {__name__}:Code"):
        to_exception(failure, strict=True)
    assert vars(to_exception(failure)) == {"held": "limit"}


@pytest.mark.parametrize("name", ["os:system", "subprocess:Popen", "builtins:exec", "Decimals", "tests:x", ":"])
def test_a_journal_makes_no_value_of_a_class_that_is_not_plain_data(name: str) -> None:
    details = {"args": ["ls"], "types": {"args": {"0": name}}}
    failure = Failure("ValueError", "ls", msgspec.Raw(msgspec.json.encode(details)))
    assert to_exception(failure).args == ("ls",)


def test_no_attribute_that_python_reads_is_set_from_a_journal() -> None:
    fields = {"__notes__": ["by hand"], "__class__": "x", "__reduce_ex__": 1, "__getstate__": 2, "__init__": 3, "n": 1}
    for kind in ("ValueError", "ExceptionGroup"):
        failure = to_failure(ValueError("v") if kind == "ValueError" else ExceptionGroup("g", [ValueError("v")]))
        failure.details = msgspec.Raw(msgspec.json.encode({"args": ["v"], "fields": fields}))
        error = to_exception(failure)
        assert (type(error).__name__, vars(error)) == (kind, {"n": 1})
        assert not hasattr(error, "__notes__")


def test_a_class_is_not_asked_for_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Meta(type):
        def __getattr__(cls, name: str) -> Any:
            asked.append(name)
            raise AttributeError(name)

    class Lazy(metaclass=Meta):
        pass

    monkeypatch.setattr(sys.modules[__name__], "Lazy", Lazy, raising=False)
    assert details_of.find(f"{__name__}:Lazy") is None
    assert details_of.find(f"{__name__}:Lazy.inner") is None
    assert asked == []
