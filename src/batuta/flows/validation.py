"""Checks a flow before it is kept: collects all faults, each with its path and a hint."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from batuta.durations import parse_duration
from batuta.errors import BatutaError
from batuta.flows.conditions import BadRule, compile_condition
from batuta.flows.document import (
    DEEPEST_BLOCK,
    KEY_PATTERN,
    LARGEST_DOCUMENT,
    LONGEST_TIME,
    STEP_TYPES,
    FlowDocument,
    Rule,
    SetStep,
    Step,
)
from batuta.flows.expressions import compile_template
from batuta.flows.faults import Fault, InvalidFlow, guess
from batuta.flows.graph import check_graph
from batuta.flows.meaning import CHECKS, check_meaning, name_faults
from batuta.flows.secrets import MARK as SECRET
from batuta.flows.secrets import secret_faults
from batuta.flows.values import texts_of

_BAD: Final = object()
_STEP: Final = frozenset(get_args(Step))
_PLACE = re.compile(r"\.(\d+)(?=\.|$)")
_PART = re.compile(r" - at `\$([^`]*)`$")
"""Where msgspec says that it found a fault."""
_EXPRESSIONS: Final = "see the reference of expressions"
_LARGEST_INT: Final = 2**63 - 1


def read_json(data: bytes | str) -> tuple[Any, list[Fault]]:
    """The JSON value, or what is wrong with it: also keys that stand twice in one object."""
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if len(raw) > LARGEST_DOCUMENT:
        fault = Fault(
            "", f"the document has {len(raw):,} bytes", f"at most {LARGEST_DOCUMENT:,}: split it into sub_flows"
        )
        return None, [fault]
    try:
        value = json.loads(
            raw.decode("utf-8"), object_pairs_hook=_Pairs.of, parse_constant=_refuse_constant, parse_int=_integer
        )
    except UnicodeDecodeError:
        return None, [Fault("", "the document is not UTF-8")]
    except json.JSONDecodeError as error:
        hint = "see whether a comma, a quote or a bracket is missing before it"
        return None, [Fault("", f"not JSON: {error.msg}, line {error.lineno}, column {error.colno}", hint)]
    except ValueError as error:
        return None, [Fault("", f"not JSON: {error}"[:200])]
    except RecursionError:
        return None, [Fault("", "the document is nested too deeply")]
    faults: list[Fault] = []
    try:
        value = _plain(value, "", faults)
        msgspec.json.encode(value)
    except (RecursionError, UnicodeEncodeError, OverflowError, ValueError):
        return None, [*faults, Fault("", "the document holds a text that is not Unicode, or is nested too deeply")]
    return value, faults


class _Pairs(dict[str, Any]):
    """An object, which remembers the keys that stood in it more than once."""

    twice: frozenset[str] = frozenset()

    @classmethod
    def of(cls, pairs: list[tuple[str, Any]]) -> _Pairs:
        made = cls(pairs)
        if len(made) < len(pairs):
            made.twice = frozenset(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        return made


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _integer(digits: str) -> int:
    """One of thousands of digits is too large, whatever they are."""
    return int(digits[:30])


def _plain(value: Any, path: str, faults: list[Fault]) -> Any:
    if isinstance(value, _Pairs):
        faults += [
            Fault(_at(path, key), f"the key {key!r} stands twice in this object", "keep one of them")
            for key in sorted(value.twice)
        ]
        return {key: _plain(part, _at(path, key), faults) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part, f"{path}[{place}]", faults) for place, part in enumerate(value)]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _LARGEST_INT:
        faults.append(Fault(path, "the number is larger than 64 bits", "write it as a text"))
        return 0
    if isinstance(value, float) and math.isinf(value):
        faults.append(Fault(path, "the number is too large", "write it as a text"))
        return 0
    return value


# -- a whole document


def check_document(given: bytes | str | Mapping[str, Any]) -> tuple[FlowDocument | None, list[Fault]]:
    """The flow, if it is sound; and everything that is wrong with it."""
    value, faults = _read(given)
    if value is None and faults:
        return None, faults
    clean = _Walker(faults).struct(FlowDocument, value, "")
    if clean is not _BAD:
        try:
            check_graph(msgspec.convert(clean["steps"], list[Step]), "steps", faults)
        except msgspec.ValidationError as error:  # the walker has told of it, or should have
            if not faults:
                faults.append(Fault("steps", str(error)))
    if faults:
        return None, list(dict.fromkeys(faults))
    return msgspec.convert(clean, FlowDocument), []


def parse_document(given: bytes | str | Mapping[str, Any]) -> FlowDocument:
    """The flow. Raises InvalidFlow."""
    document, faults = check_document(given)
    if document is None:
        raise InvalidFlow(faults)
    return document


def _read(given: Any) -> tuple[Any, list[Fault]]:
    if isinstance(given, bytes | str):
        return read_json(given)
    try:
        return read_json(msgspec.json.encode(given))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return None, [Fault("", f"not JSON: {error}"[:200])]


# -- one value after the other


class _Walker:
    """Goes through a document along its structs. Gives back what is sound, so that more faults can be found."""

    def __init__(self, faults: list[Fault]) -> None:
        self.faults = faults
        self._depth = 0

    def _refuse(self, path: str, message: str, hint: str = "") -> Any:
        self.faults.append(Fault(path, message, hint))
        return _BAD

    def value(self, kind: Any, value: Any, path: str) -> Any:
        bare, metas = _bare(kind)
        options = get_args(bare)
        if frozenset(options) == _STEP:
            return self._step(value, path)
        if get_origin(bare) in (UnionType, Union):
            if value is None and type(None) in options:
                return None
            inner = [one for one in options if one is not type(None)]
            if len(inner) == 1:
                return self.value(inner[0], value, path)
        if isinstance(bare, type) and issubclass(bare, Struct):
            return self.struct(bare, value, path)
        if get_origin(bare) is list and _has_structs(options[0]):
            return self._list(options[0], metas, value, path)
        return self._leaf(kind, metas, value, path)

    def _list(self, kind: Any, metas: list[Meta], value: Any, path: str) -> Any:
        if not isinstance(value, list):
            return self._refuse(path, f"must be a list, not {_called(value)}")
        for meta in metas:
            if meta.min_length is not None and len(value) < meta.min_length:
                self._refuse(path, f"must have at least {meta.min_length}, not {len(value)}")
            if meta.max_length is not None and len(value) > meta.max_length:
                return self._refuse(path, f"must have at most {meta.max_length}, not {len(value)}")
        made = [self.value(kind, part, f"{path}[{place}]") for place, part in enumerate(value)]
        return [one for one in made if one is not _BAD]

    def _step(self, value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            return self._refuse(path, f"a step must be an object, not {_called(value)}")
        kind = value.get("type")
        made: Any = _BAD
        if not isinstance(kind, str) or kind not in STEP_TYPES:
            known = ", ".join(STEP_TYPES)
            what = "a step needs a type" if "type" not in value else f"unknown step type {_shown(kind)}"
            close = guess(kind, STEP_TYPES, self.faults) if isinstance(kind, str) else ""
            self._refuse(_at(path, "type"), what, close or f"known: {known}")
        elif self._depth >= DEEPEST_BLOCK:
            self._refuse(path, f"blocks are nested more than {DEEPEST_BLOCK} levels", "use a sub_flow")
        else:
            self._depth += 1
            rest = {name: part for name, part in value.items() if name != "type"}
            made = self.struct(STEP_TYPES[kind], rest, path)
            self._depth -= 1
        if made is not _BAD:
            made["type"] = kind
            with suppress(msgspec.ValidationError):  # too much of it was left out: the faults tell
                check_meaning(msgspec.convert(made, Step), path, self.faults)
                return made
        key, following = value.get("key"), value.get("next", "")
        if not isinstance(key, str) or not key:
            return _BAD
        # A stand-in, so that other steps may refer to it without further faults.
        following = following if isinstance(following, str) else ""
        return {"type": SetStep.__struct_config__.tag, "key": key, "next": following, "config": {"values": {}}}

    def struct(self, kind: type[Struct], value: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            return self._refuse(path, f"must be an object, not {_called(value)}")
        fields = _fields_of(kind)
        for name in value:
            if name not in fields:
                close = guess(str(name), fields, self.faults) or f"known: {', '.join(fields)}"
                self._refuse(_at(path, name), f"unknown field {_shown(name)}", close)
        made: dict[str, Any] = {}
        missing = False
        for name, one in fields.items():
            if name not in value:
                if one.required:
                    self._refuse(path, f"the field {name!r} is missing", _described(one.type))
                    missing = True
                continue
            found = self.value(one.type, value[name], _at(path, name))
            if found is not _BAD:
                made[name] = found
            elif one.required:
                missing = True
        if (check := CHECKS.get(kind)) is not None:
            check(made, path, self.faults)
        return _BAD if missing else made

    def _leaf(self, kind: Any, metas: list[Meta], value: Any, path: str) -> Any:
        try:
            found = msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            said, where = _PART.sub("", str(error)), _PART.search(str(error))
            return self._refuse(path + (where[1] if where else ""), _words(said), _described(kind))
        if Rule in _parts(kind):
            return value if self._rule(value, path) else _BAD
        marks = {name: mark for meta in metas for name, mark in (meta.extra or {}).items()}
        if marks.get("flow") == "seconds":
            return value if self._time(found, path, positive="positive" in marks) else _BAD
        if "names" in marks:
            self.faults += name_faults(value, path)
        if marks.get("flow") == "template" and not self._template(value, path, secrets="secrets" in marks):
            return _BAD
        return value

    def _time(self, value: float | str, path: str, *, positive: bool) -> bool:
        seconds = parse_duration(value) if isinstance(value, str) else value
        if seconds is None:
            self._refuse(path, f"{value!r} is not a time", 'such as "90s", "5min", "2h", "30d"')
        elif seconds < 0 or (positive and seconds == 0):
            self._refuse(path, "the time must be more than 0" if positive else "the time must not be negative")
        elif seconds > LONGEST_TIME:
            self._refuse(path, f"the time is too long: at most {LONGEST_TIME:,} seconds")
        else:
            return True
        return False

    def _rule(self, value: Any, path: str) -> bool:
        try:
            compile_condition(value)
        except BadRule as error:
            for where, why in error.errors:
                self._refuse(_PLACE.sub(r"[\1]", f"{path}.{where}") if where else path, why)
            return False
        return True

    def _template(self, value: Any, path: str, *, secrets: bool) -> bool:
        try:
            compile_template(value, path)
        except (BatutaError, RecursionError) as error:
            before = len(self.faults)
            for at, text in () if isinstance(error, RecursionError) else texts_of(value, path):
                try:
                    compile_template(text, at)
                except BatutaError as own:
                    self._refuse(at, _without(str(own), at), _EXPRESSIONS)
            if len(self.faults) == before:  # all of it together is too much
                self._refuse(path, _without(str(error), path), _EXPRESSIONS)
            return False
        if secrets:
            self.faults += secret_faults(value, path)
        elif SECRET in msgspec.json.encode(value).decode():
            hint = "only url, headers, body, sign and apiKey of calls may hold one"
            self._refuse(path, "a secret may not stand here", hint)
            return False
        return True


# -- types and words


@lru_cache(maxsize=100)
def _fields_of(kind: type[Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    """By their names in JSON."""
    return {one.encode_name: one for one in msgspec.structs.fields(kind)}


def _bare(kind: Any) -> tuple[Any, list[Meta]]:
    metas: list[Meta] = []
    while get_origin(kind) is Annotated:
        kind, *more = get_args(kind)
        metas += [one for one in more if isinstance(one, Meta)]
    return kind, metas


def _parts(kind: Any) -> list[Any]:
    """The type itself, and those of a union in it."""
    bare, _ = _bare(kind)
    return [kind, *(get_args(bare) if get_origin(bare) in (UnionType, Union) else ())]


def _has_structs(kind: Any) -> bool:
    bare, _ = _bare(kind)
    if get_origin(bare) is list:
        return _has_structs(get_args(bare)[0])
    options = get_args(bare) or (bare,)
    return any(isinstance(one, type) and issubclass(one, Struct) for one in options)


def _without(said: str, path: str) -> str:
    return said.removeprefix(f"{path}: ")


def _words(said: str) -> str:
    """msgspec's message, in the words of JSON."""
    words = {"`str`": "a text", "`int`": "a whole number", "`float`": "a number", "`object`": "an object"}
    words |= {"`array`": "a list", "`bool`": "true or false", "`null`": "null", "`dict`": "an object"}
    words |= {f"a text matching regex '{KEY_PATTERN}'": "1 to 100 letters, digits, '_' and '-', no digit first"}
    for name, word in words.items():
        said = said.replace(name, word)
    return said[:1].lower() + said[1:300]


def _called(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _described(kind: Any) -> str:
    return next((str(meta.description) for meta in reversed(_bare(kind)[1]) if meta.description), "")


def _at(path: str, part: object) -> str:
    shown = str(part)[:100]
    return f"{path}.{shown}" if path else shown
