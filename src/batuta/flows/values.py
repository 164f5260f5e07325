"""JSON values in flows: how paths find them, when two are equal, which comes first.

| | |
|---|---|
| a path through something that is not there, or not an object or list | `MISSING` |
| `1` and `1.0` | equal; numbers are compared by their value, exactly |
| `true` and `1`, `"1"` and `1`, `null` and `false` | never equal: types differ |
| order | of two numbers, and of two texts (by code point; ISO dates sort by time). Anything else has none |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from batuta.errors import InvalidInput

LONGEST_PATH: Final = 500
DEEPEST_PATH: Final = 50
ROOTS: Final = ("event", "context", "steps")
"""With which the paths of flows begin."""


class Missing:
    """There is no such value."""

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


MISSING: Final = Missing()


def parse_path(text: object) -> tuple[str, ...]:
    """`customer.address.city`, `items.0.name`. Raises InvalidInput."""
    if not isinstance(text, str) or not text or len(text) > LONGEST_PATH:
        raise InvalidInput(f"a path must be a text of 1 to {LONGEST_PATH} characters, such as 'customer.city'")
    parts = tuple(text.split("."))
    if "" in parts or len(parts) > DEEPEST_PATH:
        raise InvalidInput(f"path {text!r} has an empty part, or more than {DEEPEST_PATH} parts")
    return parts


def look_up(value: Any, path: tuple[str, ...]) -> Any:
    """The value at the end of a path, or MISSING."""
    for part in path:
        if isinstance(value, Mapping):
            value = value.get(part, MISSING)
        elif isinstance(value, list) and part.isascii() and part.isdecimal() and len(part) < 10:
            value = value[int(part)] if int(part) < len(value) else MISSING
        else:
            return MISSING
        if value is MISSING:
            return MISSING
    return value


def placed_texts(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """All texts in a JSON value, each after the keys and places that lead to it."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from placed_texts(part, (*path, key))
    elif isinstance(value, list):
        for place, part in enumerate(value):
            yield from placed_texts(part, (*path, place))


def texts_of(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """The same with paths as people read them: `body.items[0].name`. `path`: that of the value."""
    for parts, text in placed_texts(value):
        yield path + "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in parts), text


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def same(left: Any, right: Any) -> bool:
    """Deep equality of two JSON values."""
    if is_number(left) and is_number(right):
        return bool(left == right)
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and bool(left == right)


def order(left: Any, right: Any) -> int | None:
    """Less than 0, 0 or more than 0; None for values that have no order."""
    numbers = is_number(left) and is_number(right)
    if not numbers and not (isinstance(left, str) and isinstance(right, str)):
        return None
    return int(left > right) - int(left < right)
