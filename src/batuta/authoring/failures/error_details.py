"""The arguments and attributes of an error as JSON, with the types that JSON does not have.

The types are kept beside the values: `{"args": ["4.20"], "types": {"args": {"0": "Decimal"}}}`. So old readers still
read the values, and a value can never be mistaken for a type.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import ModuleType
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from batuta.serde import decoder_for, encode

_SCALARS: dict[type, str] = {kind: kind.__name__ for kind in (Decimal, datetime, date, time, timedelta, UUID, bytes)}
_BY_NAME: dict[str, type] = {name: kind for kind, name in _SCALARS.items()}
_LISTS: dict[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_PLAIN = frozenset((bool, int, str, float, type(None)))

_MARKS = ("__dataclass_fields__", "__pydantic_validator__", "__attrs_attrs__")
"""Attributes of classes of plain data."""

Mark = Any
"""The type of a value: its name; for a collection the types of its parts, by index or key; for a typed collection
both, in a list. None: a plain JSON value."""


class Details(Struct, omit_defaults=True):
    """Of one error."""

    args: list[Any]
    fields: dict[str, Any] = {}
    types: dict[str, Mark] = {}
    """Of both."""

    def attributes(self) -> dict[str, Any]:
        """The fields, without any that Python itself reads: a journal must not decide how an error behaves."""
        return {name: value for name, value in self.fields.items() if not name.startswith("__")}


class NotLoaded(Exception):
    """A value was of a class that is not loaded here."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


# -- to JSON


def told(args: list[Any], fields: tuple[dict[str, Any], Mark], limit: int) -> Raw:
    """The fields as `fields_apart` gives them. Raises NotSerialisable, TooLarge, and what classes of values raise."""
    (plain, marks), (named, more) = _list_apart(args), fields
    types = {name: mark for name, mark in (("args", marks), ("fields", more)) if mark}
    return Raw(encode(Details(plain, named, types), "an error", limit))


def fields_apart(fields: dict[str, Any], limit: int) -> tuple[dict[str, Any], Mark]:
    """Values as JSON, and their types; without values that have no JSON form, or are too large."""
    kept: dict[str, Any] = {}
    marks: dict[str, Mark] = {}
    for name, value in fields.items():
        with suppress(Exception):  # the class of a value may raise anything
            plain, mark = _apart(value)
            encode(plain, name, limit)
            kept[name] = plain
            if mark is not None:
                marks[name] = mark
    return kept, marks


def _apart(value: Any) -> tuple[Any, Mark]:
    """A value as JSON, and its type."""
    kind = type(value)
    if kind in _PLAIN:
        return value, None
    if kind in _SCALARS:
        return msgspec.to_builtins(value), _SCALARS[kind]
    if kind is list:
        return _list_apart(value)
    if kind in (tuple, set, frozenset):
        plain, marks = _list_apart(list(value) if kind is tuple else sorted(value, key=encode))
        return plain, [kind.__name__, marks] if marks else kind.__name__
    if kind is dict:
        return _dict_apart(value)
    return _model_apart(value, kind) if is_model(kind) else (value, None)


def _list_apart(values: list[Any]) -> tuple[list[Any], Mark]:
    parts = [_apart(one) for one in values]
    return [plain for plain, _ in parts], {str(at): mark for at, (_, mark) in enumerate(parts) if mark is not None}


def _dict_apart(values: dict[Any, Any]) -> tuple[Any, Mark]:
    if not all(type(key) is str for key in values):
        plain, marks = _list_apart([list(pair) for pair in values.items()])
        return plain, ["dict", marks]
    parts = {key: _apart(one) for key, one in values.items()}
    return {key: plain for key, (plain, _) in parts.items()}, {
        key: mark for key, (_, mark) in parts.items() if mark is not None
    }


def _model_apart(value: Any, kind: type) -> tuple[Any, Mark]:
    """Of a class that is found by its name and gives the same JSON again; of others, the JSON alone."""
    data, name = encode(value), class_name(kind)
    try:
        same = find(name) is kind and encode(_made(kind, data)) == data
    except Exception:  # noqa: BLE001 - whatever a class raises that cannot be made from its own JSON
        same = False
    return msgspec.json.decode(data), name if same else None


# -- and back


def opened(data: Raw, *, strict: bool) -> Details:
    """The values with their types.

    A value whose class is not loaded stays plain JSON; with `strict`, NotLoaded is raised.
    """
    details = msgspec.json.decode(data, type=Details)
    marks = details.types
    if marks:
        details.args = _together(details.args, marks.get("args"), strict)
        details.fields = _together(details.fields, marks.get("fields"), strict)
    return details


def _together(plain: Any, mark: Mark, strict: bool) -> Any:
    if mark is None:
        return plain
    both: tuple[str, dict[str, Mark]] = (mark, {}) if isinstance(mark, str) else ("", mark)
    name, parts = mark if isinstance(mark, list) else both
    if isinstance(plain, list):
        plain = [_together(one, parts.get(str(at)), strict) for at, one in enumerate(plain)]
    elif isinstance(plain, dict):
        plain = {key: _together(one, parts.get(key), strict) for key, one in plain.items()}
    if not name:
        return plain
    if name in _BY_NAME:
        return msgspec.convert(plain, _BY_NAME[name])
    if name == "dict":
        return dict(plain)
    if name in _LISTS:
        return _LISTS[name](plain)
    kind = find(name)
    if kind is None:
        if strict:
            raise NotLoaded(name)
        return plain
    return _made(kind, encode(plain))


def _made(kind: type, data: bytes) -> Any:
    """A value of that class from its JSON. Members of an enum may stand for anything, also for tuples."""
    if issubclass(kind, Enum):
        return next((one for one in kind if encode(one) == data), None) or decoder_for(kind, "an error").decode(data)
    return decoder_for(kind, "an error").decode(data)


def classes_in(data: Raw) -> set[str]:
    """The names of the classes that values were of."""
    if b'"types"' not in bytes(data):
        return set()
    return _classes(msgspec.json.decode(data, type=Details).types)


def _classes(mark: Mark) -> set[str]:
    if isinstance(mark, str):
        return {mark} if ":" in mark else set()
    parts: Any = mark.values() if isinstance(mark, dict) else mark if isinstance(mark, list) else ()
    return set().union(*map(_classes, parts))


def without(data: Raw, names: set[str]) -> Raw:
    """The same, with values of these classes as JSON has them."""
    details = msgspec.json.decode(data, type=Details)
    details.types = _without(details.types, names) or {}
    return Raw(msgspec.json.encode(details))


def _without(mark: Mark, names: set[str]) -> Mark:
    if isinstance(mark, dict):
        return {key: kept for key, one in mark.items() if (kept := _without(one, names)) is not None}
    if isinstance(mark, list):
        return [_without(one, names) or {} for one in mark]
    return None if mark in names else mark


# -- classes


def class_name(kind: type) -> str:
    """`module:qualname`; builtins have no module part."""
    module = script_name() if kind.__module__ in ("__main__", "__mp_main__") else kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}:{kind.__qualname__}"


def script_name() -> str:
    """The name by which other programs import the script of this one: its classes are the same there.

    It is the same in its processes, where the script is `__mp_main__`. `__main__` without a file, and where another
    module has the name.
    """
    main = _namespace("__main__")
    spec, file = main.get("__spec__"), main.get("__file__") or ""
    name: str = spec.name if spec is not None else os.path.splitext(os.path.basename(file))[0]
    is_taken = name in sys.modules and _namespace(name).get("__file__") != file
    return "__main__" if is_taken or not name.replace(".", "_").isidentifier() else name


def _namespace(module: str) -> dict[str, Any]:
    """Of a loaded module, without asking it for attributes: a `__getattr__` or a lazy loader might import."""
    there = sys.modules.get(module)
    return object.__getattribute__(there, "__dict__") if isinstance(there, ModuleType) else {}


def look_up(name: str) -> object:
    """The object of that name in the loaded modules.

    Nothing is imported: a journal must not decide what code runs.
    """
    module, _, path = name.rpartition(":")
    found: Any = _namespace("__main__" if module == script_name() else module or "builtins")
    for part in path.split("."):
        if isinstance(found, type):
            found = next((vars(one)[part] for one in found.__mro__ if part in vars(one)), None)
        else:
            found = found.get(part) if isinstance(found, dict) else None
    return found


def find(name: str) -> type | None:
    """The class of values, if it is loaded: an enum or a model."""
    found = look_up(name)
    return found if isinstance(found, type) and is_model(found) else None


def is_model(kind: type) -> bool:
    """Whether it is a class of plain data: nothing else is made because a journal names it."""
    marks = _MARKS + (("_fields",) if issubclass(kind, tuple) else ())
    # Not asked for: a metaclass may import something then.
    return issubclass(kind, Enum | Struct) or any(mark in vars(one) for one in kind.__mro__ for mark in marks)
