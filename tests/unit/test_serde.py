"""Values to JSON and back: limits, signatures and errors that name what did not fit."""

import math
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

import msgspec
import pytest

from batuta.errors import InvalidInput, NotSerialisable, TooLarge
from batuta.serde import Codec, decode, decoder_for, encode


@dataclass
class Line:
    sku: str
    price: Decimal


@dataclass
class Box:
    weight: float


def codec(fn: Any) -> Codec:
    return Codec(fn, "activity 'x'")


@pytest.mark.parametrize("value", [math.nan, [math.inf], {"a": (1, -math.inf)}, Box(math.nan)], ids=str)
def test_what_json_does_not_have_is_refused_wherever_it_hides(value: Any) -> None:
    with pytest.raises(NotSerialisable):
        encode(value)


@pytest.mark.parametrize("value", [None, [None], {"null": None}, "null", Box(0.5)], ids=str)
def test_null_itself_is_a_fine_value(value: Any) -> None:
    assert encode(value)


def test_the_limit_counts_bytes_of_json() -> None:
    assert len(encode("x" * 8, limit=10)) == 10
    with pytest.raises(TooLarge) as caught:
        encode("é" * 5, "the note", limit=10)
    assert (caught.value.what, caught.value.size, caught.value.limit) == ("the note", 12, 10)
    assert "BATUTA_MAX_PAYLOAD" in str(caught.value)


def test_arguments_are_an_array_in_order_of_the_parameters() -> None:
    def fn(a: int, b: str = "b") -> None: ...

    assert codec(fn).encode_args((1,), {}) == b"[1]"
    assert codec(fn).encode_args((1,), {"b": "x"}) == b'[1,"x"]'
    assert codec(fn).encode_args((), {"b": "x", "a": 2}) == b'[2,"x"]'


def test_keyword_only_parameters_make_an_object() -> None:
    def fn(a: int, *, price: Decimal, **more: int) -> None: ...

    data = codec(fn).encode_args((1,), {"price": Decimal("1.5"), "c": 3})
    args, kwargs = codec(fn).decode_args(data)
    assert (args, kwargs) == ((1,), {"price": Decimal("1.5"), "c": 3})


def test_a_default_that_lies_between_two_given_arguments_is_filled_in() -> None:
    def fn(a: int, b: int = 5, c: int = 6) -> None: ...

    assert codec(fn).decode_args(codec(fn).encode_args((1,), {"c": 7})) == ((1, 5, 7), {})


def test_arguments_that_no_call_would_take_are_refused() -> None:
    def fn(a: int) -> None: ...

    for args, kwargs in [((), {}), ((1, 2), {}), ((1,), {"b": 2})]:
        with pytest.raises(TypeError):
            codec(fn).encode_args(args, kwargs)


def test_a_value_of_the_wrong_type_is_named() -> None:
    def fn(line: Line) -> Line:
        return line

    with pytest.raises(InvalidInput, match=r"the input of activity 'x' does not fit its annotation.*price"):
        codec(fn).decode_args(b'[{"sku":"tea"}]')
    with pytest.raises(InvalidInput, match="the result of activity 'x' does not fit its annotation"):
        codec(fn).decode_result(b'"tea"')


def test_unions_of_dataclasses_take_the_first_member_that_fits() -> None:
    decoder = decoder_for(Line | Box, "a value")
    assert decode(b'{"sku":"a","price":"1"}', decoder, "a value") == Line("a", Decimal(1))
    assert decode(b'{"weight":2.5}', decoder, "a value") == Box(2.5)
    with pytest.raises(InvalidInput, match="fits no member"):
        decode(b'{"other":1}', decoder, "a value")


@pytest.mark.parametrize("annotation", [list[Line | Box], dict[str, Line | Box], tuple[Line | Box, int] | None])
def test_a_union_that_json_cannot_tell_apart_is_refused_inside_of_something_else(annotation: Any) -> None:
    with pytest.raises(NotSerialisable, match="more than one dataclass"):
        decoder_for(annotation, "a value")


def test_an_annotation_that_cannot_be_looked_up_says_so() -> None:
    def fn(a: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821 - this is the point

    with pytest.raises(NotSerialisable, match="cannot be looked up"):
        codec(fn)


def test_trailing_data_is_refused() -> None:
    with pytest.raises(InvalidInput):
        decode(b"1 2", decoder_for(int, "a value"), "a value")


def test_decoding_gives_values_of_the_annotated_type_only() -> None:
    assert type(decode(b'"1.0"', decoder_for(Decimal, "x"), "x")) is Decimal
    with pytest.raises(InvalidInput):
        decode(b'"yes"', decoder_for(bool, "x"), "x")


def test_raw_json_is_taken_as_it_is() -> None:
    assert encode({"a": msgspec.Raw(b"[1, 2]")}) == b'{"a":[1, 2]}'


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "json"),
    [
        ({1: {2, 1}}, b'{"1":[1,2]}'),
        ({"set": {2, 1}, "other": {10: "x"}}, b'{"other":{"10":"x"},"set":[1,2]}'),
        ({Colour.RED: {"b", "a"}}, b'{"red":["a","b"]}'),
        ([{1: "one", "two": 2}, frozenset({3})], b'[{"1":"one","two":2},[3]]'),
    ],
)
def test_sets_are_sorted_beside_dicts_with_other_keys_than_strings(value: object, json: bytes) -> None:
    assert encode(value) == json
